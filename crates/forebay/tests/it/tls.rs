//! TLS of the client address, tested with curl and rustls.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::forebay_process::ForebayProcess;
use crate::scripted_upstream::ScriptedUpstream;
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until, within};

/// Folder with a self-signed certificate for `localhost` and its key; removed when dropped.
pub(crate) struct CertificateFiles {
    dir: PathBuf,
}

impl CertificateFiles {
    pub(crate) fn new(name: &str) -> CertificateFiles {
        let dir = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let pair = CertificateFiles { dir };
        pair.renew();
        pair
    }

    /// Replaces both files by a new certificate and key.
    pub(crate) fn renew(&self) {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.key(), generated.signing_key.serialize_pem()).unwrap();
        std::fs::write(self.certificate(), generated.cert.pem()).unwrap();
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("tls.crt")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("tls.key")
    }

    /// Copies the current certificate, for a client that trusts it. Returns the path.
    pub(crate) fn copy_certificate(&self, name: &str) -> PathBuf {
        let copy = self.dir.join(name);
        std::fs::copy(self.certificate(), &copy).unwrap();
        copy
    }
}

impl Drop for CertificateFiles {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns a command that fetches a path by TLS and trusts one certificate.
pub(crate) fn curl(authority: &Path, gate: &ForebayProcess, path: &str, args: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60", "--cacert"])
        .arg(authority);
    command.args(args).arg(format!("https://localhost:{}{path}", gate.addr.port()));
    command.args(["--resolve", &format!("localhost:{}:127.0.0.1", gate.addr.port())]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs curl. Returns its output, or its error text.
pub(crate) async fn run_curl(mut command: Command) -> Result<String, String> {
    let output = within("curl", command.output()).await.expect("curl is installed");
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Opens a TLS connection that trusts the certificate. Reading its end fails without close_notify.
async fn connect_tls(pair: &CertificateFiles, gate: &ForebayProcess) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pair.certificate()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let socket = TcpStream::connect(gate.addr).await.unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), socket);
    within("the handshake", connecting).await.unwrap()
}

fn gate(pair: &CertificateFiles, origin: &str, more: &[(&str, &str)]) -> ForebayProcess {
    let (certificate, key) = (pair.certificate(), pair.key());
    let files = [
        ("FOREBAY_GATE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_GATE_TLS_KEY_FILE", key.to_str().unwrap()),
    ];
    ForebayProcess::start_gate_with(origin, &[], &[&files[..], more].concat())
}

#[tokio::test]
async fn streams_over_tls_with_http_1_and_2_end_with_their_clients() {
    let (origin, pair) = (StreamingUpstream::start().await, CertificateFiles::new("streams"));
    let gate = gate(&pair, &origin.url(), &[]);
    for version in ["--http1.1", "--http2"] {
        let mut client = curl(&pair.certificate(), &gate, "/stream", &["-N", version]).spawn().unwrap();
        let mut received = [0; 9];
        within("an event", client.stdout.as_mut().unwrap().read_exact(&mut received)).await.unwrap();
        assert_eq!(&received, b"data: 1\n\n", "{version}");
        assert_eq!(origin.open(), 1);
        client.kill().await.unwrap();
        gate.wait_until_empty().await;
        until("the upstream is empty", async || origin.open() == 0).await;
    }
    let report = gate.status().await;
    assert_eq!(report["http"]["lean_streams"], 0, "TLS streams don't use the lean path");
}

#[tokio::test]
async fn x_forwarded_proto_is_https_for_tls_clients() {
    let (origin, pair) = (ScriptedUpstream::start().await, CertificateFiles::new("scheme"));
    let gate = gate(&pair, &origin.url(), &[]);
    let mut client = curl(&pair.certificate(), &gate, "/", &[]).spawn().unwrap();
    let head = origin.accept().await.head().await;
    assert_eq!(head.header("x-forwarded-proto"), Some("https"), "{}", head.text);
    client.kill().await.unwrap();
}

#[tokio::test]
async fn a_refused_upgrade_over_tls_ends_with_close_notify() {
    let (origin, pair) = (ScriptedUpstream::start().await, CertificateFiles::new("refused-upgrade"));
    let gate = gate(&pair, &origin.url(), &[]);
    let mut client = connect_tls(&pair, &gate).await;
    let request =
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(request).await.unwrap();
    let mut upstream = origin.accept().await;
    assert_eq!(upstream.head().await.header("upgrade"), Some("websocket"));
    upstream.send("HTTP/1.1 426 X\r\nContent-Length: 2\r\n\r\nok").await;
    let mut response = Vec::new();
    let end = within("the end", client.read_to_end(&mut response)).await;
    assert!(
        response.starts_with(b"HTTP/1.1 426 ") && response.ends_with(b"ok"),
        "{}",
        response.escape_ascii()
    );
    end.expect("the connection ends with close_notify");
}

#[tokio::test]
async fn plain_text_silent_and_tls_1_1_clients_are_closed() {
    let (origin, pair) = (ScriptedUpstream::start().await, CertificateFiles::new("plain"));
    let gate = gate(&pair, &origin.url(), &[("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "300")]);
    let mut plain = HttpConnection::get(gate.addr, "/", &[]).await;
    let received = within("the end of the connection", plain.rest()).await;
    assert!(!received.starts_with(b"HTTP/"), "{}", received.escape_ascii());
    let mut silent = HttpConnection::connect(gate.addr).await;
    assert!(within("the end of the connection", silent.rest()).await.is_empty());
    for old_version in ["--tls-max", "1.1"].chunks(2) {
        assert!(run_curl(curl(&pair.certificate(), &gate, "/", old_version)).await.is_err());
    }
    assert!(origin.is_quiet());
    until("no client is connected", async || gate.status().await["http"]["open_connections"] == 0).await;
}

#[tokio::test]
async fn sighup_loads_a_new_certificate_and_keeps_the_old_one_if_it_is_invalid() {
    let (origin, pair) = (StreamingUpstream::start().await, CertificateFiles::new("renewed"));
    let first = pair.copy_certificate("first.crt");
    let gate = gate(&pair, &origin.url(), &[]);
    let serves = async |authority: &Path| {
        let mut client = curl(authority, &gate, "/stream", &["-N"]).spawn().unwrap();
        let mut received = [0; 1];
        client.stdout.as_mut().unwrap().read_exact(&mut received).await.is_ok()
    };
    assert!(serves(&first).await);
    std::fs::write(pair.key(), "rubbish").unwrap();
    gate.signal(Signal::HUP);
    gate.wait_for_log("certificate not reloaded: previous one kept");
    assert!(serves(&first).await);
    pair.renew();
    let second = pair.copy_certificate("second.crt");
    assert!(!serves(&second).await || !serves(&first).await, "only one certificate is served");
    gate.signal(Signal::HUP);
    until("the new certificate is served", async || serves(&second).await).await;
    assert!(!serves(&first).await);
    assert!(!gate.log().contains("rubbish") && !gate.log().contains("BEGIN"));
}
