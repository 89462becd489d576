//! The example of the README; `tests/readme.rs` checks that both are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Postgres::start()?;

    let connect = PostgresConnect::new(&server.url("postgres"))?;
    let limits = ConnectionLimits::local().per_second(100.0); // new connections, not queries
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(16), limits)?;
    reservoir.initial_fill(Duration::from_secs(10)).await?;

    let client = reservoir.checkout().await?; // already open
    let row = client.query_one("SELECT 6 * 7", &[]).await?;
    assert_eq!(row.get::<_, i32>(0), 42);
    drop(client); // returned, reset, and ready for the next caller

    let admin = reservoir.view("admin", 2); // at most two of the sixteen
    admin.checkout().await?.batch_execute("ANALYZE").await?;
    println!("{}", serde_json::to_string_pretty(&reservoir.status())?);
    reservoir.close(Duration::from_secs(5)).await;
    Ok(())
}
