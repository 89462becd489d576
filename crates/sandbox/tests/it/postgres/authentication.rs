use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpStream};
use std::sync::Arc;

use forebay_sandbox::Postgres;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{SASL, TRUSTED, greet};

/// SQLSTATE `invalid_authorization_specification`.
const REJECTED: &str = "28000";

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

/// Sends an SSLRequest and performs the TLS handshake.
fn encrypt(postgres: &Postgres, name: &'static str, ca_pem: &str) -> std::io::Result<Encrypted> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(ca_pem.as_bytes()).expect("PEM");
    roots.add(certificate).expect("an authority's certificate");
    let config = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    let mut tls = ClientConnection::new(config, ServerName::try_from(name).expect("a name")).expect("TLS");
    let mut tcp = TcpStream::connect(postgres.addr())?;
    tcp.write_all(&[&8_u32.to_be_bytes()[..], &80_877_103_u32.to_be_bytes()].concat())?;
    let mut reply = [0];
    tcp.read_exact(&mut reply)?;
    assert_eq!(&reply, b"S", "the server offers TLS");
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(tls, tcp))
}

#[test]
fn tcp_can_require_tls_and_a_password_while_the_socket_requires_neither() {
    for version in [15, 18] {
        let postgres = Postgres::builder().version(version).tls().password("secret");
        let postgres = postgres.hba("hostssl all all 127.0.0.1/32 scram-sha-256").start().unwrap();
        let mut plain = TcpStream::connect(postgres.addr()).unwrap();
        assert_eq!(greet(&mut plain, "postgres"), Err(REJECTED.to_owned()));
        for name in ["localhost", "127.0.0.1"] {
            let mut session = encrypt(&postgres, name, postgres.ca_pem()).unwrap();
            assert_eq!(greet(&mut session, "postgres"), Ok(SASL), "{name}");
        }
        postgres.execute("postgres", "SELECT 1").unwrap();

        let wrong = encrypt(&postgres, "localhost", postgres.wrong_ca_pem()).err().unwrap();
        assert!(wrong.to_string().contains("UnknownIssuer"), "{wrong}");
        for (path, pem) in
            [(postgres.ca_path(), postgres.ca_pem()), (postgres.wrong_ca_path(), postgres.wrong_ca_pem())]
        {
            assert_eq!(std::fs::read_to_string(path).unwrap(), pem);
        }
    }
}

#[test]
fn a_user_can_have_its_own_hba_line_and_url() {
    let postgres = Postgres::builder()
        .hba("host all reader 127.0.0.1/32 scram-sha-256")
        .hba("host all postgres 127.0.0.1/32 trust")
        .start()
        .unwrap();
    postgres.execute("postgres", "CREATE ROLE reader LOGIN PASSWORD 'a:b'").unwrap();
    let authenticate = |user| greet(&mut TcpStream::connect(postgres.addr()).unwrap(), user);
    assert_eq!(authenticate("reader"), Ok(SASL));
    assert_eq!(authenticate("postgres"), Ok(TRUSTED));
    assert_eq!(authenticate("stranger"), Err(REJECTED.to_owned()));
    let url = postgres.url_as("reader", "a:b", "postgres");
    assert_eq!(url, format!("postgres://reader:a%3Ab@127.0.0.1:{}/postgres", postgres.port()));

    postgres.set_hba(&["host all all 127.0.0.1/32 reject"]).unwrap();
    postgres.reload().unwrap();
    assert_eq!(authenticate("postgres"), Err(REJECTED.to_owned()));
    postgres.set_hba(&["host all all nowhere trust-me"]).unwrap();
    let error = postgres.reload().unwrap_err().to_string();
    assert!(error.starts_with("pg_hba.conf: "), "{error}");
}

#[test]
fn ipv6_loopback_can_be_enabled() {
    let postgres = Postgres::builder().listen("127.0.0.1,::1").start().unwrap();
    let stream = TcpStream::connect((Ipv6Addr::LOCALHOST, postgres.port()));
    assert_eq!(greet(&mut stream.expect("this machine has ::1"), "postgres"), Ok(TRUSTED));
    assert_eq!(greet(&mut TcpStream::connect(postgres.addr()).unwrap(), "postgres"), Ok(TRUSTED));
}

#[test]
#[should_panic(expected = "one line at a time")]
fn an_hba_line_with_a_line_break_is_rejected() {
    let _ = Postgres::builder().hba("host all all 127.0.0.1/32 trust\nlocal all all reject");
}
