//! Under bb8.

use ::bb8::ManageConnection;

use crate::connect::Connection;
use crate::error::CheckoutError;
use crate::guard::Guard;
use crate::reservoir::View;

/// Connections come from the view; one that is closed or at its end isn't used again.
impl<C: Connection + Sync> ManageConnection for View<C> {
    type Connection = Guard<C>;
    type Error = CheckoutError;

    async fn connect(&self) -> Result<Guard<C>, CheckoutError> {
        self.checkout().await
    }

    /// Asks no server: whether it still answers, a query will tell.
    async fn is_valid(&self, guard: &mut Guard<C>) -> Result<(), CheckoutError> {
        if guard.is_fit() { Ok(()) } else { Err(CheckoutError::Ended) }
    }

    fn has_broken(&self, guard: &mut Guard<C>) -> bool {
        !guard.is_fit()
    }
}
