//! Adapters for other pools: the pool takes connections from a view of a reservoir.
//!
//! The pool keeps a guard while it keeps the connection, so `max`, budget and rate limit still
//! hold. Disable the pool's own lifetimes: the reservoir's jitter spreads the expiries.

use crate::connect::ReservoirConnection;
use crate::core::ledger_entry::ResetOutcome;
use crate::error::CheckoutError;
use crate::guard::ConnectionGuard;
use crate::reservoir::ReservoirView;

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;

impl<C: ReservoirConnection> ReservoirView<C> {
    /// Checks out a connection for a pool, which may hold it for long; it is not reported as a
    /// leak.
    async fn checkout_to_keep(&self) -> Result<ConnectionGuard<C>, CheckoutError> {
        self.checkout_at(None, self.checkout_timeout()).await
    }
}

impl<C: ReservoirConnection> ConnectionGuard<C> {
    /// Prepares a connection for the pool's next user: fails if it can't be lent again, or if its
    /// reset or its before-lend hook fails.
    async fn clean(&mut self) -> Result<(), CheckoutError> {
        if !self.is_reusable() {
            return Err(CheckoutError::Ended);
        }
        match self.reset().await {
            ResetOutcome::Clean => self.run_before_lend().await.map_err(|_| CheckoutError::Ended),
            ResetOutcome::Failed => Err(CheckoutError::Ended),
        }
    }
}
