//! Adapter for bb8: a view of a reservoir as a connection manager.

use ::bb8::ManageConnection;

use crate::connect::ReservoirConnection;
use crate::error::CheckoutError;
use crate::guard::ConnectionGuard;
use crate::reservoir::ReservoirView;

/// Takes connections from the view, and resets them between two users as the reservoir is
/// configured. Closed and expired connections are discarded.
impl<C: ReservoirConnection + Sync> ManageConnection for ReservoirView<C> {
    type Connection = ConnectionGuard<C>;
    type Error = CheckoutError;

    async fn connect(&self) -> Result<ConnectionGuard<C>, CheckoutError> {
        self.checkout_to_keep().await
    }

    /// Called before each use; `test_on_check_out` must stay enabled.
    async fn is_valid(&self, guard: &mut ConnectionGuard<C>) -> Result<(), CheckoutError> {
        guard.clean().await
    }

    fn has_broken(&self, guard: &mut ConnectionGuard<C>) -> bool {
        !guard.is_reusable()
    }
}
