//! SIGHUP: what is read again, and what only after a restart.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::gate::{Gate, forebay};
use crate::limits::open;
use crate::origin::Streams;
use crate::serve::support::ServeFixture;
use crate::wire::{Client, until};

/// A folder of the test's own; gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// `printf %s KEY | sha256sum`
fn hash(key: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn limits_secrets_and_keys_are_read_again_and_the_rest_is_named() {
    let (origin, folder) = (Streams::start().await, Folder::new("reload"));
    let keys = folder.write("api.keys", &format!("{} ada\n", hash("key-of-ada")));
    let settings = |total: u32, secret: &str, more: &str| {
        let text = format!(
            "[admission]\ntotal = {total}\n[admin]\n{secret}\n[identity]\napi_keys_file = {keys:?}\n[gate]\n{more}\n"
        );
        folder.write("gate.toml", &text)
    };
    let path = settings(1, "secret = \"first-s3cret\"", "");
    let gate = Gate::start(&origin.url(), &["--config", &path]);
    let is_open = async |secret: &str| {
        let line = format!("Authorization: Bearer {secret}");
        Client::ask(gate.admin, "GET", "/v1/status", &[&line], "").await.head.status == 200
    };
    let lines = |message: &str| gate.log().lines().filter(|line| line.contains(message)).count();
    let reload = async |message: &str, count: usize| {
        gate.signal(Signal::HUP);
        until(message, async || lines(message) == count).await;
    };
    const AGAIN: &str = "the settings were read again";
    let stream = open(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap();
    assert_eq!(open(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap_err().head.status, 503);
    assert!(is_open("first-s3cret").await);

    settings(3, "secret = \"second-s3cret\"", "host = \"upstream\"");
    folder.write("api.keys", &format!("{} bob\n", hash("key-of-bob")));
    reload(AGAIN, 1).await;
    let changed = gate.wait_for_log(AGAIN)["changed"].clone();
    assert_eq!(changed, "admin.secret admission.total");
    let later = gate.wait_for_log("settings have changed that hold only after a restart")["keys"].clone();
    assert_eq!(later, "gate.host");
    assert!(is_open("second-s3cret").await && !is_open("first-s3cret").await);
    assert_eq!(open(&gate, "/", &["X-API-Key: key-of-ada"]).await.unwrap_err().head.status, 401);
    let another = open(&gate, "/", &["X-API-Key: key-of-bob"]).await.unwrap();

    // What can't be used changes nothing.
    settings(0, "secret = \"third-s3cret\"", "");
    reload("the settings can't be read again: all stays as it was", 1).await;
    assert!(is_open("second-s3cret").await && !is_open("third-s3cret").await);
    // And no reload opens what was closed.
    settings(3, "listen = \"off\"", "");
    reload(AGAIN, 2).await;
    assert!(is_open("second-s3cret").await && !is_open("").await, "a secret goes only with a restart");
    let log = gate.log();
    assert!(log.contains("\"keys\":\"admin.secret\""), "a flag is stronger than the file's listen: {log}");
    for value in ["s3cret", "key-of", &hash("key-of-bob")] {
        assert!(!log.contains(value), "{value} is in {log}");
    }
    assert_eq!(origin.open(), 2, "open streams went on");
    drop((stream, another));
}

#[tokio::test]
async fn keys_are_rotated_though_something_beside_them_needs_a_restart() {
    let (origin, folder) = (Streams::start().await, Folder::new("rotation"));
    let settings = |key: &str, identity: &str, gate: &str| {
        let file = folder.write("api.keys", &format!("{} ada\n", hash(key)));
        let text = format!("[identity]\napi_keys_file = {file:?}\n{identity}\n[gate]\n{gate}\n");
        folder.write("gate.toml", &text)
    };
    let gate = Gate::start(&origin.url(), &["--config", &settings("key-0", "", "")]);
    let status = async |key: &str| match open(&gate, "/", &[&format!("X-API-Key: {key}")]).await {
        Ok(_) => 200,
        Err(refusal) => refusal.head.status,
    };
    assert_eq!(status("key-0").await, 200);
    const LATER: &str = "settings have changed that hold only after a restart";
    let proxies = "trusted_proxies = [\"10.0.0.0/8\"]\nforwarded_by = \"forwarded\"";
    for (old, new, identity, more, named) in [
        ("key-0", "key-1", "", proxies, "gate.forwarded_by gate.trusted_proxies"),
        ("key-1", "key-2", "by_address = true", "", "identity.by_address"),
    ] {
        settings(new, identity, more);
        gate.signal(Signal::HUP);
        let line = format!("\"keys\":\"{named}\"");
        until(named, async || {
            gate.log().lines().any(|logged| logged.contains(LATER) && logged.contains(&line))
        })
        .await;
        assert_eq!((status(old).await, status(new).await), (401, 200), "{named}");
    }
}

const CHANGED: &str = "the log's filter has changed";
/// Told of each request whose upstream isn't there, at the level `debug`.
const UNANSWERED: &str = "no response";
const NOWHERE: &str = "http://127.0.0.1:9";

#[tokio::test]
async fn a_gate_logs_more_after_sighup_and_less_after_another() {
    let folder = Folder::new("filter");
    let settings = |filter: &str| folder.write("gate.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let gate = Gate::start(NOWHERE, &["--config", &path]);
    let lines = |message: &str| gate.log().lines().filter(|line| line.contains(message)).count();
    // By the time that an answer is here, its line is written.
    let ask = async || assert_eq!(Client::ask(gate.addr, "GET", "/", &[], "").await.head.status, 502);
    let reload = async |message: &str, count: usize| {
        gate.signal(Signal::HUP);
        until(message, async || lines(message) == count).await;
    };
    ask().await;
    settings("debug");
    reload(CHANGED, 1).await;
    assert_eq!(lines(UNANSWERED), 0);
    assert_eq!(gate.wait_for_log("the settings were read again")["changed"], "log.filter");
    ask().await;
    gate.wait_for_log(UNANSWERED);

    settings("forebay_serve=loud");
    reload("the settings can't be read again: all stays as it was", 1).await;
    ask().await;
    until("another line", async || lines(UNANSWERED) == 2).await;

    settings("error");
    reload(CHANGED, 2).await;
    ask().await;
    // And what was silent says that it speaks again.
    settings("info");
    reload(CHANGED, 3).await;
    ask().await;
    settings("warn");
    reload(CHANGED, 4).await;
    assert_eq!(lines(UNANSWERED), 2);
}

#[tokio::test]
async fn the_filter_of_a_log_for_people_changes_too() {
    let folder = Folder::new("filter-text");
    let settings = |filter: &str| folder.write("gate.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let args =
        ["gate", "--listen", "127.0.0.1:0", "--admin", "off", "--upstream", NOWHERE, "--config", &path];
    let mut gate = forebay(&args).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(gate.stderr.take().unwrap()).lines().map_while(Result::ok);
    let listens = lines.find(|line| line.contains("the gate listens")).unwrap();
    let address = listens.split("address=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    settings("debug");
    kill_process(Pid::from_child(&gate), Signal::HUP).unwrap();
    lines.find(|line| line.contains(CHANGED)).unwrap();
    assert_eq!(Client::ask(address, "GET", "/", &[], "").await.head.status, 502);
    lines.find(|line| line.contains("DEBUG") && line.contains(UNANSWERED)).unwrap();
    gate.kill().unwrap();
    gate.wait().unwrap();
}

#[tokio::test]
async fn a_server_of_shapes_logs_more_after_sighup() {
    let (place, folder) =
        (ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)"), Folder::new("filter-serve"));
    let settings = |filter: &str| folder.write("serve.toml", &format!("[log]\nfilter = {filter:?}\n"));
    let path = settings("info");
    let serve = place.serve_with_args(&["--config", &path]).await;
    let garble = async || {
        let mut client = Client::connect(serve.addr).await;
        client.send("no request\r\n\r\n").await;
        client.rest().await;
    };
    garble().await;
    settings("debug");
    serve.signal(Signal::HUP);
    serve.wait_for_log(CHANGED);
    assert!(!serve.log().contains("\"DEBUG\""));
    garble().await;
    serve.wait_for_log("connection failed");
}
