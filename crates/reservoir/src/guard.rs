//! What a caller holds.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::connect::Connection;
use crate::core::ledger::Entry;
use crate::shared::{Owned, Shared};

/// A connection on loan. It goes back when this is dropped, without waiting for anything.
#[must_use = "a connection that is dropped goes back to the reservoir"]
pub struct Guard<C: Connection> {
    shared: Arc<Shared<C>>,
    view: usize,
    /// There until it is given back.
    entry: Option<Entry<Owned<C>>>,
    is_bad: bool,
}

impl<C: Connection> Guard<C> {
    pub(crate) fn new(shared: Arc<Shared<C>>, view: usize, entry: Entry<Owned<C>>) -> Self {
        Guard { shared, view, entry: Some(entry), is_bad: false }
    }

    /// Whether it could be lent again: it is open, not marked, and not at its end. For pools that keep guards for long: they
    /// should let go of one that isn't.
    pub fn is_fit(&self) -> bool {
        let entry = self.entry.as_ref().expect(THERE);
        !self.is_bad && self.shared.is_fit(entry)
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
        self.is_bad = true;
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
            self.shared.give(self.view, entry, self.is_bad);
        }
    }
}

impl<C: Connection> fmt::Debug for Guard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("is_bad", &self.is_bad).finish_non_exhaustive()
    }
}
