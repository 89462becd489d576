//! Reset of a returned connection before it is lent again.
//!
//! Invariant: a connection whose reset fails, times out or is dropped is retired.
//! Enforced by: [`ResetTask`] reports to the ledger on drop.

use std::sync::Arc;

use tracing::{debug, warn};

use crate::config::ReservoirConfig;
use crate::connect::ReservoirConnection;
use crate::core::ledger_entry::{LedgerEntry, ResetOutcome};
use crate::driver::{LeasedConnection, ReservoirDriver, now};

impl<C: ReservoirConnection> ReservoirDriver<C> {
    /// Spawns a task that resets the connection.
    pub(crate) fn start_reset(self: &Arc<Self>, entry: LedgerEntry<LeasedConnection<C>>) {
        let mut reset = ResetTask { driver: self.clone(), entry: Some(entry) };
        self.runtime.spawn(async move {
            let outcome = reset.run().await;
            reset.finish(outcome);
        });
    }
}

/// Runs the configured reset script, at most for `reset_timeout`.
pub(crate) async fn reset<C: ReservoirConnection>(
    config: &ReservoirConfig,
    connection: &mut C,
) -> ResetOutcome {
    let Some(script) = config.reset.script() else { return ResetOutcome::Clean };
    match tokio::time::timeout(config.reset_timeout, connection.reset(script)).await {
        Ok(Ok(())) => ResetOutcome::Clean,
        Ok(Err(error)) => {
            warn!(service = config.service, %error, "connection reset failed");
            ResetOutcome::Failed
        }
        Err(_) => {
            debug!(service = config.service, timeout = ?config.reset_timeout, "connection reset timed out");
            ResetOutcome::Failed
        }
    }
}

/// Guard of a connection that is being reset. Dropping it reports a failed reset.
pub(crate) struct ResetTask<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
    /// `None` once the result was reported to the ledger.
    entry: Option<LedgerEntry<LeasedConnection<C>>>,
}

impl<C: ReservoirConnection> ResetTask<C> {
    async fn run(&mut self) -> ResetOutcome {
        let Some(entry) = &mut self.entry else { return ResetOutcome::Failed };
        reset(&self.driver.config, &mut entry.content_mut().connection).await
    }

    fn finish(&mut self, outcome: ResetOutcome) {
        if let Some(entry) = self.entry.take() {
            let now = now();
            let mut state = self.driver.state.lock();
            state.ledger.reset_finished(entry, outcome, now);
            self.driver.unlock_and_run(state);
        }
    }
}

impl<C: ReservoirConnection> Drop for ResetTask<C> {
    fn drop(&mut self) {
        self.finish(ResetOutcome::Failed);
    }
}
