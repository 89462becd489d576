//! Configuration of a reservoir: sizes, lifetimes, timeouts, and limits on new connections.

use std::time::Duration;

use forebay_quota::{Budget, BudgetConfig, Quota, Rate, RateConfig};

use crate::core::ledger_rules::{DialBackoff, LedgerRules, Lifetime};
use crate::driver::MAX_DURATION;

/// Default rate of new connections per second, in the whole cluster.
pub const DEFAULT_RATE: f64 = 100.0;

/// Size of a reservoir, lifetimes of its connections, and timeouts.
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
    pub(crate) hook_timeout: Duration,
    pub(crate) close_timeout: Duration,
}

/// Statements that run on a returned connection before it is lent again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reset {
    /// Runs nothing. A transaction that one caller leaves open is open for the next caller, too.
    None,
    /// Rolls back an open transaction and discards cursors, roles, settings, subscriptions,
    /// advisory locks, temporary tables and sequence caches.
    ///
    /// Prepared statements stay, because the client caches them.
    Standard,
    /// Runs these statements. They should begin with `ROLLBACK`.
    ///
    /// `DISCARD ALL` and `DEALLOCATE ALL` also drop the statements with which tokio-postgres looks
    /// up types: later queries with further types of extensions or users fail.
    Custom(String),
}

/// Not `DISCARD ALL`: that would also drop the prepared statements that the client has cached.
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
    /// Returns a configuration for about `target_ready` connections, idle or lent.
    ///
    /// # Panics
    /// Panics if `target_ready` is 0.
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
            hook_timeout: Duration::from_secs(1),
            close_timeout: Duration::from_secs(10 * 60),
        }
    }

    /// Returns a configuration for Aurora DSQL.
    ///
    /// Aurora DSQL ends every connection after an hour, so connections live for 50 to 55 minutes.
    /// The reset is only `ROLLBACK`, because it supports none of the other statements.
    pub fn aurora_dsql(target_ready: u32) -> Self {
        let mut config = ReservoirConfig::new(target_ready).reset(Reset::Custom("ROLLBACK".into()));
        config.lifetime = Lifetime {
            base: Duration::from_secs(55 * 60),
            jitter: Duration::from_secs(5 * 60),
            downward: true,
        };
        config
    }

    /// Sets the `service` label of metrics and logs. Default: `default`.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = service.into();
        self
    }

    /// Sets the number of ready connections below which the refiller dials at full concurrency.
    ///
    /// [`initial_fill`](crate::Reservoir::initial_fill) waits for this number. Default: half of the
    /// target. With the whole target, one connection that can't be opened, as at a full server,
    /// would delay each start until the timeout. Maximum: the target.
    pub fn low_watermark(mut self, low_watermark: u32) -> Self {
        self.low_watermark = Some(low_watermark);
        self
    }

    /// Sets the maximum number of connections, including those being opened and closed.
    ///
    /// A connection counts until the server has closed its end; see
    /// [`close_timeout`](Self::close_timeout). Default: the target plus an eighth, at least one
    /// more, so that a connection can be replaced before it is closed.
    pub fn max(mut self, max: u32) -> Self {
        self.max = Some(max);
        self
    }

    /// Sets the minimum lifetime of a connection. Default: 11 minutes.
    pub fn base_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime.base = lifetime;
        self
    }

    /// Sets the maximum random addition to the lifetime. Default: 2 minutes.
    pub fn lifetime_jitter(mut self, jitter: Duration) -> Self {
        self.lifetime.jitter = jitter;
        self
    }

    /// Sets the guard window: a connection that expires within it is not lent. Default: 45 s.
    pub fn guard_window(mut self, window: Duration) -> Self {
        self.guard_window = window;
        self
    }

    /// Sets how long before its guard window a connection is replaced.
    ///
    /// Default: as long as the guard window. Maximum: half of the time between opening and guard
    /// window.
    pub fn replace_ahead(mut self, lead: Duration) -> Self {
        self.lead = Some(lead);
        self
    }

    /// Sets the maximum number of concurrent dials. Default: 8.
    pub fn max_dials(mut self, max_dials: u32) -> Self {
        self.max_dials = max_dials.max(1);
        self
    }

    /// Sets the maximum number of waiting callers. Default: 65,536.
    ///
    /// Further callers fail with [`Busy`](crate::CheckoutError::Busy).
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// Sets how long a caller may hold a connection before a warning is logged. Default: 60 s.
    ///
    /// The warning contains the source location of the checkout.
    pub fn leak_after(mut self, leak_after: Duration) -> Self {
        self.leak_after = leak_after;
        self
    }

    /// Sets the reset between two callers. Default: [`Reset::Standard`].
    pub fn reset(mut self, reset: Reset) -> Self {
        self.reset = reset;
        self
    }

    /// Sets how long [`checkout`](crate::Reservoir::checkout) waits. Default: 100 ms.
    pub fn checkout_timeout(mut self, timeout: Duration) -> Self {
        self.checkout_timeout = timeout;
        self
    }

    /// Sets the timeout of each of the two steps of a dial: credentials and connection.
    /// Default: 30 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial_timeout = timeout;
        self
    }

    /// Sets how long each run of a hook may take; see [`ReservoirHooks`](crate::ReservoirHooks).
    /// Default: 1 s.
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.hook_timeout = timeout;
        self
    }

    /// Sets how long the server may take to close its end of a retired connection or of an
    /// abandoned dial. Default: 10 minutes.
    ///
    /// Until then the slot and the lease stay in use. After it they are released with a warning,
    /// and the server may have more than [`max`](Self::max) connections.
    ///
    /// A close takes long if a query can't be cancelled, a backend is stopped, or authentication is
    /// slow. [`Reservoir::close`](crate::Reservoir::close) has its own timeout.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Returns the settings for the ledger, adjusted so that they are consistent.
    pub(crate) fn rules(&self) -> LedgerRules {
        let max = self
            .max
            .unwrap_or_else(|| self.target_ready.saturating_add((self.target_ready / 8).max(1)))
            .max(1);
        let target = self.target_ready.min(max);
        let Lifetime { base, jitter, downward } = self.lifetime;
        let lifetime = Lifetime { base: base.min(MAX_DURATION), jitter: jitter.min(MAX_DURATION), downward };
        let guard_window = self.guard_window.min(MAX_DURATION);
        // A connection that is due for replacement when it is opened would be replaced endlessly.
        let most_lead = self.shortest_life().saturating_sub(guard_window) / 2;
        LedgerRules {
            target,
            low_watermark: self.low_watermark.unwrap_or(target / 2).clamp(1, target),
            max,
            lifetime,
            guard_window,
            lead: self.lead.unwrap_or(guard_window).min(most_lead),
            max_dials: self.max_dials,
            max_waiting: self.max_waiting,
            resets: self.reset != Reset::None,
            leak_after: self.leak_after.min(MAX_DURATION),
            backoff: DialBackoff {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10),
                initial_long: Duration::from_secs(2),
                max_long: Duration::from_secs(60),
            },
        }
    }

    fn shortest_life(&self) -> Duration {
        let Lifetime { base, jitter, downward } = self.lifetime;
        if downward { base.saturating_sub(jitter) } else { base }.min(MAX_DURATION)
    }

    /// Fails if the shortest possible lifetime is within the guard window.
    pub(crate) fn check(&self) -> Result<(), ReservoirConfigError> {
        let shortest = self.shortest_life();
        if shortest <= self.guard_window {
            return Err(ReservoirConfigError::NeverLent {
                lifetime: shortest,
                guard_window: self.guard_window,
            });
        }
        Ok(())
    }
}

