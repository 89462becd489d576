//! A job queue: one task waits with BLPOP on a dedicated connection while others push.
//!
//! `cargo run -p forebay-redis --example queue`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_redis::RedisClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Redis::start()?; // starts a throwaway server; use your own URL
    let client = RedisClient::connect(server.url()).await?;

    // BLPOP would block other callers on a shared connection, so it uses a dedicated one without a
    // deadline.
    let mut queue = client.dedicated().await?;
    let worker = tokio::spawn(async move {
        for _ in 0..3 {
            let (_list, job): (String, String) = queue.exec(("BLPOP", "example:jobs", 0)).await?;
            println!("working on {job}");
        }
        Ok::<_, forebay_redis::ExecError>(())
    });

    for job in ["one", "two", "three"] {
        client.exec::<()>(("RPUSH", "example:jobs", job)).await?;
    }
    worker.await??;
    Ok(())
}
