//! Peer `seed`: a limit with plain Redis counters. It reads the counts, increments them, and adds
//! the connection to a set.

use anyhow::{Result, ensure};
use forebay_redis::RedisClient;

const MAX_CONNECTIONS: u64 = 10_000;
const MAX_PER_USER: u64 = 3;

/// Counters in Redis: one for all connections, and one for each user.
pub(crate) struct CounterPool<'a> {
    pub(crate) client: &'a RedisClient,
}

impl CounterPool<'_> {
    /// Sends five commands, each after the reply to the previous one. Fails if a limit is reached.
    pub(crate) async fn acquire(&self, user: &str, thread: &str) -> Result<()> {
        let user_key = format!("connection_pool:user:{user}");
        let total: Option<u64> = self.client.exec(("GET", "connection_pool:total")).await?;
        let of_user: Option<u64> = self.client.exec(("GET", &user_key)).await?;
        ensure!(total.unwrap_or(0) < MAX_CONNECTIONS, "the pool is exhausted");
        ensure!(of_user.unwrap_or(0) < MAX_PER_USER, "the user has too many connections");
        self.client.exec::<u64>(("INCR", "connection_pool:total")).await?;
        self.client.exec::<u64>(("INCR", &user_key)).await?;
        self.client.exec::<u64>(("SADD", "connection_pool:connections", thread)).await?;
        Ok(())
    }

    /// Sends one more command. Returns the utilization in percent.
    pub(crate) async fn read_utilization(&self) -> Result<u64> {
        let total: Option<u64> = self.client.exec(("GET", "connection_pool:total")).await?;
        Ok(total.unwrap_or(0) * 100 / MAX_CONNECTIONS)
    }

    pub(crate) async fn release(&self, user: &str, thread: &str) -> Result<()> {
        let user_key = format!("connection_pool:user:{user}");
        self.client.exec::<i64>(("DECR", "connection_pool:total")).await?;
        self.client.exec::<i64>(("DECR", &user_key)).await?;
        self.client.exec::<u64>(("SREM", "connection_pool:connections", thread)).await?;
        Ok(())
    }
}
