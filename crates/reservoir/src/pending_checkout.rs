//! Pending checkout: a caller that waits in the checkout queue.
//!
//! Invariant: a caller that stops waiting leaks no connection.
//! Enforced by: dropping a [`PendingCheckout`] removes the caller from the queue. If a connection
//! was already sent, its guard is dropped with the receiver, which returns the connection.

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::connect::ReservoirConnection;
use crate::core::checkout_queue::{CheckoutWaiter, WaitTicket};
use crate::driver::{ReservoirDriver, now};
use crate::error::CheckoutError;
use crate::guard::ConnectionGuard;

/// Queue entry of a waiting caller.
pub(crate) struct WaitingCaller<C: ReservoirConnection> {
    /// Sends the connection, or `None` when the deadline has passed.
    pub(crate) sender: oneshot::Sender<Option<ConnectionGuard<C>>>,
    pub(crate) location: Option<&'static Location<'static>>,
    pub(crate) deadline: Instant,
}

impl<C: ReservoirConnection> CheckoutWaiter for WaitingCaller<C> {
    fn location(&self) -> Option<&'static Location<'static>> {
        self.location
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// The caller's side of a waiting checkout. Dropping it removes the caller from the queue.
pub(crate) struct PendingCheckout<C: ReservoirConnection> {
    driver: Arc<ReservoirDriver<C>>,
    view: usize,
    /// `None` once the wait has ended.
    ticket: Option<WaitTicket>,
    receiver: oneshot::Receiver<Option<ConnectionGuard<C>>>,
    since: Instant,
}

impl<C: ReservoirConnection> PendingCheckout<C> {
    pub(crate) fn new(
        driver: Arc<ReservoirDriver<C>>,
        view: usize,
        ticket: WaitTicket,
        receiver: oneshot::Receiver<Option<ConnectionGuard<C>>>,
        since: Instant,
    ) -> Self {
        PendingCheckout { driver, view, ticket: Some(ticket), receiver, since }
    }

    /// Waits until a connection is lent or the deadline has passed.
    pub(crate) async fn wait(mut self) -> Result<ConnectionGuard<C>, CheckoutError> {
        let received = (&mut self.receiver).await;
        self.ticket = None;
        let waited = now().saturating_duration_since(self.since);
        self.driver.metrics.wait_seconds.record(waited.as_secs_f64());
        match received {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(self.timeout_error(waited)),
            Err(_) => Err(CheckoutError::Closed),
        }
    }

    fn timeout_error(&self, waited: Duration) -> CheckoutError {
        if let Some((view, quota)) = self.driver.full_view(self.view) {
            self.driver.metrics.count_shortage("view_full");
            return CheckoutError::ViewFull { view, quota, waited };
        }
        let why = self.driver.shortage();
        self.driver.metrics.count_shortage(why.as_str());
        CheckoutError::Empty { why, waited }
    }
}

impl<C: ReservoirConnection> Drop for PendingCheckout<C> {
    fn drop(&mut self) {
        // If a connection was sent and not received, the caller isn't queued any more. The guard
        // returns the connection when the receiver is dropped.
        if let Some(ticket) = self.ticket {
            let waiting = self.driver.state.lock().ledger.queue.leave(self.view, ticket);
            drop(waiting);
        }
    }
}
