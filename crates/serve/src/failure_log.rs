//! Failure log: a log line for each 5xx response, with the request id that the client receives.
//!
//! Invariant: at most [`LINES`] lines per second, however many requests fail. The next line has the
//! number of omitted ones.
//! Enforced by: [`FailureRateLimiter::admit`], which takes the time as a parameter.

use std::time::Duration;

use http::Response;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::protocol::Route;

/// Maximum number of lines per second, so that a flood of refused requests can't fill the disk.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Response extension: why the request was refused, for the log line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusalReason(pub(crate) &'static str);

/// Logs failed requests.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    limiter: Mutex<FailureRateLimiter>,
}

impl FailureLog {
    /// Logs the response if its status is 5xx and the rate limit allows it.
    pub(crate) fn record<B>(&self, id: u64, route: Route, response: &Response<B>) {
        if !response.status().is_server_error() {
            return;
        }
        let admitted = self.limiter.lock().admit(Instant::now());
        let Some(left_out) = admitted else { return };
        // A response without a reason was refused by admission, before the shape handler.
        let reason = response.extensions().get::<RefusalReason>().map_or("admission", |reason| reason.0);
        let (route, status) = (route.as_str(), response.status().as_u16());
        warn!(request = format!("{id:016x}"), route, status, reason, left_out, "request failed");
    }
}

/// Limits the lines to [`LINES`] per second.
#[derive(Debug, Default)]
struct FailureRateLimiter {
    /// When the current second began.
    begun: Option<Instant>,
    /// Lines in the current second.
    lines: u32,
    /// Lines omitted since the last one that was written.
    left_out: u64,
}

impl FailureRateLimiter {
    /// Returns the number of lines omitted since the last one. `None`: this one is omitted, too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.begun.is_none_or(|begun| now.duration_since(begun) >= SECOND) {
            (self.begun, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_writes_few_lines_and_counts_the_omitted_ones() {
        let (mut limiter, begun) = (FailureRateLimiter::default(), Instant::now());
        let written: Vec<_> = (0..1_000).filter_map(|_| limiter.admit(begun)).collect();
        assert_eq!(written, [0; LINES as usize]);
        assert_eq!(limiter.admit(begun + SECOND / 2), None);
        assert_eq!(limiter.admit(begun + SECOND), Some(1_001 - u64::from(LINES)));
        assert_eq!(limiter.admit(begun + SECOND), Some(0));
    }
}
