//! What a caller holds.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::connect::Connection;
use crate::core::ledger::{Entry, Left};
use crate::shared::{Owned, Shared};

/// A connection on loan. It goes back when this is dropped, without waiting for anything.
#[must_use = "a connection that is dropped goes back to the reservoir"]
pub struct Guard<C: Connection> {
    shared: Arc<Shared<C>>,
    view: usize,
    /// There until it is given back.
    entry: Option<Entry<Owned<C>>>,
    left: Left,
}

impl<C: Connection> Guard<C> {
    pub(crate) fn new(shared: Arc<Shared<C>>, view: usize, entry: Entry<Owned<C>>) -> Self {
        Guard { shared, view, entry: Some(entry), left: Left::Used }
    }

    /// Whether it could be lent again: it is open, not marked, and not at its end. For pools that keep guards for long: they
    /// should let go of one that isn't.
    pub fn is_fit(&self) -> bool {
        let entry = self.entry.as_ref().expect(THERE);
        self.left != Left::Bad && self.shared.is_fit(entry)
    }

    /// Does what the configuration says is done between two callers. `false`: it couldn't be done in time.
    #[cfg(any(feature = "bb8", feature = "deadpool"))]
    pub(crate) async fn reset(&mut self) -> bool {
        let config = &self.shared.config;
        let entry = self.entry.as_mut().expect(THERE);
        crate::shared::reset(config, &mut entry.held_mut().connection).await
    }

    /// Says that nobody should have this connection any more: it is closed instead of returned. One that has lost its server
    /// needs no saying.
    pub fn mark_bad(&mut self) {
        self.left = Left::Bad;
    }

    /// Gives it back without a reset: it is as it was lent, with no transaction open and nothing of the session changed. Takes the guard,
    /// so that nobody does anything with it afterwards. One that is marked stays so.
    pub fn give_back_clean(mut self) {
        if self.left == Left::Used {
            self.left = Left::Clean;
        }
    }
}

const THERE: &str = "a guard has its connection until it is dropped";

impl<C: Connection> Deref for Guard<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.entry.as_ref().expect(THERE).held().connection
    }
}

impl<C: Connection> DerefMut for Guard<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.entry.as_mut().expect(THERE).held_mut().connection
    }
}

impl<C: Connection> Drop for Guard<C> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.shared.give(self.view, entry, self.left);
        }
    }
}

impl<C: Connection> fmt::Debug for Guard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("left", &self.left).finish_non_exhaustive()
    }
}
