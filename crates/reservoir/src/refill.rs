//! Refiller: opens connections ahead of demand and replaces those that expire.
//!
//! Invariant: a dial takes, in this order, a slot in the ledger, a lease of the budget, credentials
//! and a token of the rate limit. If a later step fails, slot and lease are released once the
//! server has closed all sockets of the dial.
//! Enforced by: [`PendingDial`] owns slot and lease.
//! Out of scope: how many dials to begin; see `core/ledger.rs`.
//!
//! The token comes last because the rate limit counts it when it is taken. Dials that held tokens
//! while they waited for slow credentials would start in a burst.

use std::sync::Arc;
use std::time::Duration;

use forebay_quota::QuotaMode;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::connect::{Connect, ConnectionError, ConnectionErrorKind, ReservoirConnection};
use crate::driver::{ReservoirDriver, now};
use crate::error::Shortage;
use crate::pending_dial::PendingDial;

/// Delay after the quota has refused a lease or a token.
const QUOTA_RETRY_DELAY: Duration = Duration::from_millis(250);

/// Background task of a reservoir that opens its connections.
pub(crate) struct Refiller<K: Connect> {
    connect: Arc<K>,
    driver: Arc<ReservoirDriver<K::Connection>>,
    /// Mode of the quota when it was last checked.
    mode: QuotaMode,
}

impl<K: Connect> Refiller<K> {
    pub(crate) fn new(connect: K, driver: Arc<ReservoirDriver<K::Connection>>) -> Self {
        Refiller { connect: Arc::new(connect), driver, mode: QuotaMode::Normal }
    }

    /// Runs until the reservoir is closed and empty.
    pub(crate) async fn run(mut self) {
        let mut dials = JoinSet::new();
        let driver = self.driver.clone();
        // If the task ends early, as with its runtime, waiting callers must fail instead of hang.
        let _close = CloseOnDrop(driver.clone());
        loop {
            let plan = driver.plan();
            self.report_quota_mode();
            for _ in 0..plan.dials {
                dials.spawn(dial(self.connect.clone(), PendingDial::new(driver.clone()), driver.clone()));
            }
            while dials.try_join_next().is_some() {}
            if driver.with_ledger(|ledger| ledger.is_closing()) {
                dials.shutdown().await;
            }
            if driver.with_ledger(|ledger| ledger.is_empty()) {
                return;
            }
            // Both outcomes lead to the next plan.
            let _ = tokio::time::timeout_at(plan.wake_at.into(), driver.refiller.notified()).await;
        }
    }

    /// Logs and counts changes of the quota's mode.
    fn report_quota_mode(&mut self) {
        let (driver, before) = (&*self.driver, &mut self.mode);
        let quota = &driver.limits.quota;
        let (mode, service) = (quota.mode(), &driver.config.service);
        let is_local = matches!(mode, QuotaMode::WithinSlices | QuotaMode::Degraded(_));
        driver.metrics.local_only.set(f64::from(u8::from(is_local)));
        if let Some(budget) = &driver.limits.budget {
            driver.metrics.slice.set(f64::from(budget.usage().slice));
        }
        if mode != *before {
            match mode {
                QuotaMode::Normal => info!(service, "connection budget enforced cluster-wide"),
                QuotaMode::Rebuilding => info!(service, "dials paused: connection budget rebuilding"),
                QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
                    warn!(service, %mode, "connection budget enforced locally: store unavailable");
                }
                // A mode of a later release of the quota.
                _ => info!(service, %mode, "connection budget mode changed"),
            }
            *before = mode;
        }
    }
}

/// Closes the reservoir on drop.
struct CloseOnDrop<C: ReservoirConnection>(Arc<ReservoirDriver<C>>);

impl<C: ReservoirConnection> Drop for CloseOnDrop<C> {
    fn drop(&mut self) {
        self.0.close();
    }
}

async fn dial<K: Connect>(
    connect: Arc<K>,
    mut pending: PendingDial<K::Connection>,
    driver: Arc<ReservoirDriver<K::Connection>>,
) {
    let (limits, timeout) = (&driver.limits, driver.config.dial_timeout);
    if let Some(budget) = &limits.budget {
        match budget.take().await {
            Ok(lease) => pending.keep_lease(lease),
            Err(refusal) => {
                debug!(service = driver.config.service, %refusal, "connection lease denied");
                let why = Shortage::LeaseDenied { why: refusal.to_string() };
                return pending.denied(why, now() + QUOTA_RETRY_DELAY);
            }
        }
    }
    let credentials = match with_timeout(timeout, connect.credentials()).await {
        Ok(credentials) => credentials,
        Err(error) => return failed(&driver, pending, &error),
    };
    pending.set_waiting_for_rate(true);
    match limits.rate.take().await {
        Ok(token) => token.spend(),
        Err(refusal) => {
            let why = Shortage::RateDenied { why: refusal.to_string() };
            return pending.denied(why, now() + QUOTA_RETRY_DELAY);
        }
    }
    pending.set_waiting_for_rate(false);
    let began = now();
    let slot = pending.slot();
    // The future is dropped before the end of the dial is reported. By then the sockets that it
    // abandoned hold clones of the slot.
    let opened = with_timeout(timeout, connect.connect_in_slot(credentials, slot.clone())).await;
    let connection = match opened {
        Ok(connection) => connection,
        Err(error) => {
            drop(slot);
            return failed(&driver, pending, &error);
        }
    };
    driver.metrics.dial_seconds.record((now() - began).as_secs_f64());
    match driver.hooks.run_after_connect(connection, slot, driver.config.hook_timeout).await {
        Ok(connection) => pending.succeeded(connection),
        Err(error) => failed(&driver, pending, &error),
    }
}

async fn with_timeout<T>(
    timeout: Duration,
    step: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    tokio::time::timeout(timeout, step).await.unwrap_or_else(|_| {
        let text = format!("nothing came of it within {timeout:?}");
        Err(ConnectionError::new(ConnectionErrorKind::Unreachable, text))
    })
}

fn failed<C: ReservoirConnection>(
    driver: &ReservoirDriver<C>,
    pending: PendingDial<C>,
    error: &ConnectionError,
) {
    warn!(service = driver.config.service, %error, "dial failed");
    pending.failed(error);
}
