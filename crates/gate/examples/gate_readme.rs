//! The example of the README. `tests/readme.rs` compares both.
//!
//! `UPSTREAM=127.0.0.1:8000 cargo run -p forebay-gate --example gate_readme` prints the address of
//! the gate. To get an upstream: `python3 -m http.server 8000`.

#![allow(clippy::print_stdout, reason = "an example prints its address")]

use forebay_admission::{Admission, Identifier};
use forebay_gate::{Config, ReverseProxy, UpstreamConfig};
use forebay_quota::Quota;
use forebay_stream::{HttpServer, HttpServerConfig};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let upstream = std::env::var("UPSTREAM").map_err(|_| "set UPSTREAM, such as 127.0.0.1:8000")?;
    let mut config = Config::new(UpstreamConfig::new(upstream.parse()?));
    config.stream_routes = vec![("POST /api/v1/stream".parse()?, 100)]; // other requests take no permit
    let proxy = ReverseProxy::new(config, Identifier::new());

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let admission = Admission::builder().total(1).build(Quota::local()); // a second stream gets a 503
    let server = HttpServer::new(listener, proxy.service(admission), HttpServerConfig::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async { drop(stopped.await) }));

    tokio::signal::ctrl_c().await?;
    proxy.drain().begin(); // refuses new streams; open ones continue
    proxy.drain().streams_ended().await;
    drop(stop);
    running.await?;
    Ok(())
}
