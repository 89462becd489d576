//! An axum app with a route of its own that also serves live tables of its database:
//! `cargo run -p forebay-serve --example axum_app`.
//!
//! Without `DATABASE_URL` it starts a throwaway Postgres. `tests/readme.rs` checks that the
//! README's code is part of this file.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use forebay_admission::{Admission, Identifier};
use forebay_quota::Quota;
use forebay_replication::ManagerConfig;
use forebay_replication::reservoir::PostgresConnect;
use forebay_sandbox::{Postgres, TempFolder};
use forebay_serve::protocol::Access;
use forebay_serve::{Config, ShapeBackend};
use forebay_shapes::{Shapes, StoreConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let throwaway = match std::env::var_os("DATABASE_URL") {
        Some(_) => None,
        None => Some(Postgres::start()?),
    };
    let url = match &throwaway {
        Some(postgres) => postgres.url("postgres"),
        None => std::env::var("DATABASE_URL")?,
    };
    let folder = TempFolder::create()?;

    let store = Shapes::open(StoreConfig::new(folder.path()))?;
    let database = ManagerConfig::new(PostgresConnect::new(&url)?).slot("axum_app").publication("axum_app");
    let backend = ShapeBackend::start(store, database, Config::default())?;
    backend.manager().ready().await?;

    let admission = Admission::builder().total(10_000).build(Quota::local()); // live requests
    let access = Access::default(); // no secret, no tokens
    let service = backend.service(admission, Identifier::new(), access);
    let app = Router::new().route("/", get("an app")).route_service("/v1/shape", service);

    let client = backend.manager().admin().await?;
    let table = "CREATE TABLE axum_app_items (id int PRIMARY KEY, name text); INSERT INTO axum_app_items VALUES (1, 'chair')";
    client.batch_execute(table).await?;

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let serving = tokio::spawn(async { server.await });

    assert!(fetch(address, "/").await?.ends_with("\r\n\r\nan app"));
    let response = fetch(address, "/v1/shape?table=axum_app_items&offset=-1").await?;
    println!("{response}");
    assert!(response.starts_with("HTTP/1.0 200 OK\r\n") && response.contains("\r\nelectric-handle: "));
    assert!(response.contains(r#""value":{"id":"1","name":"chair"}"#));

    drop(stop);
    serving.await??;
    client.batch_execute("DROP TABLE axum_app_items").await?;
    drop(client);
    backend.shutdown_and_drop().await; // drops the slot; an app that restarts calls shutdown()
    Ok(())
}

/// Returns the whole response to a GET.
async fn fetch(address: SocketAddr, target: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut response = String::new();
    socket.read_to_string(&mut response).await?;
    Ok(response)
}
