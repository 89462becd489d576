//! The gate in front of a FastAPI app on uvicorn, with httpx as client.

use std::process::Command;
use std::time::Duration;

use forebay_testkit::python;
use tokio::time::Instant;

use crate::forebay_process::ForebayProcess;
use crate::python_app::{PythonApp, script};
use crate::wire::HttpConnection;

/// Maximum time until the app detects a disconnect. On an idle machine it is below one second.
const CANCELLED_WITHIN: Duration = Duration::from_secs(20);

fn gate(app: &PythonApp) -> ForebayProcess {
    let routes = ["--stream-route", "POST /api/v1/stream", "--stream-route", "GET /live/*"];
    ForebayProcess::start_gate(
        &app.url(),
        &[&routes[..], &["--stream-route", "GET /slow-head/*", "--total", "10"]].concat(),
    )
}

/// Runs `drive.py` through the gate and returns the tokens that it printed.
async fn drive(gate: &ForebayProcess, name: &'static str, mode: &'static str) -> String {
    let base = format!("http://{}", gate.addr);
    let run =
        move || Command::new(python()).arg("-B").arg(script("drive.py")).args([&base, name, mode]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn tokens_reach_httpx_one_by_one() {
    let app = PythonApp::start();
    let gate = gate(&app);
    // The app sends a token only after the previous one was acknowledged, so a client that gets all
    // tokens got each of them without delay.
    assert_eq!(drive(&gate, "whole", "complete").await, "[1, 2, 3, 4, 5]");
    let state = app.state("whole").await;
    assert_eq!((&state["acknowledged"], &state["end"]), (&5.into(), &"complete".into()), "{state}");
    gate.wait_until_empty().await;
    assert_eq!(gate.status().await["http"]["lean_begun"], 1);
}

#[tokio::test]
async fn a_disconnect_of_httpx_reaches_the_app() {
    let app = PythonApp::start();
    let gate = gate(&app);
    assert_eq!(drive(&gate, "left", "leave").await, "[1, 2, 3]");
    let state = app.wait_for("left", "the end", |state| !state["end"].is_null()).await;
    assert_eq!((&state["end"], &state["sent"]), (&"cancelled".into(), &3.into()), "{state}");
    gate.wait_until_empty().await;
}

#[tokio::test]
async fn cancellation_reaches_the_app_at_every_stage() {
    let app = PythonApp::start();
    let gate = gate(&app);
    for (path, name) in [("/live/mid-body", "mid-body"), ("/slow-head/before-head", "before-head")] {
        let client = HttpConnection::get(gate.addr, path, &[]).await;
        app.wait_for(name, "the start", |state| state["sent"] == 1).await;
        let started = Instant::now();
        drop(client);
        let state = app.wait_for(name, "the end", |state| !state["end"].is_null()).await;
        let took = started.elapsed();
        assert_eq!(state["end"], "cancelled");
        assert!(took < CANCELLED_WITHIN, "{name}: {took:?}");
        eprintln!("{name}: cancelled in the app after {took:?}");
    }
    gate.wait_until_empty().await;
}
