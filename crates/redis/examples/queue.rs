//! A job queue: one task waits with BLPOP on a dedicated connection while others push.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-redis --example queue`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_redis::RedisClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let client = RedisClient::connect(url.as_str()).await?;

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
