//! How a reservoir behaves.

use std::time::Duration;

use forebay_quota::{Budget, BudgetConfig, Quota, Rate, RateConfig};

use crate::core::ledger::{Backoff, Lifetime, Rules};
use crate::shared::FOREVER;

/// How many connections are opened per second if nobody says otherwise, in the whole cluster.
pub const DEFAULT_RATE: f64 = 100.0;

/// How big a reservoir is, and how long its connections live.
#[derive(Debug, Clone)]
pub struct ReservoirConfig {
    pub(crate) service: String,
    target_ready: u32,
    low_watermark: Option<u32>,
    max: Option<u32>,
    lifetime: Lifetime,
    guard_window: Duration,
    lead: Option<Duration>,
    max_dials: u32,
    max_waiting: usize,
    leak_after: Duration,
    pub(crate) reset: Reset,
    pub(crate) checkout_timeout: Duration,
    pub(crate) dial_timeout: Duration,
    pub(crate) reset_timeout: Duration,
    pub(crate) close_timeout: Duration,
}

/// What is done to a connection between two callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reset {
    /// Nothing. A transaction that was left open is then the next caller's.
    None,
    /// An open transaction is rolled back; cursors, roles taken on, settings, subscriptions, advisory locks, temporary tables and cached
    /// sequences go. Prepared statements stay: the client knows them.
    Standard,
    /// Statements of your own. Begin with `ROLLBACK`.
    Custom(String),
}

/// Not `DISCARD ALL`, which would drop the prepared statements that the client believes to be there.
const STANDARD_RESET: &str = "ROLLBACK; CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
     SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";

impl Reset {
    pub(crate) fn script(&self) -> Option<&str> {
        match self {
            Reset::None => None,
            Reset::Standard => Some(STANDARD_RESET),
            Reset::Custom(script) => Some(script),
        }
    }
}

impl ReservoirConfig {
    /// Keeps about `target_ready` connections, in use or not.
    ///
    /// # Panics
    /// If it is 0.
    pub fn new(target_ready: u32) -> Self {
        assert!(target_ready > 0, "a reservoir of no connections has nothing to lend");
        ReservoirConfig {
            service: "default".into(),
            target_ready,
            low_watermark: None,
            max: None,
            lifetime: Lifetime {
                base: Duration::from_secs(11 * 60),
                jitter: Duration::from_secs(2 * 60),
                downward: false,
            },
            guard_window: Duration::from_secs(45),
            lead: None,
            max_dials: 8,
            max_waiting: 65_536,
            leak_after: Duration::from_secs(60),
            reset: Reset::Standard,
            checkout_timeout: Duration::from_millis(100),
            dial_timeout: Duration::from_secs(30),
            reset_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_secs(10 * 60),
        }
    }

    /// For Aurora DSQL, which ends every connection after an hour: 55 minutes less up to five, and only a ROLLBACK between two
    /// callers, since it knows none of the other statements.
    pub fn aurora_dsql(target_ready: u32) -> Self {
        let mut config = ReservoirConfig::new(target_ready).reset(Reset::Custom("ROLLBACK".into()));
        config.lifetime = Lifetime {
            base: Duration::from_secs(55 * 60),
            jitter: Duration::from_secs(5 * 60),
            downward: true,
        };
        config
    }

    /// The `service` of its metrics and logs.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// Below how many ready connections the refiller hurries, and for how many the first filling waits. Half of the target by
    /// default; at most the target.
    pub fn low_watermark(mut self, low_watermark: u32) -> Self {
        self.low_watermark = Some(low_watermark);
        self
    }

    /// How many connections there may ever be, those that are being opened and closed included: a connection counts until the
    /// server has closed its end, see [`close_timeout`](Self::close_timeout). By default an eighth more than the target, and at
    /// least one more: the room to replace one before it goes.
    pub fn max(mut self, max: u32) -> Self {
        self.max = Some(max);
        self
    }

