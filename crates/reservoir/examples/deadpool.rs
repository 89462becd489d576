//! A deadpool pool that takes its connections from a reservoir.
//!
//! Run with `cargo run -p forebay-reservoir --features deadpool --example deadpool`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use deadpool::managed::Pool;
use forebay_reservoir::{
    ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig, ReservoirView,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Postgres::start()?;
    let connect = PostgresConnect::new(&server.url("postgres"))?;
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(8), ConnectionLimits::local())?;

    // The pool may hold six of the eight connections.
    let pool: Pool<ReservoirView<PostgresClient>> =
        Pool::builder(reservoir.view("web", 6)).max_size(6).build()?;
    let client = pool.get().await?;
    let result: i32 = client.query_one("SELECT 6 * 7", &[]).await?.get(0);
    println!("result: {result}; {:?}", reservoir.status().counts);
    Ok(())
}
