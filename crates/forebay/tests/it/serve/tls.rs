//! Shapes over TLS, and a secret that changes at SIGHUP.

use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::support::{ServeFixture, ServeProcess, path};
use crate::tls::CertificateFiles;
use crate::wire::{HttpConnection, until, within};

const CREATE_ITEMS: &str =
    "CREATE TABLE items (id int PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'one')";
const STREAMS: usize = 200;
/// Memory limit of a stream over TLS, in KiB. A stream without TLS needs a tenth.
const MAX_STREAM_KIB: u64 = 64;

/// Returns a connector that trusts only this certificate.
fn connector(pair: &CertificateFiles) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pair.certificate()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    TlsConnector::from(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Sends a request, and reads until the response contains `mark`.
async fn get(
    serve: &ServeProcess,
    connector: &TlsConnector,
    target: &str,
    mark: &str,
) -> (TlsStream<TcpStream>, String) {
    let tcp = TcpStream::connect(serve.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = within("a handshake", connector.connect(name, tcp)).await.unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut received, mut piece) = (String::new(), [0; 4096]);
    while !received.contains(mark) {
        let count = within("an answer", stream.read(&mut piece)).await.unwrap();
        assert!(count > 0, "the connection ended after {received}");
        received += std::str::from_utf8(&piece[..count]).unwrap();
    }
    (stream, received)
}

/// Returns the value of a header.
fn header<'a>(received: &'a str, name: &str) -> &'a str {
    let line = received.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name} in {received}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_streams_over_tls_get_every_change_and_use_little_memory() {
    let (fixture, pair) = (ServeFixture::new(CREATE_ITEMS), CertificateFiles::new("serve-tls"));
    let (certificate, key) = (pair.certificate(), pair.key());
    let serve = fixture.spawn(&[
        ("FOREBAY_SERVE_TLS_CERT_FILE", certificate.to_str().unwrap()),
        ("FOREBAY_SERVE_TLS_KEY_FILE", key.to_str().unwrap()),
        ("FOREBAY_ADMISSION_PER_USER", "1000"),
    ]);
    until("the server is ready", async || serve.admin("/readyz").await.body == b"ready\n").await;
    let connector = connector(&pair);
    let (_, now) =
        get(&serve, &connector, &path(&[("table", "items"), ("offset", "now")]), "up-to-date").await;
    let position = [("offset", header(&now, "electric-offset")), ("handle", header(&now, "electric-handle"))];
    let live = [&[("table", "items")][..], &position, &[("live", "true"), ("live_sse", "true")]].concat();
    let before = serve.resident_kib();
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(get(&serve, &connector, &path(&live), "\r\n\r\n").await.0);
    }
    let each = serve.resident_kib().saturating_sub(before) / STREAMS as u64;
    assert!(each < MAX_STREAM_KIB, "{each} KiB for each stream");
    assert_eq!(serve.status().await["http"]["lean_streams"], 0);
    fixture.sql("INSERT INTO items VALUES (2, 'by TLS')");
    for stream in &mut streams {
        let (mut received, mut piece) = (String::new(), [0; 4096]);
        while !received.contains("by TLS") {
            let count = within("a change", stream.read(&mut piece)).await.unwrap();
            assert!(count > 0, "the connection ended after {received}");
            received += std::str::from_utf8(&piece[..count]).unwrap();
        }
    }
    drop(streams);
    until("all connections are gone", async || {
        let status = serve.status().await;
        status["admission"]["total_connections"] == 0 && status["http"]["open_connections"] == 0
    })
    .await;
}

#[tokio::test]
async fn after_sighup_only_the_new_secret_is_accepted() {
    let fixture = ServeFixture::new(CREATE_ITEMS);
    let file = std::env::temp_dir().join(format!("forebay-{}-secret.toml", std::process::id()));
    let write = |secret: &str| std::fs::write(&file, format!("[serve]\nsecret = {secret:?}\n")).unwrap();
    write("first-s3cret");
    let serve = fixture.serve_with_args(&["--config", file.to_str().unwrap()]).await;
    let status_with = async |secret: &str| {
        let target = path(&[("table", "items"), ("offset", "-1"), ("secret", secret)]);
        HttpConnection::fetch(serve.addr, "GET", &target, &[], "").await.head.status
    };
    assert_eq!((status_with("first-s3cret").await, status_with("second-s3cret").await), (200, 401));
    write("second-s3cret");
    serve.signal(Signal::HUP);
    assert_eq!(serve.wait_for_log("settings reloaded")["changed"], "serve.secret");
    assert_eq!((status_with("first-s3cret").await, status_with("second-s3cret").await), (401, 200));
    assert!(!serve.log().contains("s3cret"));
    std::fs::remove_file(&file).unwrap();
}
