//! fred: pipelines automatically, and has no response deadline by default.
//!
//! Default configuration, with its default reconnection policy enabled. `TCP_NODELAY` stays off, as
//! by default: when it was on, fred's pipelines were a third slower on our test machine.

use ::fred::prelude::{Builder, Client, ClientLike, Config, KeysInterface, ReconnectPolicy};
use ::fred::types::Value;
use anyhow::Result;

use super::contestant::RedisContestant;

#[derive(Clone)]
pub(crate) struct Fred(Client);

impl RedisContestant for Fred {
    const NAME: &'static str = "fred";

    async fn connect(url: &str) -> Result<Self> {
        let mut builder = Builder::from_config(Config::from_url(url)?);
        let client = builder.set_policy(ReconnectPolicy::default()).build()?;
        client.init().await?;
        Ok(Self(client))
    }

    async fn get(&mut self, key: &str) -> Result<String> {
        Ok(self.0.get(key).await?)
    }

    async fn incr(&mut self, key: &str) -> Result<i64> {
        Ok(self.0.incr(key).await?)
    }

    async fn get_many(&mut self, keys: &[String]) -> Result<Vec<String>> {
        let pipeline = self.0.pipeline();
        for key in keys {
            pipeline.get::<(), _>(key).await?;
        }
        Ok(pipeline.all().await?)
    }

    async fn set_and_get_twice(&mut self, key: &str, value: &str) -> Result<[String; 2]> {
        let pipeline = self.0.pipeline();
        for _ in 0..2 {
            pipeline.set::<(), _, _>(key, value, None, None, false).await?;
            pipeline.get::<(), _>(key).await?;
        }
        let (_, first, _, second): (Value, String, Value, String) = pipeline.all().await?;
        Ok([first, second])
    }
}
