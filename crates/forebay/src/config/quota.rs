//! Checked settings of `[redis]` and `[quota]`.

use std::sync::Arc;
use std::time::Duration;

use forebay_quota::OutagePolicy;
use forebay_redis::{Config as RedisConfig, IntoConfig as _, RedisPasswordFile};
use forebay_settings::{SettingLayers, ValueError};

use super::sections::{QuotaSection, RedisSection};

/// Error of a build without the feature, and how to build one with it.
pub(super) const WITHOUT_AWS: &str =
    "was built without AWS; build it with `cargo install --path crates/forebay --features aws`";

/// Membership of this instance in the cluster.
#[derive(Debug, Clone)]
pub struct QuotaConfig {
    /// Redis that instances share; `None`: counts are in memory and local to this instance.
    pub redis: Option<RedisConfig>,
    /// DynamoDB table that instances share, instead of Redis.
    pub table: Option<String>,
    /// Prefix of all keys.
    pub namespace: String,
    /// Name of this instance; `None`: derived from host name and address.
    pub member: Option<String>,
    /// Behavior while the store is unavailable.
    pub policy: OutagePolicy,
    /// Interval of heartbeats.
    pub beat: Duration,
    /// Time after the last heartbeat until this instance expires.
    pub ttl: Duration,
}

impl QuotaConfig {
    pub(super) fn check(
        redis: RedisSection,
        quota: QuotaSection,
        layers: &SettingLayers,
    ) -> Result<QuotaConfig, ValueError> {
        let server = redis_config(&redis, layers)?;
        let QuotaSection { member, table, policy, beat_ms: beat, ttl_ms: ttl } = quota;
        if let Some(table) = &table {
            let why = match server {
                _ if !cfg!(feature = "aws") => format!("has no effect: this program {WITHOUT_AWS}"),
                Some(_) => "conflicts with redis.url: set only one".to_owned(),
                None => String::new(),
            };
            if !why.is_empty() {
                return Err(layers.error("quota.table", table.clone(), why));
            }
        }
        if ttl < beat * 2 {
            let why = format!("must be at least twice quota.beat_ms ({} ms)", beat.as_millis());
            return Err(layers.error("quota.ttl_ms", ttl.as_millis().to_string(), why));
        }
        Ok(QuotaConfig { redis: server, table, namespace: redis.namespace, member, policy, beat, ttl })
    }
}

/// Checks the URL and the password file.
fn redis_config(redis: &RedisSection, layers: &SettingLayers) -> Result<Option<RedisConfig>, ValueError> {
    const FILE: &str = "redis.password_file";
    // The error contains neither the value nor a part of it, because it may contain a password.
    let config = redis.url.as_ref().map(|url| url.reveal().into_config());
    let mut config = config.transpose().map_err(|error| layers.error("redis.url", None, error))?;
    layers.read_file(FILE, redis.password_file.as_ref())?;
    match (&mut config, &redis.password_file) {
        (Some(config), Some(path)) => config.credentials = Some(Arc::new(RedisPasswordFile::new(path))),
        (None, Some(path)) => {
            let why = "has no effect without redis.url: set both, or neither";
            return Err(layers.error(FILE, path.display().to_string(), why));
        }
        (Some(_) | None, None) => {}
    }
    Ok(config)
}
