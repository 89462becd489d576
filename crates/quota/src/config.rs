//! Configuration of a member, its budgets and its rates.

use std::time::Duration;

use serde::Serialize;

use crate::store::{Allocation, sanitize_name};

/// A member's name, timing and outage policy.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    pub(crate) name: String,
    pub(crate) rules: MemberRules,
    pub(crate) call_timeout: Duration,
    pub(crate) join_timeout: Duration,
}

/// Settings of the pure core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberRules {
    pub(crate) heartbeat_interval: Duration,
    pub(crate) ttl: Duration,
    pub(crate) margin: Duration,
    pub(crate) policy: OutagePolicy,
    pub(crate) retry: Duration,
    pub(crate) refusal_hold: Duration,
    pub(crate) key_refresh: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) batch: usize,
}

impl MemberRules {
    /// Returns settings that are consistent: the TTL within its bounds, at least three heartbeats
    /// in a TTL.
    pub(crate) fn clamped(mut self) -> Self {
        self.ttl = self.ttl.clamp(Duration::from_millis(10), Duration::from_secs(24 * 3600));
        self.margin = self.ttl / 10;
        self.heartbeat_interval = self.heartbeat_interval.clamp(Duration::from_millis(1), self.ttl / 3);
        self.retry = self.retry.min(self.heartbeat_interval);
        self
    }
}

/// A store may delete a key after this time without writes. Members rewrite their keys in half that
/// time.
/// It only removes keys whose last holder has ended; liveness doesn't depend on it.
pub(crate) const KEY_TTL: Duration = Duration::from_secs(3600);

impl MemberConfig {
    /// Creates the configuration of the member `name`.
    /// A process that restarts under the same name takes over its predecessor's units at once. Two
    /// processes must not share a name; if they do, the first one continues under another name.
    ///
    /// Letters, digits and `-._:+` are kept, up to 64 of them. Other characters become `_`.
    pub fn new(name: impl AsRef<str>) -> Self {
        let mut name = sanitize_name(name.as_ref());
        name.truncate(64); // the name is ASCII
        let rules = MemberRules {
            heartbeat_interval: Duration::from_secs(2),
            ttl: Duration::from_secs(10),
            margin: Duration::from_secs(1),
            policy: OutagePolicy::Share,
            retry: Duration::from_millis(500),
            refusal_hold: Duration::from_millis(50),
            key_refresh: KEY_TTL / 2,
            max_waiting: 65_536,
            batch: 256,
        };
        let (call_timeout, join_timeout) = (Duration::from_millis(500), Duration::from_secs(2));
        MemberConfig { name, rules, call_timeout, join_timeout }
    }

    /// Sets the heartbeat interval. 2 s by default: a fifth of the TTL, so that four heartbeats may
    /// be lost.
    /// A value above a third of the TTL is lowered to that.
    pub fn heartbeat_interval(mut self, interval: Duration) -> Self {
        self.rules.heartbeat_interval = interval;
        self
    }

    /// Sets the time after which the store removes a member without heartbeats, with all it holds.
    /// 10 s by default.
    ///
    /// A member stops lending from its slices a tenth of the TTL before the store expires it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.rules.ttl = ttl;
        self
    }

    /// Sets the behaviour while the store is unavailable or rebuilds. `Share` by default.
    pub fn policy(mut self, policy: OutagePolicy) -> Self {
        self.rules.policy = policy;
        self
    }

    /// Sets the timeout of a call to the store. 500 ms by default.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Sets how long [`Quota::join`](crate::Quota::join) waits for the store before it continues
    /// without it. 2 s by default.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// Sets the maximum number of callers that wait for the store; more are refused as `Busy`.
    /// 65,536 by default.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.rules.max_waiting = max_waiting;
        self
    }
}

