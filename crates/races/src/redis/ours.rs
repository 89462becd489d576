//! `forebay_redis` with its default configuration, deadlines included. Requests are not measured,
//! as in a build without the feature `metrics`, which the program turns on.

use anyhow::Result;
use forebay_redis::{IntoConfig as _, RedisClient};

use super::contestant::RedisContestant;

#[derive(Clone)]
pub(crate) struct ForebayRedis(RedisClient);

impl RedisContestant for ForebayRedis {
    const NAME: &'static str = "forebay";

    async fn connect(url: &str) -> Result<Self> {
        let mut config = url.into_config()?;
        config.measure_requests = false;
        Ok(Self(RedisClient::connect(config).await?))
    }

    async fn get(&mut self, key: &str) -> Result<String> {
        Ok(self.0.exec(("GET", key)).await?)
    }

    async fn incr(&mut self, key: &str) -> Result<i64> {
        Ok(self.0.exec(("INCR", key)).await?)
    }

    async fn get_many(&mut self, keys: &[String]) -> Result<Vec<String>> {
        let gets: Vec<_> = keys.iter().map(|key| ("GET", key)).collect();
        let values = self.0.pipeline::<Vec<String>>(gets).await?;
        Ok(values.into_iter().collect::<Result<_, _>>()?)
    }

    async fn set_and_get_twice(&mut self, key: &str, value: &str) -> Result<[String; 2]> {
        let (set, get) = (("SET", key, value), ("GET", key));
        let (_, first, _, second) = self.0.pipeline::<((), String, (), String)>((set, get, set, get)).await?;
        Ok([first?, second?])
    }
}
