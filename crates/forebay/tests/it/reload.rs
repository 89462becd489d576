//! SIGHUP: which settings are reloaded, and which need a restart.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::forebay_process::{ForebayProcess, forebay};
use crate::limits::open_stream;
use crate::serve::support::ServeFixture;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

/// Folder with the settings of one test; removed when dropped.
struct ConfigFolder(PathBuf);

impl ConfigFolder {
    fn new(name: &str) -> ConfigFolder {
        let dir = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        ConfigFolder(dir)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for ConfigFolder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the SHA-256 of a key in hex, like `printf %s KEY | sha256sum`.
fn hash(key: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn limits_secrets_and_keys_are_reloaded_and_other_changes_are_logged() {
    let (origin, folder) = (StreamingUpstream::start().await, ConfigFolder::new("reload"));
    let keys = folder.write("api.keys", &format!("{} ada\n", hash("key-of-ada")));
    let settings = |total: u32, secret: &str, more: &str| {
        let text = format!(
            "[admission]\ntotal = {total}\n[admin]\n{secret}\n[identity]\napi_keys_file = {keys:?}\n[gate]\n{more}\n"
        );
        folder.write("gate.toml", &text)
    };
    let path = settings(1, "secret = \"first-s3cret\"", "");
    let gate = ForebayProcess::start_gate(&origin.url(), &["--config", &path]);
    let is_open = async |secret: &str| {
        let line = format!("Authorization: Bearer {secret}");
        HttpConnection::fetch(gate.admin, "GET", "/v1/status", &[&line], "").await.head.status == 200
    };
    let lines = |message: &str| gate.log().lines().filter(|line| line.contains(message)).count();
    let reload = async |message: &str, count: usize| {
        gate.signal(Signal::HUP);
        until(message, async || lines(message) == count).await;
    };
    const RELOADED: &str = "settings reloaded";
    let stream = open_stream(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap();
    assert_eq!(open_stream(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap_err().head.status, 503);
    assert!(is_open("first-s3cret").await);

    settings(3, "secret = \"second-s3cret\"", "host = \"upstream\"");
    folder.write("api.keys", &format!("{} bob\n", hash("key-of-bob")));
    reload(RELOADED, 1).await;
    let changed = gate.wait_for_log(RELOADED)["changed"].clone();
    assert_eq!(changed, "admin.secret admission.total");
    let later = gate.wait_for_log("settings not applied: restart required")["keys"].clone();
    assert_eq!(later, "gate.host");
    assert!(is_open("second-s3cret").await && !is_open("first-s3cret").await);
    assert_eq!(open_stream(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap_err().head.status, 401);
    let another = open_stream(&gate, "/", &["X-API-Key: key-of-bob"]).await.unwrap();

    // Invalid settings change nothing.
    settings(0, "secret = \"third-s3cret\"", "");
    reload("settings not reloaded: previous settings kept", 1).await;
    assert!(is_open("second-s3cret").await && !is_open("third-s3cret").await);
    // A reload never removes access control.
    settings(3, "listen = \"off\"", "");
    reload(RELOADED, 2).await;
    assert!(is_open("second-s3cret").await && !is_open("").await, "a secret is removed only by a restart");
    let log = gate.log();
    assert!(log.contains("\"keys\":\"admin.secret\""), "the flag overrides `listen` of the file: {log}");
    for value in ["s3cret", "key-of", &hash("key-of-bob")] {
        assert!(!log.contains(value), "{value} is in {log}");
    }
    assert_eq!(origin.open(), 2, "a stream was cut");
    drop((stream, another));
}

#[tokio::test]
async fn stage_lines_appear_at_info_after_a_reload() {
    let (origin, folder) = (StreamingUpstream::start().await, ConfigFolder::new("stages"));
    let settings = |level: &str| {
        folder.write("gate.toml", &format!("[admission]\ntotal = 1\n[log]\nstages = {level:?}\n"))
    };
    let gate = ForebayProcess::start_gate(&origin.url(), &["--config", &settings("debug")]);
    let visit = async |thread: &str| {
        let line = format!("X-Thread-ID: {thread}");
        let stream = open_stream(&gate, "/", &[&line]).await.unwrap();
        assert_eq!(open_stream(&gate, "/", &[&format!("{line}-2")]).await.unwrap_err().head.status, 503);
        drop(stream);
        gate.wait_until_empty().await;
    };
    // Returns level, stage and `used` of each line about a stream.
    let lines = |thread: &str| -> Vec<(String, String, Option<u64>)> {
        let log = gate.log();
        let events = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let of_thread = events.filter(|event| event["thread_id"] == thread);
        of_thread
            .map(|event| (text(&event["level"]), text(&event["stage"]), event["used"].as_u64()))
            .collect()
    };
    let stages = |thread: &str| lines(thread).into_iter().map(|(_, stage, _)| stage).collect::<Vec<_>>();
    visit("before").await;
    until("the refusal is logged", async || !lines("before-2").is_empty()).await;
    assert_eq!((stages("before"), stages("before-2")), (vec![], vec!["CP.1.2".to_owned()]));

    settings("info");
    gate.signal(Signal::HUP);
    assert_eq!(gate.wait_for_log("settings reloaded")["changed"], "log.stages");
    visit("after").await;
    until("the last stage is logged", async || lines("after").len() == 5).await;
    until("the refusal is logged", async || lines("after-2").len() == 3).await;
    assert_eq!(stages("after"), ["CP.1", "CP.1.1", "CP.1.4", "CP.4", "CP.4.1"]);
    assert!(lines("after").iter().all(|(level, ..)| level == "INFO"), "{:?}", lines("after"));
    let refused: Vec<_> = lines("after-2")
        .into_iter()
        .map(|(level, stage, used)| format!("{level} {stage} {used:?}"))
        .collect();
    assert_eq!(refused, ["INFO CP.1 None", "INFO CP.1.1 Some(1)", "WARN CP.1.2 None"]);
}

#[tokio::test]
async fn a_header_that_is_a_label_has_no_keys_before_a_restart() {
    let (origin, folder) = (StreamingUpstream::start().await, ConfigFolder::new("label"));
    let settings = |key: &str, identity: &str, gate: &str| {
        let file = folder.write("api.keys", &format!("{} ada\n", hash(key)));
        let text = format!("[identity]\napi_keys_file = {file:?}\n{identity}\n[gate]\n{gate}\n");
        folder.write("gate.toml", &text)
    };
    let start = settings("key-0", "", "metric_labels = [\"k=x-my-id\"]");
    let gate = ForebayProcess::start_gate(&origin.url(), &["--config", &start]);
    settings("key-1", "api_key_header = \"x-my-id\"", "");
    gate.signal(Signal::HUP);
    let later = gate.wait_for_log("settings not applied: restart required")["keys"].clone();
    assert_eq!(later, "gate.metric_labels identity.api_key_header");
    for (line, status) in [("X-API-Key: key-0", 401), ("X-API-Key: key-1", 200)] {
        let opened = open_stream(&gate, "/", &[line]).await;
        assert_eq!(opened.map_or_else(|refusal| refusal.head.status, |_| 200), status, "{line}");
    }
}

#[tokio::test]
async fn keys_are_reloaded_even_if_other_changes_need_a_restart() {
    let (origin, folder) = (StreamingUpstream::start().await, ConfigFolder::new("rotation"));
    let settings = |key: &str, identity: &str, gate: &str| {
        let file = folder.write("api.keys", &format!("{} ada\n", hash(key)));
        let text = format!("[identity]\napi_keys_file = {file:?}\n{identity}\n[gate]\n{gate}\n");
        folder.write("gate.toml", &text)
    };
    let gate = ForebayProcess::start_gate(&origin.url(), &["--config", &settings("key-0", "", "")]);
    let status = async |key: &str| match open_stream(&gate, "/", &[&format!("X-API-Key: {key}")]).await {
        Ok(_) => 200,
        Err(refusal) => refusal.head.status,
    };
    assert_eq!(status("key-0").await, 200);
    const NEEDS_RESTART: &str = "settings not applied: restart required";
    let proxies = "trusted_proxies = [\"10.0.0.0/8\"]\nforwarded_by = \"forwarded\"";
    for (old, new, identity, more, named) in [
        ("key-0", "key-1", "", proxies, "gate.forwarded_by gate.trusted_proxies"),
        ("key-1", "key-2", "by_address = true", "", "identity.by_address"),
    ] {
        settings(new, identity, more);
        gate.signal(Signal::HUP);
        let line = format!("\"keys\":\"{named}\"");
        until(named, async || {
            gate.log().lines().any(|logged| logged.contains(NEEDS_RESTART) && logged.contains(&line))
        })
        .await;
        assert_eq!((status(old).await, status(new).await), (401, 200), "{named}");
    }
}

const FILTER_REPLACED: &str = "log filter replaced";
/// Logged at level `debug` for each request whose upstream is unreachable.
const REQUEST_FAILED: &str = "upstream request failed";
const UNREACHABLE: &str = "http://127.0.0.1:9";

#[tokio::test]
async fn sighup_changes_the_log_filter_of_the_gate() {
    let folder = ConfigFolder::new("filter");
    let settings = |filter: &str| folder.write("gate.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let gate = ForebayProcess::start_gate(UNREACHABLE, &["--config", &path]);
    let lines = |message: &str| gate.log().lines().filter(|line| line.contains(message)).count();
    // The log line of a request is written before its response.
    let send_request =
        async || assert_eq!(HttpConnection::fetch(gate.addr, "GET", "/", &[], "").await.head.status, 502);
    let reload = async |message: &str, count: usize| {
        gate.signal(Signal::HUP);
        until(message, async || lines(message) == count).await;
    };
    send_request().await;
    settings("debug");
    reload(FILTER_REPLACED, 1).await;
    assert_eq!(lines(REQUEST_FAILED), 0);
    assert_eq!(gate.wait_for_log("settings reloaded")["changed"], "log.filter");
    send_request().await;
    gate.wait_for_log(REQUEST_FAILED);

    settings("forebay_serve=loud");
    reload("settings not reloaded: previous settings kept", 1).await;
    send_request().await;
    until("a second line", async || lines(REQUEST_FAILED) == 2).await;

    settings("error");
    reload(FILTER_REPLACED, 2).await;
    send_request().await;
    // The change from `error` to `info` is logged too.
    settings("info");
    reload(FILTER_REPLACED, 3).await;
    send_request().await;
    settings("warn");
    reload(FILTER_REPLACED, 4).await;
    assert_eq!(lines(REQUEST_FAILED), 2);
}

#[tokio::test]
async fn sighup_changes_the_log_filter_in_text_format() {
    let folder = ConfigFolder::new("filter-text");
    let settings = |filter: &str| folder.write("gate.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let args =
        ["gate", "--listen", "127.0.0.1:0", "--admin", "off", "--upstream", UNREACHABLE, "--config", &path];
    let mut gate = forebay(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(gate.stderr.take().unwrap()).lines().map_while(Result::ok);
    let listens = lines.find(|line| line.contains("gate listening")).unwrap();
    let address = listens.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    settings("debug");
    kill_process(Pid::from_child(&gate), Signal::HUP).unwrap();
    lines.find(|line| line.contains(FILTER_REPLACED)).unwrap();
    assert_eq!(HttpConnection::fetch(address, "GET", "/", &[], "").await.head.status, 502);
    lines.find(|line| line.contains("DEBUG") && line.contains(REQUEST_FAILED)).unwrap();
    gate.kill().unwrap();
    gate.wait().unwrap();
}

#[tokio::test]
async fn sighup_changes_the_log_filter_of_serve() {
    let (fixture, folder) =
        (ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)"), ConfigFolder::new("filter-serve"));
    let settings = |filter: &str| folder.write("serve.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let serve = fixture.serve_with_args(&["--config", &path]).await;
    let send_invalid_request = async || {
        let mut client = HttpConnection::connect(serve.addr).await;
        client.send("no request\r\n\r\n").await;
        client.rest().await;
    };
    send_invalid_request().await;
    // Before the signal: once the filter is replaced, any task may log a DEBUG line.
    assert!(!serve.log().contains("\"DEBUG\""));
    settings("debug");
    serve.signal(Signal::HUP);
    serve.wait_for_log(FILTER_REPLACED);
    send_invalid_request().await;
    serve.wait_for_log("connection failed");
}
