//! The example of the README, compiled and run. `tests/readme.rs` compares both.

use std::net::SocketAddr;

use forebay_admission::{Admission, Identifier};
use forebay_gate::{Config, ReverseProxy, UpstreamConfig};
use forebay_quota::Quota;
use forebay_stream::{HttpServer, HttpServerConfig, Incoming, service_fn};
use http::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let upstream = upstream().await?.to_string();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };

    let mut config = Config::new(UpstreamConfig::new(upstream.parse()?));
    config.stream_routes = vec![("POST /api/v1/stream".parse()?, 100)]; // other requests take no permit
    let proxy = ReverseProxy::new(config, Identifier::new());

    let admission = Admission::builder().total(1).build(Quota::local());
    let server = HttpServer::new(listener, proxy.service(admission), HttpServerConfig::default());
    let running = tokio::spawn(server.run(shutdown));

    let plain = fetch(address, "GET /about").await?;
    assert!(plain.ends_with("\r\n\r\nGET /about"), "{plain}");
    let stream = fetch(address, "POST /api/v1/stream").await?;
    assert!(stream.ends_with("\r\n\r\nPOST /api/v1/stream"), "{stream}");
    assert!(!proxy.is_failing() && proxy.upstream_stats().dials > 0);

    proxy.drain().begin(); // refuses new streams; open ones continue
    assert!(fetch(address, "POST /api/v1/stream").await?.starts_with("HTTP/1.1 503 "));
    proxy.drain().streams_ended().await;

    stop.send(()).expect("the server runs");
    assert_eq!(running.await?.cut, 0);
    Ok(())
}

/// Starts a service that replies with the request line.
async fn upstream() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = service_fn(|request: Request<Incoming>| {
        let request_line = format!("{} {}", request.method(), request.uri());
        std::future::ready(Response::new(request_line))
    });
    let server = HttpServer::new(listener, service, HttpServerConfig::default());
    tokio::spawn(server.run(std::future::pending()));
    Ok(address)
}

/// Returns the whole response to a request without a body.
async fn fetch(address: SocketAddr, request: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let head = format!("{request} HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).await?;
    let mut response = String::new();
    socket.read_to_string(&mut response).await?;
    Ok(response)
}
