//! An `EventSource` in headless Chromium, through the gate.

use serde_json::json;

use crate::chromium::Chromium;
use crate::forebay_process::ForebayProcess;
use crate::python_app::PythonApp;

#[tokio::test]
async fn an_event_source_receives_each_event_at_once_and_its_close_reaches_the_app() {
    let app = PythonApp::start();
    let gate = ForebayProcess::start_gate(&app.url(), &["--stream-route", "GET /live/*", "--total", "5"]);

    // Each event is acknowledged by a fetch before the app sends the next.
    let browser = Chromium::open(&format!("http://{}/page/whole", gate.addr), "whole");
    let state = app.wait_for("whole", "the browser's report", |state| !state["report"].is_null()).await;
    assert_eq!((&state["report"], &state["end"]), (&json!([1, 2, 3, 4, 5]), &"complete".into()), "{state}");
    drop(browser);

    let browser = Chromium::open(&format!("http://{}/page/closed?leave=3", gate.addr), "closed");
    let state = app.wait_for("closed", "the end", |state| !state["end"].is_null()).await;
    assert_eq!((&state["end"], &state["sent"]), (&"cancelled".into(), &3.into()), "{state}");
    // The browser still runs, so the gate becomes empty only if the close ended the stream.
    gate.wait_until_empty().await;
    let state = app.wait_for("closed", "the browser's report", |state| !state["report"].is_null()).await;
    assert_eq!(state["report"], json!([1, 2, 3]));
    drop(browser);
    // Both streams were lean: plain HTTP/1.1, each written by its own small task.
    assert_eq!(gate.status().await["http"]["lean_begun"], 2);
}
