//! The example of the README. `tests/readme.rs` compares both.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! cargo run -p forebay-reservoir --example reservoir_readme
//! ```
//!
//! To get a server: `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
    let connect = PostgresConnect::new(&url)?;
    let limits = ConnectionLimits::local().per_second(100.0); // new connections, not queries
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(16), limits)?;
    reservoir.initial_fill(Duration::from_secs(10)).await?;

    let client = reservoir.checkout().await?; // already open
    let row = client.query_one("SELECT 6 * 7", &[]).await?;
    assert_eq!(row.get::<_, i32>(0), 42);
    drop(client); // returned, reset, and ready for the next caller

    let admin = reservoir.view("admin", 2); // at most two of the sixteen
    admin.checkout().await?.batch_execute("ANALYZE").await?;
    println!("{:?}", reservoir.status().counts);
    reservoir.close(Duration::from_secs(5)).await;
    Ok(())
}
