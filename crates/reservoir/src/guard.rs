//! Guard of a lent connection.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::connect::ReservoirConnection;
use crate::core::ledger_entry::{LedgerEntry, ReturnState};
use crate::driver::{LeasedConnection, ReservoirDriver};
use crate::hooks::HookFailure;

/// A lent connection. Dropping the guard returns the connection to the reservoir without waiting.
#[must_use = "dropping the guard returns the connection to the reservoir"]
pub struct ConnectionGuard<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
    view: usize,
    /// `Some` until the guard is dropped.
    entry: Option<LedgerEntry<LeasedConnection<C>>>,
    return_state: ReturnState,
}

impl<C: ReservoirConnection> ConnectionGuard<C> {
    pub(crate) fn new(
        driver: Arc<ReservoirDriver<C>>,
        view: usize,
        entry: LedgerEntry<LeasedConnection<C>>,
    ) -> Self {
        ConnectionGuard { driver, view, entry: Some(entry), return_state: ReturnState::Used }
    }

    /// Returns whether the reservoir could lend the connection again: it is open, not marked bad,
    /// and does not expire within the guard window.
    ///
    /// A pool that holds guards for long should drop one that isn't reusable.
    pub fn is_reusable(&self) -> bool {
        let entry = self.entry.as_ref().expect(HAS_ENTRY);
        let is_good = matches!(self.return_state, ReturnState::Used | ReturnState::Clean);
        is_good && self.driver.is_reusable(entry)
    }

    /// Runs the configured reset.
    #[cfg(any(feature = "bb8", feature = "deadpool"))]
    pub(crate) async fn reset(&mut self) -> crate::core::ledger_entry::ResetOutcome {
        let config = &self.driver.config;
        let entry = self.entry.as_mut().expect(HAS_ENTRY);
        crate::reset_task::reset(config, &mut entry.content_mut().connection).await
    }

    /// Runs the before-lend hook. After a failure the connection is closed instead of returned.
    pub(crate) async fn run_before_lend(&mut self) -> Result<(), HookFailure> {
        let (driver, entry) = (&self.driver, self.entry.as_mut().expect(HAS_ENTRY));
        let connection = &mut entry.content_mut().connection;
        let result = driver.hooks.run_before_lend(connection, driver.config.hook_timeout).await;
        if let Err(error) = &result {
            tracing::warn!(service = driver.config.service, %error, "before-lend hook failed");
            self.return_state = ReturnState::HookFailed;
        }
        result
    }

    /// Marks the connection as bad: it is closed instead of returned.
    ///
    /// A connection that the server has closed is detected without this.
    pub fn mark_bad(&mut self) {
        self.return_state = ReturnState::Bad;
    }

    /// Returns the connection without a reset.
    ///
    /// The caller guarantees that no transaction is open and that the session is unchanged. A
    /// connection that is marked bad is still closed.
    pub fn return_without_reset(mut self) {
        if self.return_state == ReturnState::Used {
            self.return_state = ReturnState::Clean;
        }
    }
}

const HAS_ENTRY: &str = "a guard has its connection until it is dropped";

impl<C: ReservoirConnection> Deref for ConnectionGuard<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.entry.as_ref().expect(HAS_ENTRY).content().connection
    }
}

impl<C: ReservoirConnection> DerefMut for ConnectionGuard<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.entry.as_mut().expect(HAS_ENTRY).content_mut().connection
    }
}

impl<C: ReservoirConnection> Drop for ConnectionGuard<C> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.driver.check_in(self.view, entry, self.return_state);
        }
    }
}

impl<C: ReservoirConnection> fmt::Debug for ConnectionGuard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionGuard").field("return_state", &self.return_state).finish_non_exhaustive()
    }
}
