//! The example of the README: an axum app that serves live tables of its database next to a route
//! of its own. `tests/readme.rs` compares both.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! cargo run -p forebay-serve --example serve_readme
//! ```
//!
//! It prints its address. To get a server:
//! `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres -c wal_level=logical`.

#![allow(clippy::print_stdout, reason = "an example prints its address")]

use axum::Router;
use axum::routing::get;
use forebay_admission::{Admission, Identifier};
use forebay_quota::Quota;
use forebay_replication::ManagerConfig;
use forebay_replication::reservoir::PostgresConnect;
use forebay_serve::protocol::Access;
use forebay_serve::{Config, ShapeBackend};
use forebay_shapes::{Shapes, StoreConfig};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
    let store = Shapes::open(StoreConfig::new("./shapes"))?; // a folder for the logs
    let database = ManagerConfig::new(PostgresConnect::new(&url)?).slot("axum_app").publication("axum_app");
    let backend = ShapeBackend::start(store, database, Config::default())?;
    backend.manager().ready().await?;

    let admission = Admission::builder().total(10_000).build(Quota::local()); // live requests
    let access = Access::default(); // no secret, no tokens
    let service = backend.service(admission, Identifier::new(), access);
    let app = Router::new().route("/", get("an app")).route_service("/v1/shape", service);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, app).with_graceful_shutdown(ctrl_c).await?;
    backend.shutdown().await; // the slot stays: the next start continues
    Ok(())
}
