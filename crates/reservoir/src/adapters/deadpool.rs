//! Under deadpool.

use ::deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};

use crate::connect::Connection;
use crate::error::CheckoutError;
use crate::guard::Guard;
use crate::reservoir::View;

/// Connections come from the view; one that is closed or at its end isn't used again.
impl<C: Connection + Sync> Manager for View<C> {
    type Type = Guard<C>;
    type Error = CheckoutError;

    async fn create(&self) -> Result<Guard<C>, CheckoutError> {
        self.checkout().await
    }

    async fn recycle(&self, guard: &mut Guard<C>, _: &Metrics) -> RecycleResult<CheckoutError> {
        if guard.is_fit() { Ok(()) } else { Err(RecycleError::Backend(CheckoutError::Ended)) }
    }
}
