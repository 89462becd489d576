//! Who waits: one line for each view, and one order over all of them.
//!
//! Invariant: whoever came first is served first, among those whose view may have another connection.

use std::collections::VecDeque;

/// A place in the order of coming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
pub(crate) struct Views<W> {
    views: Vec<View<W>>,
    next: u64,
    waiting: usize,
}

#[derive(Debug)]
struct View<W> {
    quota: u32,
    lent: u32,
    line: VecDeque<(Ticket, W)>,
}

impl<W> Views<W> {
    pub(crate) fn new() -> Self {
        Views { views: Vec::new(), next: 0, waiting: 0 }
    }

    /// Another view, which may have up to `quota` at once.
    pub(crate) fn add(&mut self, quota: u32) -> usize {
        self.views.push(View { quota, lent: 0, line: VecDeque::new() });
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

    pub(crate) fn lend(&mut self, view: usize) {
        self.views[view].lent += 1;
    }

    pub(crate) fn give(&mut self, view: usize) {
        self.views[view].lent -= 1;
    }

    pub(crate) fn join(&mut self, view: usize, waiter: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting += 1;
        self.views[view].line.push_back((ticket, waiter));
        ticket
    }

    /// Leaves the line, if it is still in it.
    pub(crate) fn leave(&mut self, view: usize, ticket: Ticket) -> Option<W> {
        let line = &mut self.views[view].line;
        let at = line.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()?;
        self.waiting -= 1;
        line.remove(at).map(|(_, waiter)| waiter)
    }

    /// The view whose first in line came first, among those that have room.
    pub(crate) fn whose_turn(&self) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        let views = self.views.iter().enumerate().filter(|(_, view)| view.lent < view.quota);
        let fronts = views.filter_map(|(at, view)| view.line.front().map(|(ticket, _)| (*ticket, at)));
        fronts.min().map(|(_, view)| view)
    }

    /// The first in the line of a view whose turn it is.
    pub(crate) fn pop(&mut self, view: usize) -> W {
        self.waiting -= 1;
        self.views[view].line.pop_front().expect("it was its turn").1
    }

    /// Takes out those whose time is over.
    pub(crate) fn take_late(&mut self, is_late: impl Fn(&W) -> bool) -> Vec<W> {
        let mut late = Vec::new();
        for view in self.views.iter_mut().filter(|view| view.line.iter().any(|(_, waiter)| is_late(waiter))) {
            for (ticket, waiter) in std::mem::take(&mut view.line) {
                if is_late(&waiter) {
                    late.push(waiter);
                } else {
                    view.line.push_back((ticket, waiter));
                }
            }
        }
        self.waiting -= late.len();
        late
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &W> {
        self.views.iter().flat_map(|view| &view.line).map(|(_, waiter)| waiter)
    }

    /// Everybody, in no order: the end.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        self.waiting = 0;
        self.views.iter_mut().flat_map(|view| view.line.drain(..)).map(|(_, waiter)| waiter).collect()
    }
}
