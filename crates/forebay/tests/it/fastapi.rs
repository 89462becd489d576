//! The gate before a real FastAPI app on uvicorn, driven by httpx.

use std::process::Command;
use std::time::Duration;

use forebay_testkit::python;
use tokio::time::Instant;

use crate::gate::Gate;
use crate::python::{App, script};
use crate::wire::Client;

/// What the issue asks for is a second; a busy machine gets twenty.
const CANCELLED_WITHIN: Duration = Duration::from_secs(20);

fn gate(app: &App) -> Gate {
    let routes = ["--stream-route", "POST /api/v1/stream", "--stream-route", "GET /live/*"];
    Gate::start(&app.url(), &[&routes[..], &["--stream-route", "GET /slow-head/*", "--total", "10"]].concat())
}

async fn drive(gate: &Gate, name: &'static str, mode: &'static str) -> String {
    let base = format!("http://{}", gate.addr);
    let run =
        move || Command::new(python()).arg("-B").arg(script("drive.py")).args([&base, name, mode]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn tokens_arrive_one_by_one_at_httpx() {
    let app = App::start();
    let gate = gate(&app);
    // The app sends a token only after the one before was acknowledged: to get all is to get each in time.
    assert_eq!(drive(&gate, "whole", "complete").await, "[1, 2, 3, 4, 5]");
    let state = app.state("whole").await;
    assert_eq!((&state["acknowledged"], &state["end"]), (&5.into(), &"complete".into()), "{state}");
    gate.empty().await;
    assert_eq!(gate.status().await["http"]["lean_begun"], 1);
}

#[tokio::test]
async fn httpx_leaving_reaches_the_app() {
    let app = App::start();
    let gate = gate(&app);
    assert_eq!(drive(&gate, "left", "leave").await, "[1, 2, 3]");
    let state = app.wait_for("left", "the end", |state| !state["end"].is_null()).await;
    assert_eq!((&state["end"], &state["sent"]), (&"cancelled".into(), &3.into()), "{state}");
    gate.empty().await;
}

#[tokio::test]
async fn cancellation_reaches_the_app_at_every_stage() {
    let app = App::start();
    let gate = gate(&app);
    for (path, name) in [("/live/mid-body", "mid-body"), ("/slow-head/before-head", "before-head")] {
        let client = Client::get(gate.addr, path, &[]).await;
        app.wait_for(name, "the start", |state| state["sent"] == 1).await;
        let begun = Instant::now();
        drop(client);
        let state = app.wait_for(name, "the end", |state| !state["end"].is_null()).await;
        let took = begun.elapsed();
        assert_eq!(state["end"], "cancelled");
        assert!(took < CANCELLED_WITHIN, "{name}: {took:?}");
        eprintln!("{name}: the app knew after {took:?}");
    }
    gate.empty().await;
}
