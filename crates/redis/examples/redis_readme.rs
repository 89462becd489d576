//! First example of the README: sets a key and gets it. `tests/readme.rs` compares both.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-redis --example redis_readme`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use forebay_redis::RedisClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let client = RedisClient::connect(url).await?;
    client.exec::<()>(("SET", "greeting", "hello")).await?;
    let greeting: Option<String> = client.exec(("GET", "greeting")).await?;
    println!("{greeting:?}");
    assert_eq!(greeting.as_deref(), Some("hello"));
    client.close().await;
    Ok(())
}
