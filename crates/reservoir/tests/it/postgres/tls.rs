//! Every `sslmode` with and without TLS on the server, certificates of both sides, and channel
//! binding.

use std::sync::Arc;
use std::time::Duration;

use forebay_reservoir::{ConnectionErrorKind, PostgresConnect, PostgresTls};
use forebay_testkit::sandbox::Postgres;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::certificates::{Authority, Certificate, PASSWORD, encrypt, self_signed, start, write};
use super::{TempFile, ask, open, open_by, run};

const IS_ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

/// Returns a keyword connection string.
fn conninfo(postgres: &Postgres, host: &str, rest: &str) -> String {
    let port = postgres.port();
    format!("user=postgres dbname=postgres host={host} port={port} password='{PASSWORD}' {rest}")
}

#[tokio::test]
async fn every_sslmode_works_with_a_tls_server() {
    let (authority, other) = (Authority::new(), Authority::new());
    let postgres = start(&authority.server(&["localhost", "127.0.0.1"]));
    let (ca, wrong_ca) = (TempFile::new(&authority.pem()), TempFile::new(&other.pem()));
    let (ca, wrong_ca) = (format!("sslrootcert={}", ca.text()), format!("sslrootcert={}", wrong_ca.text()));

    let encrypted = [
        ("", "127.0.0.1"),
        ("sslmode=prefer", "127.0.0.1"),
        (&format!("sslmode=prefer {ca}"), "127.0.0.1"),
        ("sslmode=require", "127.0.0.1"),
        ("sslmode=require", "localhost"),
        (&format!("sslmode=require {ca}"), "localhost"),
        (&format!("sslmode=verify-ca {ca}"), "127.0.0.1"),
        (&format!("sslmode=verify-full {ca}"), "127.0.0.1"),
        (&format!("sslmode=verify-full {ca}"), "localhost"),
        (&ca, "localhost"),
    ];
    for (rest, host) in encrypted {
        let client =
            open(&conninfo(&postgres, host, rest)).await.unwrap_or_else(|error| panic!("{rest}: {error}"));
        assert_eq!(ask(&client, IS_ENCRYPTED).await, "t", "{rest} at {host}");
    }
    // After a failed handshake, `prefer` connects without TLS.
    for rest in ["sslmode=disable", &format!("sslmode=prefer {wrong_ca}")] {
        let client = open(&conninfo(&postgres, "127.0.0.1", rest)).await.unwrap();
        assert_eq!(ask(&client, IS_ENCRYPTED).await, "f", "{rest}");
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let rest = format!("sslmode={mode} {wrong_ca}");
        let error = open(&conninfo(&postgres, "127.0.0.1", &rest)).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Other, "{mode}: {error}");
        assert!(error.to_string().contains("check sslrootcert"), "{mode}: {error}");
    }
    // The system's CAs have not signed this certificate.
    let error = open(&conninfo(&postgres, "127.0.0.1", "sslmode=verify-full")).await.unwrap_err();
    assert!(error.to_string().contains("check sslrootcert"), "{error}");
}

#[tokio::test]
async fn every_sslmode_works_with_a_plain_server() {
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    let ca = TempFile::new(&Authority::new().pem());
    let ca = format!("sslrootcert={}", ca.text());
    for rest in ["", "sslmode=disable", "sslmode=prefer", &format!("sslmode=prefer {ca}")] {
        let client = open(&conninfo(&postgres, "127.0.0.1", rest)).await.unwrap();
        assert_eq!(ask(&client, IS_ENCRYPTED).await, "f", "{rest}");
    }
    let refused = [("require", "require"), ("verify-ca", "verify-ca"), ("verify-full", "verify-full")];
    for (mode, message) in refused {
        let error =
            open(&conninfo(&postgres, "127.0.0.1", &format!("sslmode={mode} {ca}"))).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Other);
        assert!(
            error.to_string().contains(&format!("the server has no TLS, and sslmode={message}")),
            "{error}"
        );
    }
    // As in libpq, a Unix socket is never encrypted.
    let socket = postgres.socket_dir().to_str().unwrap();
    let client = open(&conninfo(&postgres, socket, &format!("sslmode=verify-full {ca}"))).await.unwrap();
    assert_eq!(ask(&client, IS_ENCRYPTED).await, "f");
}

