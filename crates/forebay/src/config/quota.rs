//! Checked settings of `[redis]` and `[quota]`.

use std::time::Duration;

use forebay_quota::OutagePolicy;
use forebay_redis::{Config as RedisConfig, IntoConfig as _};

use super::settings_file::{QuotaSection, RedisSection};
use super::value_reader::{ValueError, ValueReader};

/// Membership of this instance in the cluster.
#[derive(Debug, Clone)]
pub struct QuotaConfig {
    /// Redis that instances share; `None`: counts are in memory and local to this instance.
    pub redis: Option<RedisConfig>,
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
        redis: &RedisSection,
        quota: &QuotaSection,
        reader: &ValueReader,
    ) -> Result<QuotaConfig, ValueError> {
        // The error contains neither the value nor a part of it, because it may contain a password.
        let url = redis.url.as_ref().map(|url| url.reveal().into_config());
        let url = url.transpose().map_err(|error| reader.error("redis.url", None, error))?;
        let namespace = redis.namespace.clone().unwrap_or_else(|| "forebay".to_owned());
        if namespace.is_empty()
            || namespace.contains(['{', '}'])
            || namespace.chars().any(char::is_whitespace)
        {
            let why =
                "must not be empty and must not contain white space or braces, which mark the hash slot";
            return Err(reader.error("redis.namespace", namespace, why));
        }
        let beat = reader.duration("quota.beat_ms", quota.beat_ms, Duration::from_secs(2))?;
        let ttl = reader.duration("quota.ttl_ms", quota.ttl_ms, Duration::from_secs(10))?;
        if ttl < beat * 2 {
            let why = format!("must be at least twice quota.beat_ms ({} ms)", beat.as_millis());
            return Err(reader.error("quota.ttl_ms", ttl.as_millis().to_string(), why));
        }
        let policies =
            [("share", OutagePolicy::Share), ("closed", OutagePolicy::Closed), ("open", OutagePolicy::Open)];
        let policy = reader.choice("quota.policy", quota.policy.as_ref(), &policies)?;
        Ok(QuotaConfig { redis: url, namespace, member: quota.member.clone(), policy, beat, ttl })
    }
}
