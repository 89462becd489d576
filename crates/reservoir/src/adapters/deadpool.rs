//! Adapter for deadpool: a view of a reservoir as a manager.

use ::deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};

use crate::connect::ReservoirConnection;
use crate::error::CheckoutError;
use crate::guard::ConnectionGuard;
use crate::reservoir::ReservoirView;

/// Takes connections from the view, and resets them between two users as the reservoir is
/// configured. Closed and expired connections are discarded.
impl<C: ReservoirConnection + Sync> Manager for ReservoirView<C> {
    type Type = ConnectionGuard<C>;
    type Error = CheckoutError;

    async fn create(&self) -> Result<ConnectionGuard<C>, CheckoutError> {
        self.checkout_to_keep().await
    }

    async fn recycle(&self, guard: &mut ConnectionGuard<C>, _: &Metrics) -> RecycleResult<CheckoutError> {
        guard.clean().await.map_err(RecycleError::Backend)
    }
}
