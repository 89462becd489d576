//! WebSockets through the gate: the Python package `websockets` at both ends, and Chromium.

use std::process::Stdio;

use forebay_testkit::python;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::chromium::Chromium;
use crate::forebay_process::ForebayProcess;
use crate::python_app::{PythonApp, script};
use crate::streams::{BEARER, SECRET, end, list};
use crate::tls::CertificateFiles;
use crate::wire::{HttpConnection, until, within};

/// A running `ws_drive.py`; killed when dropped.
struct WebSocketClient {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl WebSocketClient {
    fn start(url: &str, mode: &str, certificate: Option<&str>) -> WebSocketClient {
        let mut process = Command::new(python())
            .arg("-B")
            .arg(script("ws_drive.py"))
            .args([url, mode])
            .args(certificate)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        WebSocketClient { _process: process, lines }
    }

    async fn line(&mut self) -> String {
        within("a line of ws_drive.py", self.lines.next_line()).await.unwrap().expect("a line")
    }

    /// Returns how the connection ended.
    async fn end(&mut self) -> Value {
        serde_json::from_str(&self.line().await).unwrap()
    }
}

fn url(gate: &ForebayProcess, path: &str) -> String {
    format!("ws://{}{path}", gate.addr)
}

/// Returns the number of WebSockets that are open at the service.
async fn open_sockets(app: &PythonApp) -> Vec<u8> {
    HttpConnection::fetch(app.addr(), "GET", "/open", &[], "").await.body
}

/// Routes of which none is that of the WebSocket: an upgrade takes a permit on every path.
const ROUTES: [&str; 2] = ["--stream-route", "GET /elsewhere"];

#[tokio::test]
async fn messages_of_many_sizes_are_echoed_and_the_close_code_passes() {
    let app = PythonApp::run("ws_app.py");
    let gate = ForebayProcess::start_gate(&app.url(), &ROUTES);
    let mut client = WebSocketClient::start(&url(&gate, "/echo"), "echo", None);
    assert_eq!(client.end().await, json!({"code": 3001, "reason": "done"}));
    gate.wait_until_empty().await;
    let status = gate.status().await;
    assert_eq!((&status["http"]["upgrade"], &status["http"]["upgraded_connections"]), (&1.into(), &0.into()));
    assert_eq!(gate.metric("forebay_gate_upgrades_ended_total", &["closed"]).await, 1.0);
    assert_eq!(gate.metric("forebay_gate_requests_total", &["kind=\"stream\"", "1xx"]).await, 1.0);
}

#[tokio::test]
async fn messages_pass_over_tls() {
    let (app, pair) = (PythonApp::run("ws_app.py"), CertificateFiles::new("websocket"));
    let (certificate, key) = (pair.certificate(), pair.key());
    let files = [
        ("FOREBAY_GATE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_GATE_TLS_KEY_FILE", key.to_str().unwrap()),
    ];
    let gate = ForebayProcess::start_gate_with(&app.url(), &ROUTES, &files);
    let url = format!("wss://localhost:{}/echo", gate.addr.port());
    let mut client = WebSocketClient::start(&url, "echo", Some(files[0].1));
    assert_eq!(client.end().await, json!({"code": 3001, "reason": "done"}));
    gate.wait_until_empty().await;
    assert_eq!(gate.status().await["http"]["upgrade"], 1);
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_response_and_a_full_gate_refuses_before_the_upgrade() {
    let app = PythonApp::run("ws_app.py");
    let gate = ForebayProcess::start_gate(&app.url(), &[&ROUTES[..], &["--total", "1"]].concat());
    let mut refused = WebSocketClient::start(&url(&gate, "/refused"), "hold", None);
    assert_eq!(refused.end().await, json!({"status": 403, "body": "not here"}));
    gate.wait_until_empty().await;

    let mut first = WebSocketClient::start(&url(&gate, "/echo"), "hold", None);
    assert_eq!(first.line().await, "OPEN");
    let status = gate.status().await;
    assert_eq!(
        (&status["gate"]["streams"], &status["statistics"]["total_connections"]),
        (&1.into(), &1.into())
    );
    let mut second = WebSocketClient::start(&url(&gate, "/echo"), "hold", None);
    assert_eq!(second.end().await["status"], 503);
    assert_eq!(open_sockets(&app).await, b"1", "the refused upgrade reached the service");

    // A client that is killed returns its permit.
    drop(first);
    gate.wait_until_empty().await;
    until("the service has no client", async || open_sockets(&app).await == b"0").await;
    let mut third = WebSocketClient::start(&url(&gate, "/echo"), "hold", None);
    assert_eq!(third.line().await, "OPEN");
}

#[tokio::test]
async fn a_killed_service_ends_its_websockets_and_returns_their_permits() {
    let app = PythonApp::run("ws_app.py");
    let gate = ForebayProcess::start_gate(&app.url(), &ROUTES);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = WebSocketClient::start(&url(&gate, "/echo"), "hold", None);
        assert_eq!(client.line().await, "OPEN");
        clients.push(client);
    }
    drop(app); // SIGKILL
    for mut client in clients {
        assert_eq!(client.end().await["code"], 1006, "without a close message");
    }
    gate.wait_until_empty().await;
    assert_eq!(gate.status().await["gate"]["upstream_connections"]["open"], 0);
}

#[tokio::test]
async fn an_operator_ends_a_websocket_at_both_sides_and_its_permit_is_free() {
    let app = PythonApp::run("ws_app.py");
    let args = [&ROUTES[..], &["--total", "1"]].concat();
    let gate = ForebayProcess::start_gate_with(&app.url(), &args, &[("FOREBAY_ADMIN_SECRET", SECRET)]);
    for round in 1..=2 {
        let mut client = WebSocketClient::start(&url(&gate, "/echo"), "hold", None);
        assert_eq!(client.line().await, "OPEN", "round {round}: the permit is free");
        let streams = list(&gate, "").await;
        assert_eq!((&streams["open"], open_sockets(&app).await), (&1.into(), b"1".to_vec()));
        let thread_id = streams["streams"][0]["thread_id"].as_str().unwrap();
        let report = end(&gate, thread_id, &[BEARER]).await.json();
        assert_eq!((&report["ended"], &report["ending"]), (&1.into(), &0.into()), "{report}");
        assert_eq!(list(&gate, "").await["open"], 0, "before the response to the operator");
        assert_eq!(client.end().await["code"], 1006, "without a close message");
        until("the service has no client", async || open_sockets(&app).await == b"0").await;
    }
    let lines = [
        "forebay_gate_upgrades_ended_total{end=\"aborted\"} 2",
        "forebay_gate_outcomes_total{kind=\"stream\",outcome=\"cancelled\"} 2",
        "forebay_admission_ended_total 2",
        "forebay_admission_active_streams 0",
    ];
    until("the metrics have both ends", async || {
        let metrics = HttpConnection::fetch(gate.admin, "GET", "/metrics", &[BEARER], "").await;
        let metrics = String::from_utf8(metrics.body).unwrap();
        lines.iter().all(|line| metrics.lines().any(|found| found == *line))
    })
    .await;
}

#[tokio::test]
async fn a_browser_exchanges_messages_and_its_sudden_end_returns_the_permit() {
    let app = PythonApp::run("ws_app.py");
    let gate = ForebayProcess::start_gate(&app.url(), &ROUTES);
    let received = json!(["one", [0, 255, 128], "", "large"]);
    let browser = Chromium::open(&format!("http://{}/page", gate.addr), "websocket");
    browser.wait_until("window.report.code > 0").await;
    let report = browser.evaluate("window.report");
    let expected = json!({"received": received, "code": 3001, "reason": "done", "wasClean": true});
    assert_eq!(report, expected);
    gate.wait_until_empty().await;

    browser.go(&format!("http://{}/page?stay", gate.addr));
    browser.wait_until("location.search === '?stay' && window.report.received.length === 4").await;
    assert_eq!(browser.evaluate("window.report"), json!({"received": received}));
    assert_eq!(gate.status().await["gate"]["streams"], 1);
    drop(browser); // SIGKILL, during the WebSocket
    gate.wait_until_empty().await;
    until("the service has no client", async || open_sockets(&app).await == b"0").await;
}
