//! redis-rs: its multiplexed connection, and its connection manager, which also reconnects. The
//! race `redis` uses only the first, `resilience` both.
//!
//! Both have their default configuration, with a deadline of 500 ms. A longer queue, larger writes
//! and `TCP_NODELAY` were tried on the multiplexed connection. They made it slower with 1,000
//! tasks, and not faster in the other cases.

use ::redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use ::redis::{Client, Pipeline, cmd};
use anyhow::Result;

use super::contestant::RedisContestant;

/// Handle of a connection of either kind.
#[derive(Clone)]
pub(crate) struct RedisRs<C>(C);

pub(crate) type MultiplexedRedisRs = RedisRs<MultiplexedConnection>;
pub(crate) type ManagedRedisRs = RedisRs<ConnectionManager>;

/// Name and constructor of each kind of connection.
pub(crate) trait RedisRsConnection: ConnectionLike + Clone + Send + Sync + 'static {
    const NAME: &'static str;
    fn open(client: Client) -> impl Future<Output = Result<Self>> + Send;
}

impl RedisRsConnection for MultiplexedConnection {
    const NAME: &'static str = "redis-rs";

    async fn open(client: Client) -> Result<Self> {
        Ok(client.get_multiplexed_async_connection().await?)
    }
}

impl RedisRsConnection for ConnectionManager {
    const NAME: &'static str = "redis-rs-manager";

    async fn open(client: Client) -> Result<Self> {
        Ok(client.get_connection_manager().await?)
    }
}

impl<C: RedisRsConnection> RedisContestant for RedisRs<C> {
    const NAME: &'static str = C::NAME;

    async fn connect(url: &str) -> Result<Self> {
        Ok(Self(C::open(Client::open(url)?).await?))
    }

    async fn get(&mut self, key: &str) -> Result<String> {
        Ok(cmd("GET").arg(key).query_async(&mut self.0).await?)
    }

    async fn incr(&mut self, key: &str) -> Result<i64> {
        Ok(cmd("INCR").arg(key).query_async(&mut self.0).await?)
    }

    async fn get_many(&mut self, keys: &[String]) -> Result<Vec<String>> {
        let mut pipeline = Pipeline::with_capacity(keys.len());
        for key in keys {
            pipeline.cmd("GET").arg(key);
        }
        Ok(pipeline.query_async(&mut self.0).await?)
    }

    async fn set_and_get_twice(&mut self, key: &str, value: &str) -> Result<[String; 2]> {
        let mut pipeline = Pipeline::new();
        for _ in 0..2 {
            pipeline.cmd("SET").arg(key).arg(value).ignore().cmd("GET").arg(key);
        }
        let (first, second) = pipeline.query_async(&mut self.0).await?;
        Ok([first, second])
    }
}
