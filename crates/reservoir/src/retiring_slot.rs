//! Retiring slot: holds slot and lease of a closed connection until the server has closed its end.
//!
//! Invariant: slot and lease are released once: when the server has closed its end of the socket,
//! when `close_timeout` has passed, or when the runtime ends.
//! Enforced by: a task owns a [`RetiringSlot`], which releases both on drop.
//! Out of scope: how a connection is closed; see [`ReservoirConnection::close`].

use std::future::Future;
use std::sync::Arc;

use forebay_quota::Lease;
use tracing::{debug, warn};

use crate::connect::{ReservoirConnection, SlotHolders};
use crate::core::ledger_effects::RetiredConnection;
use crate::core::retirements::Retirement;
use crate::driver::{LeasedConnection, ReservoirDriver};

impl<C: ReservoirConnection> ReservoirDriver<C> {
    /// Spawns a task that closes a retired connection.
    pub(crate) fn start_retirement(self: &Arc<Self>, retired: RetiredConnection<LeasedConnection<C>>) {
        let RetiredConnection { entry, reason, age, retirement } = retired;
        self.metrics.count_discard(reason);
        self.metrics.retirement_age.record(age.as_secs_f64());
        debug!(service = self.config.service, reason = reason.as_str(), ?age, "connection retired");
        let LeasedConnection { connection, lease, abandoned } = entry.into_content();
        let retiring = RetiringSlot::new(self.clone(), retirement, lease);
        self.runtime.spawn(retiring.hold_until(reason.as_str(), async move {
            connection.close().await;
            if let Some(mut abandoned) = abandoned {
                abandoned.dropped().await;
            }
        }));
    }
}

/// Slot and lease of a connection that the server has not closed yet.
pub(crate) struct RetiringSlot<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
    /// `Some` until this is dropped.
    retirement: Option<Retirement>,
    lease: Option<Lease>,
}

impl<C: ReservoirConnection> RetiringSlot<C> {
    pub(crate) fn new(driver: Arc<ReservoirDriver<C>>, retirement: Retirement, lease: Option<Lease>) -> Self {
        RetiringSlot { driver, retirement: Some(retirement), lease }
    }

    /// Spawns a task that holds the slot until the server has closed all sockets of a failed dial.
    pub(crate) fn hold_for_dial(self, mut holders: SlotHolders) {
        let runtime = self.driver.runtime.clone();
        runtime.spawn(self.hold_until("dial_failed", async move { holders.dropped().await }));
    }

    /// Holds the slot until `closed` resolves, for at most `close_timeout`.
    async fn hold_until(self, reason: &'static str, closed: impl Future<Output = ()>) {
        let waited = self.driver.config.close_timeout;
        if tokio::time::timeout(waited, closed).await.is_err() {
            let (counts, max) = self.driver.with_ledger(|ledger| (ledger.counts(), ledger.rules().max));
            self.driver.metrics.close_timeouts.increment(1);
            warn!(
                service = self.driver.config.service,
                reason,
                ?waited,
                max,
                open = counts.total(),
                retiring = counts.retiring,
                "connection slot released unclosed: the server may have more connections than max"
            );
        }
    }
}

impl<C: ReservoirConnection> Drop for RetiringSlot<C> {
    fn drop(&mut self) {
        // The lease first: freeing the slot wakes the refiller, whose next dial needs a lease.
        drop(self.lease.take());
        if let Some(retirement) = self.retirement.take() {
            let mut state = self.driver.state.lock();
            state.ledger.retirement_finished(retirement);
            self.driver.unlock_and_run(state);
        }
    }
}
