//! Server counters.
//!
//! Invariant: every accepted connection is counted as opened once and as closed once; every live
//! stream ends with exactly one reason.
//! Enforced by: drop guards (`connection_task.rs`, `live/stream.rs`), so aborts and panics count.
//!
//! "Live stream" means here a stream whose task owns the socket (`live/stream.rs`). Live responses
//! over HTTP/2 or TLS are not counted as live streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handle to a server's counters. Cheap to clone; valid after the server has ended.
#[derive(Debug, Clone, Default)]
pub struct ServerStats(Arc<ServerCounters>);

/// Values of the counters at one moment. Fields without "now" are totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounts {
    /// Connections open now, live streams included.
    pub open_connections: u64,
    /// Live streams open now.
    pub live_streams: u64,
    /// Upgraded connections open now.
    pub upgraded_connections: u64,
    /// Accepted connections, without refused ones.
    pub accepted: u64,
    /// Connections refused because of `max_connections`.
    pub refused: u64,
    /// Failed `accept` calls, usually because no file descriptor was free.
    pub accept_errors: u64,
    /// Requests that reached the service.
    pub requests: u64,
    /// Clients that didn't send a complete head in time.
    pub header_timeouts: u64,
    /// Clients that stopped sending in the middle of a request's body.
    pub body_timeouts: u64,
    /// Request heads that were not valid HTTP.
    pub bad_requests: u64,
    /// Request heads beyond `max_header_bytes` or `max_headers`.
    pub oversized_heads: u64,
    /// Clients that accepted no bytes for `write_timeout`; over HTTP/2, such responses.
    pub slow_clients: u64,
    /// Connections that were upgraded to another protocol.
    pub upgrades: u64,
    /// Live streams started.
    pub live_started: u64,
    /// Live streams whose body ended normally.
    pub live_completed: u64,
    /// Live streams whose body ended with an error.
    pub live_failed: u64,
    /// Live streams whose client closed the connection.
    pub live_client_closed: u64,
    /// Live streams closed because the client accepted no bytes for `write_timeout`.
    pub live_write_timeouts: u64,
    /// Live streams closed because the client sent more than `max_discarded_bytes`.
    pub live_excess_input: u64,
    /// Live streams aborted at the end of a drain, or by a panic in their body.
    pub live_aborted: u64,
}

/// Counters behind [`ServerCounts`].
#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    pub(crate) open_connections: PeakGauge,
    pub(crate) live_streams: EventCounter,
    pub(crate) upgraded_connections: EventCounter,
    pub(crate) accepted: EventCounter,
    pub(crate) refused: EventCounter,
    pub(crate) accept_errors: EventCounter,
    pub(crate) requests: EventCounter,
    pub(crate) header_timeouts: EventCounter,
    pub(crate) body_timeouts: EventCounter,
    pub(crate) bad_requests: EventCounter,
    pub(crate) oversized_heads: EventCounter,
    pub(crate) slow_clients: EventCounter,
    pub(crate) upgrades: EventCounter,
    pub(crate) live_started: EventCounter,
    pub(crate) live_completed: EventCounter,
    pub(crate) live_failed: EventCounter,
    pub(crate) live_client_closed: EventCounter,
    pub(crate) live_write_timeouts: EventCounter,
    pub(crate) live_excess_input: EventCounter,
    pub(crate) live_aborted: EventCounter,
}

impl ServerStats {
    /// Returns the current values.
    pub fn counts(&self) -> ServerCounts {
        let counters = &*self.0;
        ServerCounts {
            open_connections: counters.open_connections.get(),
            live_streams: counters.live_streams.get(),
            upgraded_connections: counters.upgraded_connections.get(),
            accepted: counters.accepted.get(),
            refused: counters.refused.get(),
            accept_errors: counters.accept_errors.get(),
            requests: counters.requests.get(),
            header_timeouts: counters.header_timeouts.get(),
            body_timeouts: counters.body_timeouts.get(),
            bad_requests: counters.bad_requests.get(),
            oversized_heads: counters.oversized_heads.get(),
            slow_clients: counters.slow_clients.get(),
            upgrades: counters.upgrades.get(),
            live_started: counters.live_started.get(),
            live_completed: counters.live_completed.get(),
            live_failed: counters.live_failed.get(),
            live_client_closed: counters.live_client_closed.get(),
            live_write_timeouts: counters.live_write_timeouts.get(),
            live_excess_input: counters.live_excess_input.get(),
            live_aborted: counters.live_aborted.get(),
        }
    }

    /// Returns the largest number of connections that were open at once since the last call, and
    /// starts over with the present number. For one caller: each call resets the peak for all.
    pub fn take_peak_connections(&self) -> u64 {
        self.0.open_connections.take_peak()
    }

    pub(crate) fn counters(&self) -> &ServerCounters {
        &self.0
    }
}

/// Counter or gauge that many tasks change.
#[derive(Debug, Default)]
pub(crate) struct EventCounter(AtomicU64);

impl EventCounter {
    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Gauge that also keeps its largest value since the last [`PeakGauge::take_peak`].
#[derive(Debug, Default)]
pub(crate) struct PeakGauge {
    value: AtomicU64,
    peak: AtomicU64,
}

impl PeakGauge {
    pub(crate) fn increment(&self) {
        let value = self.value.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        self.value.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    fn take_peak(&self) -> u64 {
        self.peak.swap(self.get(), Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_largest_value_since_the_last_call() {
        let gauge = PeakGauge::default();
        assert_eq!(gauge.take_peak(), 0);
        (0..5).for_each(|_| gauge.increment());
        (0..3).for_each(|_| gauge.decrement());
        assert_eq!((gauge.get(), gauge.take_peak()), (2, 5));
        gauge.decrement();
        assert_eq!((gauge.get(), gauge.take_peak()), (1, 2), "it starts over with the value of the call");
        assert_eq!(gauge.take_peak(), 1);
    }
}
