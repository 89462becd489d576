//! Messages as a stream that reports possible gaps.
//!
//! `cargo run -p forebay-redis --example subscribe`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use forebay_redis::{Event, Gap, RedisClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Redis::start()?; // starts a throwaway server; use your own URL
    let client = RedisClient::connect(server.url()).await?;
    let mut news = client.subscribe("example:news").await?;

    client.exec::<()>(("PUBLISH", "example:news", "before")).await?;
    // The server closes every subscribed connection; this one reconnects by itself.
    let killer = RedisClient::connect(server.url()).await?;
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
