//! What is answered with 5xx is logged, with the id that the client has of it.
//!
//! Invariant: at most [`LINES`] lines in a second, however many clients are turned away; those that are left out are counted in the next line.
//! Kept by: [`Pace::admit`], which is handed the time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Response;
use tokio::time::Instant;
use tracing::warn;

use super::protocol::Route;

/// Enough to find out why; a crowd that is turned away must not fill the disk.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Why a request was refused, for whoever logs its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reason(pub(crate) &'static str);

/// Logs failures.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    pace: Mutex<Pace>,
}

impl Failures {
    /// Looks at an answer that is about to be sent under this id.
    pub(crate) fn look_at<B>(&self, id: u64, route: Route, response: &Response<B>) {
        if !response.status().is_server_error() {
            return;
        }
        let admitted = self.pace.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let Some(left_out) = admitted else { return };
        // Whatever has none was refused before it came to the shapes.
        let reason = response.extensions().get::<Reason>().map_or("admission", |reason| reason.0);
        let (route, status) = (route.as_str(), response.status().as_u16());
        warn!(request = format!("{id:016x}"), route, status, reason, left_out, "a request failed");
    }
}

/// So many lines in a second.
#[derive(Debug, Default)]
struct Pace {
    begun: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Pace {
    /// Whether one more line may be written, and how many were not since the last one.
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
    fn a_crowd_makes_few_lines_and_those_left_out_are_counted() {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        let written: Vec<_> = (0..1_000).filter_map(|_| pace.admit(begun)).collect();
        assert_eq!(written, [0; LINES as usize]);
        assert_eq!(pace.admit(begun + SECOND / 2), None);
        assert_eq!(pace.admit(begun + SECOND), Some(1_001 - u64::from(LINES)));
        assert_eq!(pace.admit(begun + SECOND), Some(0));
    }
}
