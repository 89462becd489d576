//! Checkout queue: waiting callers, one FIFO queue per view and one order over all views.
//!
//! Invariant: among callers whose view is below its quota, the one that has waited longest is next.
//! Enforced by: tickets come from one counter; [`CheckoutQueue::next_view`] compares the fronts.

use std::collections::VecDeque;
use std::panic::Location;
use std::time::Instant;

/// A caller that waits for a connection.
pub(crate) trait CheckoutWaiter {
    /// Returns the source location of the checkout; `None` disables leak reports.
    fn location(&self) -> Option<&'static Location<'static>>;
    /// Returns when the caller stops waiting.
    fn deadline(&self) -> Instant;
}

/// Position in the order of arrival, over all views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaitTicket(u64);

/// Waiting callers and lent connections of all views.
#[derive(Debug)]
pub(crate) struct CheckoutQueue<W> {
    views: Vec<ViewQueue<W>>,
    next: u64,
    waiting: usize,
}

#[derive(Debug)]
struct ViewQueue<W> {
    quota: u32,
    lent: u32,
    waiters: VecDeque<(WaitTicket, W)>,
}

impl<W> CheckoutQueue<W> {
    pub(crate) fn new() -> Self {
        CheckoutQueue { views: Vec::new(), next: 0, waiting: 0 }
    }

    /// Adds a view that may hold up to `quota` connections; returns its index.
    pub(crate) fn add_view(&mut self, quota: u32) -> usize {
        self.views.push(ViewQueue { quota, lent: 0, waiters: VecDeque::new() });
        self.views.len() - 1
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn lent(&self, view: usize) -> u32 {
        self.views[view].lent
    }

    pub(crate) fn quota(&self, view: usize) -> u32 {
        self.views[view].quota
    }

    pub(crate) fn has_room(&self, view: usize) -> bool {
        self.views[view].lent < self.views[view].quota
    }

    pub(crate) fn add_lent(&mut self, view: usize) {
        self.views[view].lent += 1;
    }

    pub(crate) fn remove_lent(&mut self, view: usize) {
        self.views[view].lent -= 1;
    }

    pub(crate) fn join(&mut self, view: usize, waiter: W) -> WaitTicket {
        let ticket = WaitTicket(self.next);
        self.next += 1;
        self.waiting += 1;
        self.views[view].waiters.push_back((ticket, waiter));
        ticket
    }

    /// Removes a waiter; returns `None` if it isn't queued any more.
    pub(crate) fn leave(&mut self, view: usize, ticket: WaitTicket) -> Option<W> {
        let waiters = &mut self.views[view].waiters;
        let at = waiters.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        self.waiting -= 1;
        waiters.remove(at).map(|(_, waiter)| waiter)
    }

    /// Returns the view below its quota whose first waiter has waited longest.
    pub(crate) fn next_view(&self) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        let views = self.views.iter().enumerate().filter(|(_, view)| view.lent < view.quota);
        let fronts = views.filter_map(|(at, view)| view.waiters.front().map(|(ticket, _)| (*ticket, at)));
        fronts.min().map(|(_, view)| view)
    }

    /// Removes the first waiter of a view that [`next_view`](Self::next_view) returned.
    pub(crate) fn pop(&mut self, view: usize) -> W {
        self.waiting -= 1;
        self.views[view].waiters.pop_front().expect("next_view returns views with waiters").1
    }

    /// Removes and returns the waiters whose deadline has passed.
    pub(crate) fn take_expired(&mut self, is_expired: impl Fn(&W) -> bool) -> Vec<W> {
        let mut expired = Vec::new();
        let has_expired =
            |view: &&mut ViewQueue<W>| view.waiters.iter().any(|(_, waiter)| is_expired(waiter));
        for view in self.views.iter_mut().filter(has_expired) {
            for (ticket, waiter) in std::mem::take(&mut view.waiters) {
                if is_expired(&waiter) {
                    expired.push(waiter);
                } else {
                    view.waiters.push_back((ticket, waiter));
                }
            }
        }
        self.waiting -= expired.len();
        expired
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &W> {
        self.views.iter().flat_map(|view| &view.waiters).map(|(_, waiter)| waiter)
    }

    /// Removes and returns all waiters, in no particular order.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        self.waiting = 0;
        self.views.iter_mut().flat_map(|view| view.waiters.drain(..)).map(|(_, waiter)| waiter).collect()
    }
}
