//! rustis: batches automatically, and has no response deadline by default.
//!
//! Default configuration, except for batches of 512 commands instead of 48. They made it up to a
//! quarter faster on our test machine, with many tasks.

use ::rustis::client::{BatchPreparedCommand, Client, IntoConfig};
use ::rustis::commands::StringCommands;
use anyhow::Result;

use super::contestant::RedisContestant;

#[derive(Clone)]
pub(crate) struct Rustis(Client);

impl RedisContestant for Rustis {
    const NAME: &'static str = "rustis";

    async fn connect(url: &str) -> Result<Self> {
        let mut config = url.into_config()?;
        config.max_messages_per_wave = 512;
        Ok(Self(Client::connect(config).await?))
    }

    async fn get(&mut self, key: &str) -> Result<String> {
        Ok(self.0.get(key).await?)
    }

    async fn incr(&mut self, key: &str) -> Result<i64> {
        Ok(self.0.incr(key).await?)
    }

    async fn get_many(&mut self, keys: &[String]) -> Result<Vec<String>> {
        let mut pipeline = self.0.create_pipeline();
        pipeline.reserve(keys.len());
        for key in keys {
            pipeline.get::<()>(key).queue();
        }
        Ok(pipeline.execute().await?)
    }

    async fn set_and_get_twice(&mut self, key: &str, value: &str) -> Result<[String; 2]> {
        let mut pipeline = self.0.create_pipeline();
        for _ in 0..2 {
            pipeline.set(key, value).forget();
            pipeline.get::<()>(key).queue();
        }
        Ok(pipeline.execute().await?)
    }
}
