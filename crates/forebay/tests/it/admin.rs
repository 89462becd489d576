//! Admin address: metrics, status, probes and access control.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::scripted_upstream::ScriptedUpstream;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::HttpConnection;

/// Fails unless `promtool check metrics` accepts the page without a complaint.
pub(crate) fn check_metrics(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("promtool is installed (Debian: prometheus)");
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output_text.is_empty(), "{output_text}\n{text}");
}

#[tokio::test]
async fn the_health_metric_follows_the_configured_thresholds() {
    let origin = StreamingUpstream::start().await;
    let thresholds =
        [("FOREBAY_ADMISSION_DEGRADED_PERCENT", "25"), ("FOREBAY_ADMISSION_CRITICAL_PERCENT", "50")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "4"], &thresholds);
    let mut streams = Vec::new();
    for expected in ["healthy", "degraded", "critical", "critical", "exhausted"] {
        for state in ["healthy", "degraded", "critical", "exhausted"] {
            let is_set =
                gate.metric("forebay_admission_health_state", &[&format!("state=\"{state}\"")]).await;
            assert_eq!(is_set == 1.0, state == expected, "{state} with {} streams", streams.len());
        }
        if expected != "exhausted" {
            streams.push(open_stream(&gate, "/", &[]).await.unwrap());
        }
    }
}

#[tokio::test]
async fn the_metrics_pass_promtool() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &USERS);
    let stream = open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap();
    HttpConnection::fetch(gate.addr, "GET", "/", &["Host: another"], "").await; // refused: two hosts
    drop(stream);
    gate.wait_until_empty().await;
    let text = gate.metrics().await;
    check_metrics(&text);
    for name in [
        "forebay_gate_requests_total",
        "forebay_gate_refusals_total",
        "forebay_gate_upstream_head_seconds_bucket",
        "forebay_gate_upstream_connections",
        "forebay_http_connections",
        "forebay_http_events_total",
        "forebay_admission_active_streams",
        "forebay_admission_rejected_total",
        "forebay_quota_mode",
        "forebay_build_info",
        "process_open_fds",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "no {name} in\n{text}");
    }
    let family = |line: &str| line.split([' ', '{']).next().unwrap().to_owned();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = family(line);
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        let help = |name: &str| text.contains(&format!("# HELP {name} "));
        assert!(help(&name) || help(base), "{name} has no help");
    }
}

#[tokio::test]
async fn the_status_reports_routes_streams_and_limits() {
    let origin = StreamingUpstream::start().await;
    let args = ["--stream-route", "GET /stream", "--total", "7"];
    let gate = ForebayProcess::start_gate(&origin.url(), &args);
    let _stream = open_stream(&gate, "/stream", &["X-Thread-ID: thread-1"]).await.unwrap();
    let status = gate.status().await;
    assert_eq!(status["command"], "gate");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["gate"]["upstream"], origin.url());
    assert_eq!(status["gate"]["stream_routes"][0], "GET /stream");
    assert_eq!(status["gate"]["streams"], 1);
    assert_eq!(status["gate"]["upstream_connections"]["open"], 1);
    assert_eq!(status["statistics"]["max_connections"], 7);
    assert_eq!(status["statistics"]["redis_enabled"], false);
    assert_eq!(status["admission"]["streams"][0]["thread_id"], "thread-1");
    assert_eq!(status["admission"]["quota"]["mode"], "normal");
    assert_eq!(status["http"]["lean_streams"], 1);
}

#[tokio::test]
async fn the_admin_address_refuses_foreign_host_headers() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    let mut client = HttpConnection::connect(gate.admin).await;
    client.send("GET /v1/status HTTP/1.1\r\nHost: rebound.example\r\n\r\n").await;
    assert_eq!(client.response().await.head.status, 403);
}

#[tokio::test]
async fn unknown_admin_paths_and_methods_are_refused() {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    assert_eq!(gate.admin("/nothing").await.head.status, 404);
    let posted = HttpConnection::fetch(gate.admin, "POST", "/v1/status", &[], "").await;
    assert_eq!((posted.head.status, posted.head.header("allow")), (405, Some("GET, HEAD")));
    let _client = HttpConnection::get(gate.addr, "/healthz", &[]).await;
    assert!(
        origin.accept().await.head().await.text.starts_with("GET /healthz "),
        "on the client address, /healthz is passed to the upstream"
    );
}

#[tokio::test]
async fn with_an_admin_secret_only_probes_need_no_credentials() {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &[], &[("FOREBAY_ADMIN_SECRET", "s3cr3t")]);
    let send = async |method: &str, path: &str, lines: &[&str]| {
        HttpConnection::fetch(gate.admin, method, path, lines, "").await
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(send("GET", path, &[]).await.head.status, 200, "{path}");
    }
    for path in ["/", "/metrics", "/v1/status", "/nothing", "/v1/status?secret=s3cr3t", "//v1/status"] {
        let response = send("GET", path, &[]).await;
        assert_eq!(
            (response.head.status, &response.json()["error"]),
            (401, &"unauthorized".into()),
            "{path}"
        );
        assert_eq!(
            response.head.header("www-authenticate"),
            Some("Basic realm=\"forebay\", charset=\"UTF-8\"")
        );
        for wrong in ["Bearer s3cr3", "Bearer s3cr3tt", "Basic YW55OnMzY3IzdAo=", "Basic czNjcjN0"] {
            assert_eq!(
                send("GET", path, &[&format!("Authorization: {wrong}")]).await.head.status,
                401,
                "{wrong}"
            );
        }
    }
    let bearer = "Authorization: Bearer s3cr3t";
    assert_eq!(
        send("GET", "/v1/status", &[bearer, bearer]).await.head.status,
        401,
        "two Authorization headers are refused"
    );
    for right in [bearer, "Authorization: Basic YW55OnMzY3IzdA=="] {
        for path in ["/", "/metrics", "/v1/status"] {
            assert_eq!(send("GET", path, &[right]).await.head.status, 200, "{path}");
        }
    }
    assert!(!gate.log().contains("s3cr3t"));
}
