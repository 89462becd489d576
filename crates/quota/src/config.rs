//! How a member behaves.

use std::time::Duration;

use serde::Serialize;

use crate::store::{Sharing, plain_name};

/// A member's name and manners.
#[derive(Debug, Clone)]
pub struct MemberConfig {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(crate) call_timeout: Duration,
    pub(crate) join_timeout: Duration,
}

/// What the pure core goes by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) beat: Duration,
    pub(crate) ttl: Duration,
    pub(crate) margin: Duration,
    pub(crate) policy: Policy,
    pub(crate) retry: Duration,
    pub(crate) refusal_hold: Duration,
    pub(crate) key_refresh: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) batch: usize,
}

impl Rules {
    /// Such that they fit each other, whatever was asked for.
    pub(crate) fn made_sensible(mut self) -> Self {
        self.ttl = self.ttl.clamp(Duration::from_millis(10), Duration::from_secs(24 * 3600));
        self.margin = self.ttl / 10;
        self.beat = self.beat.clamp(Duration::from_millis(1), self.ttl / 3);
        self.retry = self.retry.min(self.beat);
        self
    }
}

/// Stores may forget a key that nobody has touched for so long; members refresh theirs in half the time. Liveness doesn't
/// depend on it: it only cleans up after keys whose last holder died.
pub(crate) const KEY_LIFE: Duration = Duration::from_secs(3600);

impl MemberConfig {
    /// A member called `name`: the same name again after a restart takes over from the last incarnation at once. Two
    /// processes must not share a name; if they do, the first goes on under another.
    ///
    /// Of the name, letters, digits and `-._:+` are kept, up to 64 of them; others become `_`.
    pub fn new(name: impl AsRef<str>) -> Self {
        let mut name = plain_name(name.as_ref());
        name.truncate(64); // it is ASCII
        let rules = Rules {
            beat: Duration::from_secs(2),
            ttl: Duration::from_secs(10),
            margin: Duration::from_secs(1),
            policy: Policy::Share,
            retry: Duration::from_millis(500),
            refusal_hold: Duration::from_millis(50),
            key_refresh: KEY_LIFE / 2,
            max_waiting: 65_536,
            batch: 256,
        };
        let (call_timeout, join_timeout) = (Duration::from_millis(500), Duration::from_secs(2));
        MemberConfig { name, rules, call_timeout, join_timeout }
    }

    /// How often it tells the store that it lives. 2 s by default: a fifth of the TTL, so that four may be lost. At most a
    /// third of the TTL: a longer one is shortened.
    pub fn beat(mut self, beat: Duration) -> Self {
        self.rules.beat = beat;
        self
    }

    /// For how long the store believes a beat: a member that is gone loses what it held after that. 10 s by default.
    ///
    /// A tenth of it is the margin by which a member stops trusting its slices before the store does.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.rules.ttl = ttl;
        self
    }

    /// What to do without the store. `Share` by default.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.rules.policy = policy;
        self
    }

    /// How long the store may take to answer a call before it counts as away. 500 ms by default.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How long [`Quota::join`](crate::Quota::join) waits to be let in before it goes on without the store. 2 s by default.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// How many callers may wait for the store at once; more are refused as `Busy`. 65,536 by default.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.rules.max_waiting = max_waiting;
        self
    }
}

/// What a member does while it can't reach the store: a budget beyond its slice's deadline, a keyed limit at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Grants nothing: never too many, at the price of refusing.
    Closed,
    /// Of a budget, this member's equal part of the limit by the last known number of members; of a keyed limit, what it
    /// has lent itself, up to the limit.
    Share,
    /// Grants everything.
    Open,
}

impl Policy {
    /// In logs, metrics and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Closed => "closed",
            Policy::Share => "share",
            Policy::Open => "open",
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        [Policy::Closed, Policy::Share, Policy::Open]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| UnknownPolicy(text.into()))
    }
}

/// No policy is called so.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no policy is called {0:?}; there are: closed, share, open")]
pub struct UnknownPolicy(String);

/// A budget's limit, and what becomes of the units of a process that was replaced.
#[derive(Debug, Clone, Copy)]
pub struct BudgetConfig {
    pub(crate) limit: u32,
    pub(crate) sharing: Sharing,
}

impl BudgetConfig {
    /// A budget of `limit` units in the whole cluster. A member that restarts has its predecessor's units back at once.
    pub fn new(limit: u32) -> Self {
        BudgetConfig { limit, sharing: Sharing::Blocks }
    }

    /// The units stand for something that may outlive its process for a while (a server's end of a connection): a
    /// restarted member's old units are free only when they expire.
    pub fn held_until_expiry(mut self) -> Self {
        self.sharing = Sharing::BlocksUntilExpiry;
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
    /// So many tokens a second in the whole cluster, and up to a tenth of a second's worth of them at once. More than a
    /// thousand million a second are as many; less than one in a million seconds is that.
    ///
    /// # Panics
    /// If `per_second` isn't a positive number.
    pub fn per_second(per_second: f64) -> Self {
        assert!(per_second.is_finite() && per_second > 0.0, "a rate must be a positive number");
        let per_second = per_second.clamp(1e-6, 1e9);
        RateConfig { per_second, burst: (per_second / 10.0).clamp(1.0, 1e6) as u32, batch: 1 }
    }

    /// How many tokens may be taken at once after a pause.
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst.max(1);
        self
    }

    /// How many tokens to fetch with one call where the store is slow; those that aren't used within a second are lost.
    /// 1 by default; for DynamoDB, a tenth of the rate is sensible.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_always_fits_its_ttl_several_times() {
        let rules = |config: MemberConfig| config.rules.made_sensible();
        let short = rules(MemberConfig::new("a").ttl(Duration::from_secs(1)));
        assert_eq!((short.beat, short.margin), (Duration::from_secs(1) / 3, Duration::from_millis(100)));
        let endless = rules(MemberConfig::new("a").ttl(Duration::MAX).beat(Duration::MAX));
        assert_eq!((endless.ttl, endless.beat), (Duration::from_secs(86_400), Duration::from_secs(28_800)));
        let none = rules(MemberConfig::new("a").ttl(Duration::ZERO).beat(Duration::ZERO));
        assert_eq!((none.ttl, none.beat), (Duration::from_millis(10), Duration::from_millis(1)));
    }
}
