//! Start of the gate, and the errors if it fails.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::forebay_process::{ForebayProcess, forebay};
use crate::limits::open_stream;
use crate::streaming_upstream::StreamingUpstream;

fn run(args: &[&str]) -> Output {
    forebay(args).output().unwrap()
}

/// Fails unless the program exits with `code` and prints all `parts`.
#[track_caller]
fn assert_fails(args: &[&str], code: i32, parts: &[&str]) {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
    }
}

/// Writes a file with a unique name, and returns its path.
pub(crate) fn write_temp_file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn the_help_names_everything_needed_to_start() {
    let output = run(&["gate", "--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["--upstream", "--stream-route", "--redis", "FOREBAY_", "Examples:", "/readyz", "SIGTERM", "8081"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(run(&["--version"]).status.success());
}

#[test]
fn the_printed_example_config_is_accepted() {
    let example = String::from_utf8(run(&["gate", "--example-config"]).stdout).unwrap();
    let path = write_temp_file("example.toml", &example);
    // The program accepts the file and fails only because the address can't be bound.
    let args = ["gate", "--config", path.to_str().unwrap(), "--listen", "192.0.2.1:1", "--admin", "off"];
    assert_fails(&args, 1, &["192.0.2.1"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_address_that_cannot_be_bound_is_reported_with_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let upstream = ["gate", "--upstream", "http://127.0.0.1:1"];
    let listen = [&upstream[..], &["--listen", &address, "--admin", "off"]].concat();
    assert_fails(&listen, 1, &[&address, "another program uses that port", "--listen"]);
    let admin = [&upstream[..], &["--listen", "127.0.0.1:0", "--admin", &address]].concat();
    assert_fails(&admin, 1, &[&address, "--admin"]);
    let absent = [&upstream[..], &["--listen", "192.0.2.1:0", "--admin", "off"]].concat();
    assert_fails(&absent, 1, &["192.0.2.1", "no such address"]);
}

#[test]
fn invalid_settings_are_reported_with_the_expected_form() {
    assert_fails(&["gate"], 2, &["gate.upstream is missing", "--upstream http://"]);
    assert_fails(
        &["gate", "--upstream", "localhost:8000"],
        2,
        &["gate.upstream", "from --upstream", "http://127"],
    );
    assert_fails(&["gate", "--upstream", "http://a", "--redis", "http://b"], 2, &["redis.url", "redis://"]);
    let secret = ["gate", "--upstream", "http://a", "--redis", "redis://:s3cr3t@b:x"];
    assert!(!String::from_utf8_lossy(&run(&secret).stderr).contains("s3cr3t"));
    let file = write_temp_file("secret.toml", "[redis]\nurl = redis://:s3cr3t@b\n");
    let stderr = run(&["gate", "--upstream", "http://a", "--config", file.to_str().unwrap()]).stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("line 2, column 7") && !stderr.contains("s3cr3t"), "{stderr}");
    std::fs::remove_file(file).unwrap();
    assert_fails(
        &["gate", "--upstream", "http://a", "--config", "/nowhere.toml"],
        2,
        &["/nowhere.toml", "--config"],
    );
    assert_fails(&["gate", "--upsteam", "http://a"], 2, &["--upsteam", "--upstream"]);
    assert_fails(&["gate", "--upstream", "http://a", "--admin", "0.0.0.0:1"], 2, &["--insecure-admin"]);
    assert_fails(&["gate", "--upstream", "http://a", "--total", "0"], 2, &["admission.total", "at least 1"]);
}

#[test]
fn an_unknown_key_in_the_file_is_reported_with_its_line() {
    let path = write_temp_file("typo.toml", "[gate]\nupstream = \"http://a\"\nstream_route = []\n");
    let file = path.to_str().unwrap();
    assert_fails(
        &["gate", "--config", file],
        2,
        &[file, "line 3", "stream_route", "did you mean `stream_routes`?"],
    );
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_unknown_class_of_a_route_is_reported_with_a_suggestion() {
    let text = "[gate]\nupstream = \"http://127.0.0.1:1\"\nstream_routes = [\"GET /report bacth\"]\n\
                [admission]\nclass_percent = { batch = 50 }\n";
    let path = write_temp_file("class.toml", text);
    let file = path.to_str().unwrap();
    assert_fails(
        &["gate", "--config", file],
        2,
        &[
            "gate.stream_routes",
            "GET /report bacth",
            file,
            "did you mean `batch`?",
            "admission.class_percent",
        ],
    );
    std::fs::remove_file(path).unwrap();
}

#[test]
fn unusable_identity_settings_are_reported() {
    let settings = |text: &str| {
        write_temp_file(
            "identity.toml",
            &format!("[gate]\nupstream = \"http://127.0.0.1:1\"\n[identity]\n{text}\n"),
        )
    };
    let short = write_temp_file("short.key", "too short\n");
    let path = settings(&format!("jwt_secret_file = {short:?}"));
    assert_fails(&["gate", "--config", path.to_str().unwrap()], 2, &["identity.jwt_secret_file", "32"]);
    let keys = write_temp_file("api.keys", "# comment\n\nnot-a-hash ada\n");
    let path = settings(&format!("api_keys_file = {keys:?}"));
    assert_fails(&["gate", "--config", path.to_str().unwrap()], 2, &["identity.api_keys_file", "line 3"]);
    let path = settings("user_header = \"X-User-ID\"");
    assert_fails(&["gate", "--config", path.to_str().unwrap()], 2, &["trusted_proxies"]);
    for path in [path, short, keys] {
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn the_largest_allowed_settings_work() {
    let origin = StreamingUpstream::start().await;
    let largest_counts = [
        "FOREBAY_HTTP_MAX_CONNECTIONS",
        "FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS",
        "FOREBAY_GATE_UPSTREAM_MAX_IDLE",
        "FOREBAY_ADMISSION_TOTAL",
        "FOREBAY_ADMISSION_PER_USER",
        "FOREBAY_ADMISSION_MAX_WAITING",
        "FOREBAY_ADMISSION_MAX_WAITING_PER_USER",
    ]
    .map(|name| (name, "4294967295"));
    let longest_timeouts = [
        "FOREBAY_GATE_CONNECT_TIMEOUT_MS",
        "FOREBAY_GATE_RESPONSE_TIMEOUT_MS",
        "FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS",
        "FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS",
        "FOREBAY_GATE_DRAIN_TIMEOUT_MS",
        "FOREBAY_HTTP_HEADER_TIMEOUT_MS",
        "FOREBAY_HTTP_WRITE_TIMEOUT_MS",
        "FOREBAY_HTTP_IDLE_TIMEOUT_MS",
        "FOREBAY_ADMISSION_WAIT_MS",
    ]
    .map(|name| (name, "86400000"));
    let bounded = [("FOREBAY_HTTP_MAX_HEADERS", "1024"), ("FOREBAY_HTTP_MAX_HEADER_BYTES", "16777216")];
    let gate = ForebayProcess::start_gate_with(
        &origin.url(),
        &[],
        &[&largest_counts[..], &longest_timeouts, &bounded].concat(),
    );
    open_stream(&gate, "/", &[]).await.unwrap();
    gate.status().await;
}

#[tokio::test]
async fn a_total_above_a_connection_limit_is_logged() {
    let origin = StreamingUpstream::start().await;
    for (variable, key) in [
        ("FOREBAY_HTTP_MAX_CONNECTIONS", "http.max_connections"),
        ("FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS", "gate.upstream_max_connections"),
    ] {
        let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "6"], &[(variable, "5")]);
        let warning = gate.wait_for_log("stream total unreachable: each stream takes a connection");
        assert_eq!((&warning["key"], &warning["level"]), (&key.into(), &"WARN".into()), "{warning}");
        let gate = ForebayProcess::start_gate_with(&origin.url(), &["--total", "5"], &[(variable, "5")]);
        assert!(!gate.log().contains("can't be reached"), "{}", gate.log());
    }
}

#[tokio::test]
async fn flags_override_variables_and_variables_override_the_file() {
    let origin = StreamingUpstream::start().await;
    let text =
        format!("[gate]\nupstream = {:?}\n[admission]\ntotal = 1\nper_user = 1\n", "http://192.0.2.1:9");
    let path = write_temp_file("layers.toml", &text);
    let args = ["--config", path.to_str().unwrap(), "--per-user", "9"];
    let settings = [("FOREBAY_ADMISSION_TOTAL", "2"), ("FOREBAY_ADMISSION_PER_USER", "8")];
    let gate = ForebayProcess::start_gate_with(&origin.url(), &args, &settings);
    let limits = &gate.status().await["admission"]["limits"];
    assert_eq!((&limits["total"], &limits["per_user"]), (&2.into(), &9.into()));
    open_stream(&gate, "/", &[]).await.unwrap();
    std::fs::remove_file(path).unwrap();
}