/// Invalid or contradictory settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReservoirConfigError {
    /// No connection would ever be lent: its lifetime is within the guard window.
    #[error(
        "a lifetime of {lifetime:?} within a guard window of {guard_window:?}: no connection would ever be lent; \
         make the lifetime longer or the window shorter"
    )]
    NeverLent {
        /// Shortest lifetime that a connection may have.
        lifetime: Duration,
        /// The guard window.
        guard_window: Duration,
    },
}

/// Limits on new connections: a budget of open connections and a rate of dials.
///
/// Each connection takes a unit of the budget while it is open, and each dial a token of the rate.
/// Both come from a [`Quota`], which processes can share. They are counted per server: reservoirs
/// of one quota share them if their connectors return the same
/// [`endpoint`](crate::Connect::endpoint).
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    quota: Quota,
    rate: RateConfig,
    connections: Option<u32>,
}

/// Limits for one server.
pub(crate) struct EndpointLimits {
    pub(crate) budget: Option<Budget>,
    pub(crate) rate: Rate,
    pub(crate) quota: Quota,
}

impl ConnectionLimits {
    /// Returns limits for this process alone: [`DEFAULT_RATE`] connections per second, no budget.
    /// Needs a tokio runtime.
    pub fn local() -> Self {
        ConnectionLimits::shared(Quota::local())
    }

    /// Returns limits for all members of `quota`: [`DEFAULT_RATE`] connections per second, no
    /// budget.
    pub fn shared(quota: Quota) -> Self {
        ConnectionLimits { quota, rate: RateConfig::per_second(DEFAULT_RATE), connections: None }
    }

    /// Sets the number of new connections per second.
    pub fn per_second(self, per_second: f64) -> Self {
        self.rate(RateConfig::per_second(per_second))
    }

    /// Sets the rate of new connections, including its burst.
    pub fn rate(mut self, rate: RateConfig) -> Self {
        self.rate = rate;
        self
    }

    /// Sets the maximum number of open connections of all processes together.
    ///
    /// The units of a killed process are freed when its membership expires. Until then the server
    /// may still have its connections.
    pub fn connections(mut self, limit: u32) -> Self {
        self.connections = Some(limit);
        self
    }

    /// Returns the maximum number of open connections; `None` if there is no budget.
    pub fn budget(&self) -> Option<u32> {
        self.connections
    }

    /// Returns the quota.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    pub(crate) fn open(self, endpoint: &str) -> EndpointLimits {
        let ConnectionLimits { quota, rate, connections } = self;
        let name = format!("connections:{endpoint}");
        let budget =
            connections.map(|limit| quota.budget(&name, BudgetConfig::new(limit).held_until_expiry()));
        EndpointLimits { budget, rate: quota.rate(&name, rate), quota }
    }
}