/// What a member grants while the store is unavailable, and while the store rebuilds.
///
/// Without the store, budgets use it after the slice deadline, keyed limits at once.
/// In a rebuild the store is available, but members may have yet to report what they hold: in a new
/// namespace, after data loss, and after an outage in which members expired. Reported units count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutagePolicy {
    /// Grants nothing new. The limit always holds.
    Closed,
    /// Of a budget, grants this member up to an equal part of the limit, by the last known number
    /// of members. Of a keyed limit, grants up to the limit in each member; in a rebuild, less what
    /// other members have reported.
    Share,
    /// Grants everything without the store. In a rebuild, grants as if all members had reported.
    Open,
}

impl OutagePolicy {
    /// Returns the name used in logs, metrics and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            OutagePolicy::Closed => "closed",
            OutagePolicy::Share => "share",
            OutagePolicy::Open => "open",
        }
    }
}

impl std::str::FromStr for OutagePolicy {
    type Err = ParseOutagePolicyError;

    fn from_str(text: &str) -> Result<Self, ParseOutagePolicyError> {
        [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| ParseOutagePolicyError(text.into()))
    }
}

/// The text is not the name of an outage policy.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no policy is called {0:?}; there are: closed, share, open")]
pub struct ParseOutagePolicyError(String);

/// A budget's limit, and how the units of a replaced process are freed.
#[derive(Debug, Clone, Copy)]
pub struct BudgetConfig {
    pub(crate) limit: u32,
    pub(crate) allocation: Allocation,
}

impl BudgetConfig {
    /// Creates a budget of `limit` units for the whole cluster. A member that restarts has its
    /// predecessor's units at once.
    pub fn new(limit: u32) -> Self {
        BudgetConfig { limit, allocation: Allocation::Blocks }
    }

    /// Keeps the units of a replaced process until they expire.
    /// Use it for units that stand for something that may outlive its process, such as the server's
    /// end of a connection.
    ///
    /// While the store rebuilds, nothing new is granted, whatever the policy. After a loss of data,
    /// the units of a replaced process count until the rebuild ends, for at least half a TTL.
    pub fn held_until_expiry(mut self) -> Self {
        self.allocation = Allocation::BlocksUntilExpiry;
        self
    }
}

/// A cluster-wide rate.
#[derive(Debug, Clone, Copy)]
pub struct RateConfig {
    pub(crate) per_second: f64,
    pub(crate) burst: u32,
    pub(crate) batch: u32,
}

impl RateConfig {
    /// Allows `per_second` tokens a second in the whole cluster, with a burst of a tenth of that.
    /// The rate is clamped to 1e-6 ..= 1e9.
    ///
    /// # Panics
    /// If `per_second` isn't a positive number.
    pub fn per_second(per_second: f64) -> Self {
        assert!(per_second.is_finite() && per_second > 0.0, "a rate must be a positive number");
        let per_second = per_second.clamp(1e-6, 1e9);
        RateConfig { per_second, burst: (per_second / 10.0).clamp(1.0, 1e6) as u32, batch: 1 }
    }

    /// Sets the number of tokens that can be taken at once after a pause.
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst.max(1);
        self
    }

    /// Sets how many tokens one call fetches. Tokens that aren't used within a second are lost.
    /// 1 by default. For DynamoDB, use about a tenth of the rate.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_least_three_heartbeats_fit_in_a_ttl() {
        let rules = |config: MemberConfig| config.rules.clamped();
        let short = rules(MemberConfig::new("a").ttl(Duration::from_secs(1)));
        assert_eq!(
            (short.heartbeat_interval, short.margin),
            (Duration::from_secs(1) / 3, Duration::from_millis(100))
        );
        let endless = rules(MemberConfig::new("a").ttl(Duration::MAX).heartbeat_interval(Duration::MAX));
        assert_eq!(
            (endless.ttl, endless.heartbeat_interval),
            (Duration::from_secs(86_400), Duration::from_secs(28_800))
        );
        let none = rules(MemberConfig::new("a").ttl(Duration::ZERO).heartbeat_interval(Duration::ZERO));
        assert_eq!(
            (none.ttl, none.heartbeat_interval),
            (Duration::from_millis(10), Duration::from_millis(1))
        );
    }
}
