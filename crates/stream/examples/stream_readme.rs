//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-stream --example stream_readme` prints the address of the server.

#![allow(clippy::print_stdout, reason = "an example prints its address")]

use std::time::Duration;

use forebay_stream::{HttpServer, HttpServerConfig, Incoming, LiveBody, Topic, service_fn};
use http::{HeaderValue, Request, Response};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let news = Topic::new(64); // keeps 64 events for slow clients
    let topic = news.clone();
    let service = service_fn(move |_request: Request<Incoming>| {
        let mut response = Response::new(topic.subscribe());
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream"));
        response.extensions_mut().insert(LiveBody); // served by one small task
        std::future::ready(response)
    });

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let server = HttpServer::new(listener, service, HttpServerConfig::default());
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    let running = tokio::spawn(server.run(ctrl_c)); // until Ctrl-C, then drains for up to 30 s

    while !running.is_finished() {
        news.publish("data: hello\n\n"); // to all open streams
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}
