//! Peer `axum`: the server of `ours.rs` in idiomatic axum, with `Sse` over tokio's broadcast
//! channel.

use std::convert::Infallible;

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use futures_util::stream::{Stream, unfold};
use tokio::net::TcpListener;
use tokio::sync::broadcast::{Sender, channel};

use crate::harness::ExperimentReport;
use crate::helper_process;

pub(crate) const NAME: &str = "axum";

/// Serves until the race releases this process.
pub(crate) fn serve() -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        helper_process::announce(&format!("listening {}", listener.local_addr()?))?;
        let listener = listener.tap_io(|socket| {
            let _ = socket.set_nodelay(true); // fails only if the client is gone
        });
        let router = Router::new()
            .route("/events", get(events))
            .route("/publish", post(publish))
            .with_state(channel::<String>(16).0);
        tokio::select! {
            served = axum::serve(listener, router) => served?,
            () = helper_process::released() => {}
        }
        Ok(ExperimentReport::new("served"))
    })
}

async fn events(State(topic): State<Sender<String>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(unfold(topic.subscribe(), async |mut tail| {
        let text = tail.recv().await.ok()?;
        Some((Ok(Event::default().data(text)), tail))
    }))
}

async fn publish(State(topic): State<Sender<String>>, text: String) {
    let _ = topic.send(text); // fails only without subscribers
}
