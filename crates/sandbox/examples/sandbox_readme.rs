//! The example of the README. `crates/testkit/tests/packages.rs` compares both.
//!
//! `cargo run -p forebay-sandbox --example sandbox_readme`

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use forebay_sandbox::{Postgres, Redis};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = Redis::start()?;
    println!("{}", redis.url());

    let postgres = Postgres::start()?;
    let database = postgres.create_database("orders")?;
    println!("{}", postgres.url(&database));

    redis.kill(); // like a crash
    redis.revive()?; // with the same port and files
    Ok(())
}
