//! Retiring: closes a connection, and holds its place and its lease until the server has closed its end.
//!
//! Invariant: a place and its lease are given back once: when the server has closed its end of the socket, when
//! `close_timeout` is over, or when the runtime ends.
//! Kept by: a task holds a [`Retiring`], which gives them back as it is dropped.
//! Not here: how a connection is closed; see [`Connection::close`].

use std::future::Future;
use std::sync::Arc;

use forebay_quota::Lease;
use tracing::{debug, warn};

use crate::connect::{Connection, SlotHolders};
use crate::core::ledger::Retire;
use crate::core::retirements::Retirement;
use crate::shared::{Owned, Shared};

impl<C: Connection> Shared<C> {
    /// Closes a connection that the books have retired.
    pub(crate) fn start_retiring(self: &Arc<Self>, retire: Retire<Owned<C>>) {
        let Retire { entry, why, age, retirement } = retire;
        self.meters.discard(why);
        self.meters.retirement_age.record(age.as_secs_f64());
        debug!(service = self.config.service, why = why.as_str(), ?age, "a connection is closed");
        let Owned { connection, lease, given_up } = entry.into_held();
        let retiring = Retiring::new(self.clone(), retirement, lease);
        self.runtime.spawn(retiring.hold(why.as_str(), async move {
            connection.close().await;
            if let Some(mut given_up) = given_up {
                given_up.gone().await;
            }
        }));
    }
}

/// A place that stays taken until the server has closed its end of a connection, with the unit of the budget that it took.
pub(crate) struct Retiring<C: Connection> {
    shared: Arc<Shared<C>>,
    /// There until it is dropped.
    retirement: Option<Retirement>,
    lease: Option<Lease>,
}

impl<C: Connection> Retiring<C> {
    pub(crate) fn new(shared: Arc<Shared<C>>, retirement: Retirement, lease: Option<Lease>) -> Self {
        Retiring { shared, retirement: Some(retirement), lease }
    }

    /// Holds the place of a dial that was given up until the server has closed all that it opened.
    pub(crate) fn start_holding(self, mut holders: SlotHolders) {
        let runtime = self.shared.runtime.clone();
        runtime.spawn(self.hold("dial_failed", async move { holders.gone().await }));
    }

    /// Holds the place until `closed` resolves, for up to `close_timeout`.
    async fn hold(self, why: &'static str, closed: impl Future<Output = ()>) {
        let waited = self.shared.config.close_timeout;
        if tokio::time::timeout(waited, closed).await.is_err() {
            let (counts, max) = self.shared.look(|ledger| (ledger.counts(), ledger.rules().max));
            self.shared.meters.close_timeouts.increment(1);
            warn!(
                service = self.shared.config.service,
                why,
                ?waited,
                max,
                open = counts.total(),
                retiring = counts.retiring,
                "connection given back unclosed: the server hasn't closed its end, and may have more than max"
            );
        }
    }
}

impl<C: Connection> Drop for Retiring<C> {
    fn drop(&mut self) {
        // Before its place, or whoever is called for it finds none.
        drop(self.lease.take());
        if let Some(retirement) = self.retirement.take() {
            let mut books = self.shared.locked();
            books.ledger.was_closed(retirement);
            self.shared.open(books);
        }
    }
}
