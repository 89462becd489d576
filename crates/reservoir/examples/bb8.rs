//! A bb8 pool that takes its connections from a reservoir.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! cargo run -p forebay-reservoir --features bb8 --example bb8
//! ```
//!
//! To get a server: `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
    let connect = PostgresConnect::new(&url)?;
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(8), ConnectionLimits::local())?;

    // The pool may hold six of the eight. Its own lifetimes are disabled: the reservoir replaces
    // connections.
    let builder = bb8::Pool::builder().max_size(6).max_lifetime(None).idle_timeout(None);
    let pool = builder.build(reservoir.view("web", 6)).await?;
    let client = pool.get().await?;
    let result: i32 = client.query_one("SELECT 6 * 7", &[]).await?.get(0);
    println!("result: {result}; {:?}", reservoir.status().counts);
    Ok(())
}
