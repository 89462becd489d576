//! Under deadpool.

use ::deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};

use crate::connect::Connection;
use crate::error::CheckoutError;
use crate::guard::Guard;
use crate::reservoir::View;

/// Connections come from the view; between two users they are cleaned up as the reservoir's configuration says, and one that is
/// closed or at its end isn't used again.
impl<C: Connection + Sync> Manager for View<C> {
    type Type = Guard<C>;
    type Error = CheckoutError;

    async fn create(&self) -> Result<Guard<C>, CheckoutError> {
        self.checkout_to_keep().await
    }

    async fn recycle(&self, guard: &mut Guard<C>, _: &Metrics) -> RecycleResult<CheckoutError> {
        guard.clean().await.map_err(RecycleError::Backend)
    }
}
