//! Example service: `POST /api/v1/stream` streams a reply token by token, with a total and a
//! per-user limit.
//!
//! ```text
//! cargo run -p forebay-admission --example llm_stream                      # counts in memory
//! cargo run -p forebay-admission --example llm_stream -- --redis redis://localhost
//! curl -N localhost:8000/api/v1/stream -H 'x-user-id: ada' --json '{"query": "why?"}'
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{Extensions, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, body::Body};
use clap::Parser;
use forebay_admission::{Admission, AdmissionLayer, ForwardedHeader, Identifier, ThreadId, UserId};
use forebay_quota::{MemberConfig, Quota, RedisStore};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::net::TcpListener;

#[path = "llm_stream/check.rs"]
mod check;

type ExampleError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Count in this Redis, shared with all other instances.
    #[arg(long)]
    redis: Option<String>,
    /// Streams in total.
    #[arg(long, default_value_t = 10_000)]
    total: u32,
    /// Streams per user.
    #[arg(long, default_value_t = 3)]
    per_user: u32,
    /// Serve on a free port, send a few requests, and exit.
    #[arg(long)]
    check: bool,
}

#[derive(Deserialize)]
struct Question {
    query: String,
    model: Option<String>,
    provider: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), ExampleError> {
    let options = Options::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let quota = match &options.redis {
        Some(url) => Quota::join(RedisStore::open(url, "llm")?, MemberConfig::new("llm-1")).await,
        None => Quota::local(),
    };
    let admission = Admission::builder().total(options.total).per_user(options.per_user).build(quota);
    let listener =
        TcpListener::bind(if options.check { "127.0.0.1:0".parse()? } else { options.listen }).await?;
    let address = listener.local_addr()?;
    println!("http://{address}/api/v1/stream");
    let service = app(admission.clone()).into_make_service_with_connect_info::<SocketAddr>();
    let server = async move { axum::serve(listener, service).await.map_err(ExampleError::from) };
    if options.check {
        tokio::spawn(server);
        return check::run(address, &admission).await;
    }
    server.await
}

fn app(admission: Admission) -> Router {
    // A proxy on this machine reports the user; other clients are identified by address.
    let proxies = ["127.0.0.0/8", "::1"].map(|network| network.parse().expect("a network"));
    let identify =
        Identifier::new().trusted_proxies(proxies).trusted_header().address(ForwardedHeader::XForwardedFor);
    let peer =
        |extensions: &Extensions| extensions.get().map(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| *peer);
    let layer = AdmissionLayer::new(admission.clone(), identify).peer(peer);
    Router::new()
        .route("/api/v1/stream", post(stream_reply))
        .layer(layer)
        .route("/api/v1/statistics", get(async move || Json(admission.statistics())))
}

/// The permit is in the response body. It is released when the stream ends or fails, or the client
/// disconnects.
async fn stream_reply(extensions: Extensions, Json(question): Json<Question>) -> Response {
    let (thread, user) = (extensions.get::<ThreadId>(), extensions.get::<UserId>());
    tracing::info!(thread = thread.map(tracing::field::display), known = user.is_some(), "question received");
    let events = ask(question).map(|token| match token {
        Ok(Some(token)) => event(None, &serde_json::json!({ "token": token }).to_string()),
        Ok(None) => event(None, "[DONE]"),
        Err(error) => {
            let what = serde_json::json!({"error": "ProviderError", "message": error.to_string()});
            event(Some("error"), &what.to_string())
        }
    });
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

fn event(name: Option<&str>, data: &str) -> String {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n")
}

/// Simulates a model: returns the words of the question, one every 20 ms; fails at the word
/// `fail`.
fn ask(question: Question) -> impl Stream<Item = Result<Option<String>, ExampleError>> {
    let model = question.model.unwrap_or_else(|| "echo".to_owned());
    let provider = question.provider.unwrap_or_else(|| "auto".to_owned());
    let words: Vec<_> = question.query.split_whitespace().map(|word| Some(word.to_owned())).collect();
    let all = [Some(format!("{provider}/{model}:"))].into_iter().chain(words).chain([None]);
    let tokens = stream::iter(all).then(async |word| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if word.as_deref() == Some("fail") { Err("the provider hung up".into()) } else { Ok(word) }
    });
    // Ends the stream after an error.
    tokens.scan(false, |failed, token| {
        let item = (!*failed).then_some(token);
        *failed |= matches!(item, Some(Err(_)));
        std::future::ready(item)
    })
}