#[tokio::test]
async fn only_verify_full_refuses_a_certificate_for_another_name() {
    let authority = Authority::new();
    let postgres = start(&authority.server(&["db.test"]));
    let ca = TempFile::new(&authority.pem());
    let ca = format!("sslrootcert={}", ca.text());
    for mode in ["require", "verify-ca"] {
        open(&conninfo(&postgres, "127.0.0.1", &format!("sslmode={mode} {ca}"))).await.unwrap();
    }
    for host in ["127.0.0.1", "localhost"] {
        let error = open(&conninfo(&postgres, host, &format!("sslmode=verify-full {ca}"))).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Other);
        assert!(error.to_string().contains("connect by a name that the certificate is for"), "{error}");
    }
    let by_address = format!("sslmode=verify-full hostaddr=127.0.0.1 {ca}");
    open(&conninfo(&postgres, "db.test", &by_address)).await.unwrap();
    let renamed = PostgresConnect::builder(&conninfo(&postgres, "127.0.0.1", "sslmode=verify-full"))
        .unwrap()
        .tls(PostgresTls::new().ca_pem(authority.pem()).server_name("db.test"))
        .build()
        .unwrap();
    open_by(&renamed).await.unwrap();
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_if_it_is_given_as_ca() {
    let (certificate, stranger) = (self_signed("localhost"), self_signed("localhost"));
    let postgres = start(&certificate);
    for mode in ["verify-ca", "verify-full"] {
        let given = |certificate: &Certificate| {
            let conninfo = conninfo(&postgres, "localhost", &format!("sslmode={mode}"));
            let builder = PostgresConnect::builder(&conninfo).unwrap();
            builder.tls(PostgresTls::new().ca_pem(certificate.pem.as_str())).build().unwrap()
        };
        open_by(&given(&certificate)).await.unwrap_or_else(|error| panic!("{mode}: {error}"));
        let error = open_by(&given(&stranger)).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Other, "{mode}: {error}");
    }
}

#[tokio::test]
async fn the_client_sends_its_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let postgres = start(&authority.server(&["localhost"]));
    write(&postgres, "root.crt", &authority.pem());
    write(&postgres, "pg_hba.conf", "local all all trust\nhostssl all all all cert\n");
    run(&postgres, &["ALTER SYSTEM SET ssl_ca_file = 'root.crt'", "CREATE ROLE app LOGIN"]);
    postgres.restart().unwrap();

    let ca = TempFile::new(&authority.pem());
    let to = format!("user=app dbname=postgres host=localhost port={} sslmode=verify-full", postgres.port());
    let to = format!("{to} sslrootcert={}", ca.text());
    let known = authority.client("app");
    let (certificate, key) = (TempFile::new(&known.pem), TempFile::new(&known.key));
    let by_files = format!("{to} sslcert={} sslkey={}", certificate.text(), key.text());
    assert_eq!(ask(&open(&by_files).await.unwrap(), "SELECT current_user").await, "app");

    let with = |tls: PostgresTls| PostgresConnect::builder(&to).unwrap().tls(tls).build().unwrap();
    let shown = with(PostgresTls::new().client_files(certificate.path(), key.path()));
    open_by(&shown).await.unwrap();
    let unknown = other.client("app");
    let cases = [
        ("none", PostgresTls::new()),
        ("another name", {
            let other = authority.client("other");
            PostgresTls::new().client_pem(other.pem, other.key)
        }),
        ("another authority", PostgresTls::new().client_pem(unknown.pem, unknown.key)),
    ];
    for (case, tls) in cases {
        let error = open_by(&with(tls)).await.unwrap_err();
        assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{case}: {error}");
    }
}

#[tokio::test]
async fn changed_certificate_files_are_reloaded() {
    let (authority, other) = (Authority::new(), Authority::new());
    let postgres = start(&authority.server(&["localhost"]));
    let ca = TempFile::new(&other.pem());
    let rest = format!("sslmode=verify-full sslrootcert={}", ca.text());
    let connect = PostgresConnect::new(&conninfo(&postgres, "localhost", &rest)).unwrap();
    let error = open_by(&connect).await.unwrap_err();
    assert!(error.to_string().contains("check sslrootcert"), "{error}");
    std::fs::write(ca.path(), authority.pem()).unwrap();
    open_by(&connect).await.unwrap();
    // An invalid or missing file keeps the loaded certificates.
    std::fs::write(ca.path(), "half written").unwrap();
    open_by(&connect).await.unwrap();
    std::fs::remove_file(ca.path()).unwrap();
    open_by(&connect).await.unwrap();
    std::fs::write(ca.path(), other.pem()).unwrap();
    open_by(&connect).await.unwrap_err();
}

#[tokio::test]
async fn prefer_retries_without_tls_if_pg_hba_requires_it() {
    let postgres = start(&Authority::new().server(&["localhost"]));
    write(&postgres, "pg_hba.conf", "local all all trust\nhostnossl all all all scram-sha-256\n");
    postgres.restart().unwrap();
    let client = open(&conninfo(&postgres, "127.0.0.1", "sslmode=prefer")).await.unwrap();
    assert_eq!(ask(&client, IS_ENCRYPTED).await, "f");
    let error = open(&conninfo(&postgres, "127.0.0.1", "sslmode=require")).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
}

