//! Starting, and what is said when it can't be.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::gate::{Gate, forebay};
use crate::limits::open;
use crate::origin::Streams;

fn run(args: &[&str]) -> Output {
    forebay(args).output().unwrap()
}

#[track_caller]
fn complains(args: &[&str], code: i32, parts: &[&str]) {
    let output = run(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

pub(crate) fn write(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn help_is_enough_to_start() {
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
fn the_example_that_it_prints_is_a_file_that_it_takes() {
    let example = String::from_utf8(run(&["gate", "--example-config"]).stdout).unwrap();
    let path = write("example.toml", &example);
    // It gets as far as to listen, which the address keeps it from.
    let args = ["gate", "--config", path.to_str().unwrap(), "--listen", "192.0.2.1:1", "--admin", "off"];
    complains(&args, 1, &["192.0.2.1"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_port_that_is_taken_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let upstream = ["gate", "--upstream", "http://127.0.0.1:1"];
    let listen = [&upstream[..], &["--listen", &address, "--admin", "off"]].concat();
    complains(&listen, 1, &[&address, "another program uses that port", "--listen"]);
    let admin = [&upstream[..], &["--listen", "127.0.0.1:0", "--admin", &address]].concat();
    complains(&admin, 1, &[&address, "--admin"]);
    let absent = [&upstream[..], &["--listen", "192.0.2.1:0", "--admin", "off"]].concat();
    complains(&absent, 1, &["192.0.2.1", "no such address"]);
}

#[test]
fn bad_settings_are_named_with_what_to_write() {
    complains(&["gate"], 2, &["gate.upstream is missing", "--upstream http://"]);
    complains(
        &["gate", "--upstream", "localhost:8000"],
        2,
        &["gate.upstream", "from --upstream", "http://127"],
    );
    complains(&["gate", "--upstream", "http://a", "--redis", "http://b"], 2, &["redis.url", "redis://"]);
    let secret = ["gate", "--upstream", "http://a", "--redis", "redis://:s3cr3t@b:x"];
    assert!(!String::from_utf8_lossy(&run(&secret).stderr).contains("s3cr3t"));
    let file = write("secret.toml", "[redis]\nurl = redis://:s3cr3t@b\n");
    let said = run(&["gate", "--upstream", "http://a", "--config", file.to_str().unwrap()]).stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("line 2, column 7") && !said.contains("s3cr3t"), "{said}");
    std::fs::remove_file(file).unwrap();
    complains(
        &["gate", "--upstream", "http://a", "--config", "/nowhere.toml"],
        2,
        &["/nowhere.toml", "--config"],
    );
    complains(&["gate", "--upsteam", "http://a"], 2, &["--upsteam", "--upstream"]);
    complains(&["gate", "--upstream", "http://a", "--admin", "0.0.0.0:1"], 2, &["--insecure-admin"]);
    complains(&["gate", "--upstream", "http://a", "--total", "0"], 2, &["admission.total", "at least 1"]);
}

#[test]
fn a_wrong_key_in_the_file_is_named_with_its_line() {
    let path = write("typo.toml", "[gate]\nupstream = \"http://a\"\nstream_route = []\n");
    let file = path.to_str().unwrap();
    complains(
        &["gate", "--config", file],
        2,
        &[file, "line 3", "stream_route", "did you mean `stream_routes`?"],
    );
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_route_of_a_class_that_nobody_knows_is_named_with_what_was_meant() {
    let text = "[gate]\nupstream = \"http://127.0.0.1:1\"\nstream_routes = [\"GET /report bacth\"]\n\
                [admission]\nclass_percent = { batch = 50 }\n";
    let path = write("class.toml", text);
    let file = path.to_str().unwrap();
    complains(
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
fn keys_that_can_not_be_read_are_named() {
    let settings = |text: &str| {
        write("identity.toml", &format!("[gate]\nupstream = \"http://127.0.0.1:1\"\n[identity]\n{text}\n"))
    };
    let short = write("short.key", "too short\n");
    let path = settings(&format!("jwt_secret_file = {short:?}"));
    complains(&["gate", "--config", path.to_str().unwrap()], 2, &["identity.jwt_secret_file", "32"]);
    let keys = write("api.keys", "# comment\n\nnot-a-hash ada\n");
    let path = settings(&format!("api_keys_file = {keys:?}"));
    complains(&["gate", "--config", path.to_str().unwrap()], 2, &["identity.api_keys_file", "line 3"]);
    let path = settings("user_header = \"X-User-ID\"");
    complains(&["gate", "--config", path.to_str().unwrap()], 2, &["trusted_proxies"]);
    for path in [path, short, keys] {
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test]
async fn the_largest_numbers_that_may_be_set_serve() {
    let origin = Streams::start().await;
    let most = [
        "FOREBAY_HTTP_MAX_CONNECTIONS",
        "FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS",
        "FOREBAY_GATE_UPSTREAM_MAX_IDLE",
        "FOREBAY_ADMISSION_TOTAL",
        "FOREBAY_ADMISSION_PER_USER",
        "FOREBAY_ADMISSION_MAX_WAITING",
        "FOREBAY_ADMISSION_MAX_WAITING_PER_USER",
    ]
    .map(|name| (name, "4294967295"));
    let days = [
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
    let gate = Gate::start_with(&origin.url(), &[], &[&most[..], &days, &bounded].concat());
    open(&gate, "/", &[]).await.unwrap();
    gate.status().await;
}

#[tokio::test]
async fn a_total_beyond_the_connections_is_warned_of() {
    let origin = Streams::start().await;
    for (variable, key) in [
        ("FOREBAY_HTTP_MAX_CONNECTIONS", "http.max_connections"),
        ("FOREBAY_GATE_UPSTREAM_MAX_CONNECTIONS", "gate.upstream_max_connections"),
    ] {
        let gate = Gate::start_with(&origin.url(), &["--total", "6"], &[(variable, "5")]);
        let warning = gate.wait_for_log("stream total unreachable: each stream takes a connection");
        assert_eq!((&warning["key"], &warning["level"]), (&key.into(), &"WARN".into()), "{warning}");
        let gate = Gate::start_with(&origin.url(), &["--total", "5"], &[(variable, "5")]);
        assert!(!gate.log().contains("can't be reached"), "{}", gate.log());
    }
}

#[tokio::test]
async fn the_file_gives_way_to_the_environment_and_both_to_flags() {
    let origin = Streams::start().await;
    let text =
        format!("[gate]\nupstream = {:?}\n[admission]\ntotal = 1\nper_user = 1\n", "http://192.0.2.1:9");
    let path = write("layers.toml", &text);
    let args = ["--config", path.to_str().unwrap(), "--per-user", "9"];
    let settings = [("FOREBAY_ADMISSION_TOTAL", "2"), ("FOREBAY_ADMISSION_PER_USER", "8")];
    let gate = Gate::start_with(&origin.url(), &args, &settings);
    let limits = &gate.status().await["admission"]["limits"];
    assert_eq!((&limits["total"], &limits["per_user"]), (&2.into(), &9.into()));
    open(&gate, "/", &[]).await.unwrap();
    std::fs::remove_file(path).unwrap();
}
