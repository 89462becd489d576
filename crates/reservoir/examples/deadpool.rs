//! A deadpool pool that takes its connections from a reservoir.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! cargo run -p forebay-reservoir --features deadpool --example deadpool
//! ```
//!
//! To get a server: `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use deadpool::managed::Pool;
use forebay_reservoir::{
    ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, ReservoirView,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
    let connect = PostgresConnect::new(&url)?;
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(8), ConnectionLimits::local())?;

    // The pool may hold six of the eight connections.
    let pool: Pool<ReservoirView<PostgresClient>> =
        Pool::builder(reservoir.view("web", 6)).max_size(6).build()?;
    let client = pool.get().await?;
    let result: i32 = client.query_one("SELECT 6 * 7", &[]).await?.get(0);
    println!("result: {result}; {:?}", reservoir.status().counts);
    Ok(())
}
