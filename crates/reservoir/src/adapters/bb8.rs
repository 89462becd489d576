//! Under bb8.

use ::bb8::ManageConnection;

use crate::connect::Connection;
use crate::error::CheckoutError;
use crate::guard::Guard;
use crate::reservoir::View;

/// Connections come from the view; between two users they are cleaned up as the reservoir's configuration says, and one that is
/// closed or at its end isn't used again.
impl<C: Connection + Sync> ManageConnection for View<C> {
    type Connection = Guard<C>;
    type Error = CheckoutError;

    async fn connect(&self) -> Result<Guard<C>, CheckoutError> {
        self.checkout_to_keep().await
    }

    /// Called before each user; keep `test_on_check_out` on.
    async fn is_valid(&self, guard: &mut Guard<C>) -> Result<(), CheckoutError> {
        guard.clean().await
    }

    fn has_broken(&self, guard: &mut Guard<C>) -> bool {
        !guard.is_fit()
    }
}
