//! Messages as a stream that reports possible gaps.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-redis --example subscribe`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_redis::{Event, Gap, RedisClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let client = RedisClient::connect(url.as_str()).await?;
    let mut news = client.subscribe("example:news").await?;

    client.exec::<()>(("PUBLISH", "example:news", "before")).await?;
    // The server closes every subscribed connection; this one reconnects by itself.
    let killer = RedisClient::connect(url.as_str()).await?;
    killer.exec::<()>(("CLIENT", "KILL", "TYPE", "pubsub")).await?;
    let publisher = tokio::spawn(async move {
        // Until the server counts a receiver: the subscriber has reconnected.
        while killer.exec::<u64>(("PUBLISH", "example:news", "after")).await? == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Ok::<_, forebay_redis::ExecError>(())
    });

    while let Some(event) = news.next().await {
        match event {
            Event::Message(message) => {
                println!("news: {}", String::from_utf8_lossy(&message.payload));
                if message.payload == "after" {
                    break;
                }
            }
            Event::Gap(Gap::Reconnected) => {
                println!("the connection was lost: something may be missing here")
            }
            Event::Gap(gap) => println!("something is missing here: {gap:?}"),
            _ => {}
        }
    }
    publisher.await??;
    Ok(())
}