#[tokio::test]
async fn authentication_uses_channel_binding() {
    let bound = "sslmode=require channel_binding=require";
    let postgres = Postgres::builder().password(PASSWORD).start().unwrap();
    let error = open(&conninfo(&postgres, "127.0.0.1", "channel_binding=require")).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Refused, "there is no channel to bind to: {error}");
    assert!(error.to_string().contains("channel binding"), "{error}");

    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        encrypt(&postgres, &Authority::with(algorithm).server(&["localhost"]));
        open(&conninfo(&postgres, "127.0.0.1", bound))
            .await
            .unwrap_or_else(|error| panic!("{algorithm:?}: {error}"));
    }
    run(&postgres, &["ALTER SYSTEM SET ssl_max_protocol_version = 'TLSv1.2'"]);
    postgres.restart().unwrap();
    let client = open(&conninfo(&postgres, "127.0.0.1", bound)).await.unwrap();
    let version = ask(&client, "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await;
    assert_eq!(version, "TLSv1.2");

    // No hash is defined for Ed25519 signatures.
    encrypt(&postgres, &Authority::with(&rcgen::PKCS_ED25519).server(&["localhost"]));
    open(&conninfo(&postgres, "127.0.0.1", "sslmode=require")).await.unwrap();
    let error = open(&conninfo(&postgres, "127.0.0.1", bound)).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn direct_tls_with_an_older_server_is_a_clear_error() {
    let postgres = start(&Authority::new().server(&["localhost"]));
    let version: u32 = {
        let client = open(&conninfo(&postgres, "127.0.0.1", "sslmode=require")).await.unwrap();
        ask(&client, "SHOW server_version_num").await.parse().unwrap()
    };
    let direct = open(&conninfo(&postgres, "127.0.0.1", "sslmode=require sslnegotiation=direct")).await;
    if version >= 170_000 {
        assert_eq!(ask(&direct.unwrap(), IS_ENCRYPTED).await, "t");
        return;
    }
    let error = direct.unwrap_err();
    assert!(error.to_string().contains("needs PostgreSQL 17 or newer"), "{error}");
}

/// Accepts direct TLS and forwards to a server without TLS.
async fn direct_acceptor(postgres: &Postgres, certificate: &Certificate, alpn: &[&[u8]]) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::pem_slice_iter(certificate.pem.as_bytes()).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, server) = (listener.local_addr().unwrap().port(), postgres.addr());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut encrypted) = acceptor.accept(socket).await else { continue };
            let mut plain = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut encrypted, &mut plain).await });
        }
    });
    port
}

#[tokio::test]
async fn direct_tls_needs_a_server_that_agrees_to_speak_postgres() {
    let (authority, postgres) = (Authority::new(), Postgres::start().unwrap());
    let certificate = authority.server(&["localhost"]);
    let ca = TempFile::new(&authority.pem());
    let to = |port: u16| {
        let tls = format!("sslmode=verify-full&sslnegotiation=direct&sslrootcert={}", ca.text());
        format!("postgres://postgres@localhost:{port}/postgres?{tls}")
    };
    let port = direct_acceptor(&postgres, &certificate, &[b"postgresql"]).await;
    assert_eq!(ask(&open(&to(port)).await.unwrap(), "SELECT 1 + 1").await, "2");

    let silent = direct_acceptor(&postgres, &certificate, &[]).await;
    let error = open(&to(silent)).await.unwrap_err();
    assert!(error.to_string().contains("didn't agree to speak Postgres"), "{error}");
    let web = direct_acceptor(&postgres, &certificate, &[b"h2"]).await;
    let error = open(&to(web)).await.unwrap_err();
    assert_eq!(error.kind(), ConnectionErrorKind::Other, "{error}");
}

#[test]
fn contradictory_settings_are_refused_before_a_dial() {
    let authority = Authority::new();
    let (ca, empty) = (TempFile::new(&authority.pem()), TempFile::new("nothing in here"));
    let (ca, empty) = (ca.text(), empty.text());
    let cases = [
        ("sslnegotiation=direct".to_owned(), "sslnegotiation: direct needs sslmode=require"),
        ("sslmode=verify-ca".to_owned(), "sslmode: verify-ca needs the authority"),
        ("sslmode=require&sslrootcert=system".to_owned(), "sslrootcert: system needs sslmode=verify-full"),
        ("sslmode=require&sslrootcert=/no/such/file".to_owned(), "sslrootcert: /no/such/file: No such file"),
        (format!("sslmode=verify-ca&sslrootcert={empty}"), "sslrootcert: there is no certificate"),
        (format!("sslmode=require&sslcert={ca}"), "sslkey: sslcert needs it"),
        (format!("sslmode=require&sslkey={ca}"), "sslcert: sslkey needs it"),
        (format!("sslmode=require&sslcert={ca}&sslkey={empty}"), "sslkey: there must be one private key"),
        ("sslmode=disable&channel_binding=require".to_owned(), "channel_binding: require needs TLS"),
    ];
    for (rest, wanted) in cases {
        let error = PostgresConnect::new(&format!("postgres://me@h/db?{rest}")).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{rest}: {error}");
    }
    let hurried =
        PostgresConnect::builder("postgres://me@h").unwrap().connect_timeout(Duration::ZERO).build();
    assert_eq!(hurried.unwrap_err().key(), "connect_timeout");
    // The key doesn't belong to the certificate.
    let (one, other) = (authority.client("a"), authority.client("b"));
    let mixed = PostgresTls::new().client_pem(one.pem, other.key);
    let error = PostgresConnect::builder("postgres://me@h").unwrap().tls(mixed.clone()).build().unwrap_err();
    assert_eq!(error.key(), "sslkey");
    assert!(!format!("{mixed:?}").contains("BEGIN"), "{mixed:?}");
}
