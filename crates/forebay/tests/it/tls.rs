//! TLS for clients, as curl sees it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use crate::gate::Gate;
use crate::origin::{Origin, Streams};
use crate::wire::{Client, until, within};

/// A folder with a certificate for `localhost` and its key; gone at the end.
pub(crate) struct Pair {
    dir: PathBuf,
}

impl Pair {
    pub(crate) fn new(name: &str) -> Pair {
        let dir = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let pair = Pair { dir };
        pair.renew();
        pair
    }

    /// Another one in its place.
    pub(crate) fn renew(&self) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        std::fs::write(self.certificate(), made.cert.pem()).unwrap();
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("tls.crt")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("tls.key")
    }

    /// A copy of the certificate as it is now, to believe in.
    pub(crate) fn trusted(&self, name: &str) -> PathBuf {
        let copy = self.dir.join(name);
        std::fs::copy(self.certificate(), &copy).unwrap();
        copy
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn curl(authority: &Path, gate: &Gate, path: &str, args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--cacert"])
        .arg(authority);
    command.args(args).arg(format!("https://localhost:{}{path}", gate.addr.port()));
    command.args(["--resolve", &format!("localhost:{}:127.0.0.1", gate.addr.port())]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// What curl prints, or why it didn't.
pub(crate) async fn fetched(mut command: Command) -> Result<String, String> {
    let output = within("curl", command.output()).await.expect("curl is installed");
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn gate(pair: &Pair, origin: &str, more: &[(&str, &str)]) -> Gate {
    let (certificate, key) = (pair.certificate(), pair.key());
    let files = [
        ("FOREBAY_GATE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_GATE_TLS_KEY_FILE", key.to_str().unwrap()),
    ];
    Gate::start_with(origin, &[], &[&files[..], more].concat())
}

#[tokio::test]
async fn streams_come_by_tls_over_http_1_and_2_and_end_with_their_clients() {
    let (origin, pair) = (Streams::start().await, Pair::new("streams"));
    let gate = gate(&pair, &origin.url(), &[]);
    for version in ["--http1.1", "--http2"] {
        let mut client = curl(&pair.certificate(), &gate, "/stream", &["-N", version]).spawn().unwrap();
        let mut heard = [0; 9];
        within("an event", client.stdout.as_mut().unwrap().read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"data: 1\n\n", "{version}");
        assert_eq!(origin.open(), 1);
        client.kill().await.unwrap();
        gate.empty().await;
        until("the upstream is empty", async || origin.open() == 0).await;
    }
    let report = gate.status().await;
    assert_eq!(report["http"]["lean_streams"], 0, "by TLS the ordinary path is taken");
}

#[tokio::test]
async fn the_upstream_is_told_that_the_client_came_by_tls() {
    let (origin, pair) = (Origin::start().await, Pair::new("scheme"));
    let gate = gate(&pair, &origin.url(), &[]);
    let mut asking = curl(&pair.certificate(), &gate, "/", &[]).spawn().unwrap();
    let head = origin.accept().await.head().await;
    assert_eq!(head.header("x-forwarded-proto"), Some("https"), "{}", head.text);
    asking.kill().await.unwrap();
}

#[tokio::test]
async fn whoever_speaks_plainly_or_not_at_all_is_closed() {
    let (origin, pair) = (Origin::start().await, Pair::new("plain"));
    let gate = gate(&pair, &origin.url(), &[("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "300")]);
    let mut plain = Client::get(gate.addr, "/", &[]).await;
    let heard = within("its end", plain.rest()).await;
    assert!(!heard.starts_with(b"HTTP/"), "{}", heard.escape_ascii());
    let mut silent = Client::connect(gate.addr).await;
    assert!(within("its end", silent.rest()).await.is_empty());
    for old in ["--tls-max", "1.1"].chunks(2) {
        assert!(fetched(curl(&pair.certificate(), &gate, "/", old)).await.is_err());
    }
    assert!(origin.is_quiet());
    until("nobody is connected", async || gate.status().await["http"]["open_connections"] == 0).await;
}

#[tokio::test]
async fn a_new_certificate_is_shown_after_sighup_and_a_bad_one_never() {
    let (origin, pair) = (Streams::start().await, Pair::new("renewed"));
    let first = pair.trusted("first.crt");
    let gate = gate(&pair, &origin.url(), &[]);
    let shows = async |authority: &Path| {
        let mut client = curl(authority, &gate, "/stream", &["-N"]).spawn().unwrap();
        let mut heard = [0; 1];
        client.stdout.as_mut().unwrap().read_exact(&mut heard).await.is_ok()
    };
    assert!(shows(&first).await);
    std::fs::write(pair.key(), "rubbish").unwrap();
    gate.signal(Signal::HUP);
    gate.wait_for_log("certificate not reloaded: previous one kept");
    assert!(shows(&first).await);
    pair.renew();
    let second = pair.trusted("second.crt");
    assert!(!shows(&second).await || !shows(&first).await, "one at a time");
    gate.signal(Signal::HUP);
    until("the new one is shown", async || shows(&second).await).await;
    assert!(!shows(&first).await);
    assert!(!gate.log().contains("rubbish") && !gate.log().contains("BEGIN"));
}
