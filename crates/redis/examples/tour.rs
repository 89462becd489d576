//! Commands, pipelines, transactions, scripts and scans.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run -p forebay-redis --example tour`
//!
//! To get a server: `redis-server`, or `docker run --rm -p 6379:6379 redis`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;

use forebay_redis::{LuaScript, RedisClient, ScanCommand, cmd};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").map_err(|_| "set REDIS_URL, such as redis://127.0.0.1:6379")?;
    let client = RedisClient::connect(url.as_str()).await?;

    // A tuple is a command; the result type decides how the reply is decoded.
    client.exec::<()>(("HSET", "tour:ada", "name", "Ada", "born", 1815)).await?;
    let ada: HashMap<String, String> = client.exec(("HGETALL", "tour:ada")).await?;
    println!("a hash: {} was born in {}", ada["name"], ada["born"]);

    // A tuple of commands is one request; each command has its own result.
    let (visits, wrong) =
        client.pipeline::<(i64, i64)>((("INCR", "tour:visits"), ("GET", "tour:ada"))).await?;
    println!("a pipeline: visit {}, and separately: {}", visits?, wrong.expect_err("a hash is not a number"));

    // A list of commands is one request too.
    let commands: Vec<_> =
        (1..=5).map(|n| cmd("ZADD").arg("tour:scores").arg(n * 10).arg(format!("player{n}"))).collect();
    let added = client.pipeline::<Vec<u64>>(&commands).await?;
    println!("a longer one: {} commands", added.len());
    let best: Vec<(String, f64)> = client.exec(("ZRANGE", "tour:scores", 0, 1, "REV", "WITHSCORES")).await?;
    println!("the best: {best:?}");

    // All commands run, or none.
    let (left, right) =
        client.transaction::<(i64, i64)>((("DECR", "tour:left"), ("INCR", "tour:right"))).await?;
    println!("a transaction: {} and {}", left?, right?);

    // Scripts are called by their hash.
    let add = LuaScript::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    println!("a script: {}", add.run::<i64>(&client, ["tour:total"], [5]).await?);

    let mut keys = client.scan::<String>(ScanCommand::keys().matching("tour:*").count(100));
    let mut found = Vec::new();
    while let Some(key) = keys.next().await {
        found.push(key?);
    }
    found.sort_unstable();
    println!("a scan: {found:?}");

    client.exec::<()>(("DEL", found)).await?;
    client.close().await;
    Ok(())
}
