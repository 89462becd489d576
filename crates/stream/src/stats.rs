//! What the server counts.
//!
//! Invariant: every connection that is accepted is counted once as open and once as gone, and every lean stream ends with
//! exactly one reason.
//! Kept by: the gauges move in guards (`registry.rs`, `lean.rs`), so that an abort or a panic counts too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A handle on a server's counters; cheap to clone, and still good after the server has ended.
#[derive(Debug, Clone, Default)]
pub struct Stats(Arc<Counters>);

/// The counters at one moment. Those without a word about now are totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that are open now, lean streams included.
    pub open_connections: u64,
    /// Streams on the lean path now.
    pub lean_streams: u64,
    /// Connections that were accepted, the refused ones not included.
    pub accepted: u64,
    /// Connections beyond `max_connections`.
    pub refused: u64,
    /// Times that accepting failed, for want of descriptors mostly.
    pub accept_errors: u64,
    /// Requests that reached the service.
    pub requests: u64,
    /// Clients that didn't send a whole head in time.
    pub header_timeouts: u64,
    /// Clients that stopped in the middle of a request's body.
    pub body_timeouts: u64,
    /// Heads that were no HTTP.
    pub bad_requests: u64,
    /// Heads beyond the bounds.
    pub oversized_heads: u64,
    /// Clients that took nothing for `write_timeout`, on either path; over HTTP/2 each response that they didn't take.
    pub slow_clients: u64,
    /// Streams that went to the lean path.
    pub lean_total: u64,
    /// Lean streams that came to their own end.
    pub lean_complete: u64,
    /// Lean streams whose body ended with an error.
    pub lean_broken: u64,
    /// Lean streams whose client left.
    pub lean_left: u64,
    /// Lean streams that were closed because the client wouldn't read.
    pub lean_slow: u64,
    /// Lean streams that were closed because the client wouldn't stop sending.
    pub lean_chatty: u64,
    /// Lean streams that were cut by the end of a drain, or by a panic in their body.
    pub lean_cut: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) open_connections: Counter,
    pub(crate) lean_streams: Counter,
    pub(crate) accepted: Counter,
    pub(crate) refused: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) requests: Counter,
    pub(crate) header_timeouts: Counter,
    pub(crate) body_timeouts: Counter,
    pub(crate) bad_requests: Counter,
    pub(crate) oversized_heads: Counter,
    pub(crate) slow_clients: Counter,
    pub(crate) lean_total: Counter,
    pub(crate) lean_complete: Counter,
    pub(crate) lean_broken: Counter,
    pub(crate) lean_left: Counter,
    pub(crate) lean_slow: Counter,
    pub(crate) lean_chatty: Counter,
    pub(crate) lean_cut: Counter,
}

impl Stats {
    /// The counters now.
    pub fn counts(&self) -> Counts {
        let counters = &*self.0;
        Counts {
            open_connections: counters.open_connections.get(),
            lean_streams: counters.lean_streams.get(),
            accepted: counters.accepted.get(),
            refused: counters.refused.get(),
            accept_errors: counters.accept_errors.get(),
            requests: counters.requests.get(),
            header_timeouts: counters.header_timeouts.get(),
            body_timeouts: counters.body_timeouts.get(),
            bad_requests: counters.bad_requests.get(),
            oversized_heads: counters.oversized_heads.get(),
            slow_clients: counters.slow_clients.get(),
            lean_total: counters.lean_total.get(),
            lean_complete: counters.lean_complete.get(),
            lean_broken: counters.lean_broken.get(),
            lean_left: counters.lean_left.get(),
            lean_slow: counters.lean_slow.get(),
            lean_chatty: counters.lean_chatty.get(),
            lean_cut: counters.lean_cut.get(),
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0
    }
}

/// A number that many tasks move.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