    /// How long a connection lives at least. 11 minutes by default.
    pub fn base_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime.base = lifetime;
        self
    }

    /// How much longer, by chance. 2 minutes by default.
    pub fn lifetime_jitter(mut self, jitter: Duration) -> Self {
        self.lifetime.jitter = jitter;
        self
    }

    /// No connection is lent that ends within this. 45 s by default.
    pub fn guard_window(mut self, window: Duration) -> Self {
        self.guard_window = window;
        self
    }

    /// How long before its guard window a connection is replaced. As long as the guard window by default; at most half of the time
    /// between birth and guard window.
    pub fn replace_ahead(mut self, lead: Duration) -> Self {
        self.lead = Some(lead);
        self
    }

    /// How many connections may be opened at the same time. 8 by default.
    pub fn max_dials(mut self, max_dials: u32) -> Self {
        self.max_dials = max_dials.max(1);
        self
    }

    /// How many callers may wait at once; more are told [`Busy`](crate::CheckoutError::Busy). 65,536 by default.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// A connection that is held for longer is logged, with where it was asked for. 60 s by default.
    pub fn leak_after(mut self, leak_after: Duration) -> Self {
        self.leak_after = leak_after;
        self
    }

    /// What is done between two callers. [`Reset::Standard`] by default.
    pub fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    /// How long [`checkout`](crate::Reservoir::checkout) waits. 100 ms by default.
    pub fn checkout_timeout(mut self, timeout: Duration) -> Self {
        self.checkout_timeout = timeout;
        self
    }

    /// How long credentials may take, and then the connection. 30 s by default.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial_timeout = timeout;
        self
    }

    /// How long the server may take to close its end of a connection that is closed here, or of a dial that was given up. Until
    /// then its place and its lease stay taken; after it they are given back with a warning, and the server may have more
    /// than [`max`](Self::max). 10 minutes by default.
    ///
    /// A backend that runs a query which can't be cancelled, one that is stopped, and one that still authenticates take
    /// that long. [`Reservoir::close`](crate::Reservoir::close) has a deadline of its own.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Such that they fit each other, whatever was asked for.
    pub(crate) fn rules(&self) -> Rules {
        let max = self
            .max
            .unwrap_or_else(|| self.target_ready.saturating_add((self.target_ready / 8).max(1)))
            .max(1);
        let target = self.target_ready.min(max);
        let Lifetime { base, jitter, downward } = self.lifetime;
        let lifetime = Lifetime { base: base.min(FOREVER), jitter: jitter.min(FOREVER), downward };
        let guard_window = self.guard_window.min(FOREVER);
        // One that is to be replaced from its birth on would be replaced for ever.
        let most_lead = self.shortest_life().saturating_sub(guard_window) / 2;
        Rules {
            target,
            low_watermark: self.low_watermark.unwrap_or(target / 2).clamp(1, target),
            max,
            lifetime,
            guard_window,
            lead: self.lead.unwrap_or(guard_window).min(most_lead),
            max_dials: self.max_dials,
            max_waiting: self.max_waiting,
            resets: self.reset != Reset::None,
            leak_after: self.leak_after.min(FOREVER),
            backoff: Backoff {
                first: Duration::from_millis(100),
                most: Duration::from_secs(10),
                first_patient: Duration::from_secs(2),
                most_patient: Duration::from_secs(60),
            },
        }
    }

    fn shortest_life(&self) -> Duration {
        let Lifetime { base, jitter, downward } = self.lifetime;
        if downward { base.saturating_sub(jitter) } else { base }.min(FOREVER)
    }

    /// Whether a connection lives long enough to be lent at all.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let shortest = self.shortest_life();
        if shortest <= self.guard_window {
            return Err(ConfigError::NeverLent { lifetime: shortest, guard_window: self.guard_window });
        }
        Ok(())
    }
}

/// Settings that contradict each other, or can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Connections would be of no use from the start.
    #[error(
        "a lifetime of {lifetime:?} within a guard window of {guard_window:?}: no connection would ever be lent; \
         make the lifetime longer or the window shorter"
    )]
    NeverLent {
        /// The shortest life a connection may have.
        lifetime: Duration,
        /// The window.
        guard_window: Duration,
    },
    /// A variable has a value that can't be.
    #[error("{variable}: {problem}")]
    Variable {
        /// Its name.
        variable: String,
        /// What is wrong, and what it should be.
        problem: String,
    },
}

/// What new connections need: a unit of a budget for as long as they are open, and a token of a rate for each dial.
///
/// Both come from a [`Quota`], which other processes may share. They are counted for each server: reservoirs of one quota share
/// them if their connectors have the same [`endpoint`](crate::Connect::endpoint).
#[derive(Debug, Clone)]
pub struct Limits {
    quota: Quota,
    rate: RateConfig,
    connections: Option<u32>,
}

/// Limits for one server.
pub(crate) struct OpenLimits {
    pub(crate) budget: Option<Budget>,
    pub(crate) rate: Rate,
    pub(crate) quota: Quota,
}

impl Limits {
    /// Of this process alone: [`DEFAULT_RATE`] connections per second. Needs a tokio runtime.
    pub fn local() -> Self {
        Limits::shared(Quota::local())
    }

    /// Of all members of `quota`: [`DEFAULT_RATE`] connections per second, as many as the reservoirs want.
    pub fn shared(quota: Quota) -> Self {
        Limits { quota, rate: RateConfig::per_second(DEFAULT_RATE), connections: None }
    }

    /// So many connections per second.
    pub fn per_second(self, per_second: f64) -> Self {
        self.rate(RateConfig::per_second(per_second))
    }

    /// A rate in all its detail.
    pub fn rate(mut self, rate: RateConfig) -> Self {
        self.rate = rate;
        self
    }

    /// At most so many connections at the same time, in all processes together. What a killed process had is free again when
    /// it has expired: its server may not have noticed before.
    pub fn connections(mut self, limit: u32) -> Self {
        self.connections = Some(limit);
        self
    }

    /// The quota behind it.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(crate) fn open(self, endpoint: &str) -> OpenLimits {
        let Limits { quota, rate, connections } = self;
        let name = format!("connections:{endpoint}");
        let budget =
            connections.map(|limit| quota.budget(&name, BudgetConfig::new(limit).held_until_expiry()));
        OpenLimits { budget, rate: quota.rate(&name, rate), quota }
    }
}
