//! The example of the README, compiled and run; `tests/readme.rs` makes sure that they are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use forebay_reservoir::{Limits, PostgresConnect, Reservoir, ReservoirConfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Postgres::start()?;

    let connect = PostgresConnect::new(&server.url("postgres"))?;
    let limits = Limits::local().per_second(100.0); // new connections, not queries
    let reservoir = Reservoir::start(connect, ReservoirConfig::new(16), limits)?;
    reservoir.initial_fill(Duration::from_secs(10)).await?;

    let client = reservoir.checkout().await?; // at once: it is open already
    let row = client.query_one("SELECT 6 * 7", &[]).await?;
    assert_eq!(row.get::<_, i32>(0), 42);
    drop(client); // goes back, is cleaned up, and waits for the next

    let admin = reservoir.view("admin", 2); // never more than two of the sixteen
    admin.checkout().await?.batch_execute("ANALYZE").await?;
    println!("{}", serde_json::to_string_pretty(&reservoir.status())?);
    reservoir.close(Duration::from_secs(5)).await;
    Ok(())
}
