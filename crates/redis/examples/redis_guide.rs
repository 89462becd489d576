//! The other examples of the README, in its order. `tests/readme.rs` compares both.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-redis --example redis_guide`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_redis::{Event, IntoConfig, LuaScript, RedisClient, Retry, ScanCommand, cmd};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let client = RedisClient::connect(url.as_str()).await?;
    client.exec::<()>(("SET", "greeting", "hello")).await?;

    client.exec::<()>(("ZADD", "scores", 1.5, "ada")).await?;
    client.exec::<()>(("MSET", BTreeMap::from([("a", 1), ("b", 2)]))).await?;
    let removed: u64 = client.exec(("DEL", ["a", "b"])).await?;
    let ranking = cmd("ZRANGE").arg("scores").arg(0).arg(-1).arg("WITHSCORES");
    let ranked: Vec<(String, f64)> = client.exec(ranking).await?;
    assert_eq!((removed, ranked), (2, vec![("ada".into(), 1.5)]));

    let (visits, name) =
        client.pipeline::<(i64, Option<String>)>((("INCR", "visits"), ("GET", "name"))).await?;
    let keys = ["a", "b", "c"].map(|key| ("GET", key));
    let values = client.pipeline::<Vec<Option<String>>>(keys).await?;
    let (left, right) = client.transaction::<(i64, i64)>((("DECR", "left"), ("INCR", "right"))).await?;
    assert_eq!((visits?, name?, values.len(), left?, right?), (1, None, 3, -1, 1));

    client.exec::<()>(("SET", "user:1", "ada")).await?;
    client.exec::<()>(("RPUSH", "jobs", "job")).await?;
    let add = LuaScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    let total: i64 = add.run(&client, ["total"], [5]).await?;

    let mut users = client.scan::<String>(ScanCommand::keys().matching("user:*").count(1000));
    while let Some(key) = users.next().await {
        println!("{}", key?);
    }

    let mut queue = client.dedicated().await?; // a dedicated connection, without a deadline
    let (list, job): (String, String) = queue.exec(("BLPOP", "jobs", 0)).await?;
    assert_eq!((total, list.as_str(), job.as_str()), (5, "jobs", "job"));

    let publisher = client.clone();
    let published = tokio::spawn(async move {
        // Until the subscriber receives it.
        while publisher.exec::<u64>(("PUBLISH", "news", "good")).await? == 0 {
            tokio::task::yield_now().await;
        }
        Ok::<_, forebay_redis::ExecError>(())
    });
    let mut news = client.subscribe("news").await?;
    match news.next().await {
        Some(Event::Message(message)) => println!("{:?}", message.payload),
        Some(Event::Gap(gap)) => println!("something may be missing here: {gap:?}"),
        _ => println!("the client was closed"),
    }
    published.await??;

    match client.exec::<i64>(("INCR", "greeting")).await {
        Ok(value) => println!("{value}"),
        Err(error) if error.retry() == Retry::Safe => println!("later: {error}"),
        Err(error) => println!("no: {error}"),
    }

    let mut config = url.as_str().into_config()?;
    config.response_timeout = Some(Duration::from_millis(500));
    config.max_requests = 10_000;
    let strict = RedisClient::connect(config).await?;
    strict.close().await;
    Ok(())
}
