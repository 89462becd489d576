//! Reader of an event stream that resumes like Electric's published client: after an `up-to-date`
//! from `<global_last_seen_lsn>_0`, otherwise from the last change.
//!
//! The rows of the table are numbered 1, 2, 3 and so on, in the order of their commits. So the
//! reader detects duplicates and gaps.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::HttpConnection;

/// Maximum time for a reader to catch up after the last write.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before the next request, after a stream ended or was refused.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Progress of the writer: the number of the last written row, and whether there will be more.
#[derive(Default)]
pub(crate) struct WriteProgress {
    last: AtomicU64,
    /// Whether the writer is to stop. It may still write a row.
    is_stopping: AtomicBool,
    /// When the writer had ended. From then on, `last` doesn't change.
    finished_at: OnceLock<Instant>,
}

impl WriteProgress {
    /// Sets the number of the last written row.
    pub(crate) fn set(&self, last: u64) {
        self.last.store(last, Ordering::Release);
    }

    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Returns whether the writer is to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Stops the writer, waits until it has ended, and returns its result.
    ///
    /// Readers end only after that, so that they wait for the rows of its last write, too.
    pub(crate) fn finish(&self, writer: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
        self.is_stopping.store(true, Ordering::Release);
        let ended = writer.join();
        self.finished_at.get_or_init(Instant::now);
        ended.expect("the writer returns its errors")
    }

    fn is_finished(&self) -> bool {
        self.finished_at.get().is_some()
    }

    /// Returns whether the time for readers to catch up is over.
    fn is_overdue(&self) -> bool {
        self.finished_at.get().is_some_and(|finished_at| finished_at.elapsed() >= CATCH_UP_TIMEOUT)
    }
}

/// State and counts of one reader.
pub(crate) struct EventReader {
    /// Offset of the next request.
    offset: String,
    /// Number of the last received row.
    pub(crate) last: u64,
    /// Number of requested streams.
    pub(crate) streams: u64,
    /// Rows that were received again.
    pub(crate) duplicates: u64,
    /// Number of times that the next row was not the expected one, but a later one.
    pub(crate) gaps: u64,
    /// Responses with status 409, which require the client to read the shape anew.
    pub(crate) refetches: u64,
    /// When the last row arrived.
    last_row_at: Option<Instant>,
    /// Longest time between two rows.
    pub(crate) longest_gap: Duration,
}

impl EventReader {
    /// Creates a reader that starts at an offset.
    pub(crate) fn at(offset: &str) -> EventReader {
        EventReader {
            offset: offset.to_owned(),
            last: 0,
            streams: 0,
            duplicates: 0,
            gaps: 0,
            refetches: 0,
            last_row_at: None,
            longest_gap: Duration::ZERO,
        }
    }

    /// Reads until it has all written rows, or until a refetch. Each new stream is requested from
    /// the next server in turn.
    ///
    /// Fails if a row is missing [`CATCH_UP_TIMEOUT`] after the last write.
    pub(crate) fn follow(
        mut self,
        servers: &[SocketAddr],
        shape: &str,
        handle: &str,
        written: &WriteProgress,
    ) -> Result<EventReader> {
        let mut servers = servers.iter().cycle();
        while !self.is_done(written) && self.refetches == 0 {
            ensure!(
                !written.is_overdue(),
                "a reader has only rows up to {} of {}, {CATCH_UP_TIMEOUT:?} after the last write",
                self.last,
                written.last()
            );
            if let Some(server) = servers.next() {
                // A stream that ended or was refused is requested again.
                let _broken = self.stream(*server, shape, handle, written);
            }
            thread::sleep(RETRY_DELAY);
        }
        Ok(self)
    }

    fn is_done(&self, written: &WriteProgress) -> bool {
        written.is_finished() && self.last >= written.last()
    }

    fn stream(
        &mut self,
        server: SocketAddr,
        shape: &str,
        handle: &str,
        written: &WriteProgress,
    ) -> Result<()> {
        let mut http = HttpConnection::open(server)?;
        // A stream without data for a second is closed and requested from the next server.
        http.set_read_timeout(Duration::from_secs(1))?;
        let offset = &self.offset;
        let target = format!("/v1/shape?{shape}&handle={handle}&offset={offset}&live=true&live_sse=true");
        self.streams += 1;
        let head = http.get(&target)?;
        self.refetches += u64::from(head.status == 409);
        ensure!(head.status == 200, "the stream returned {}", head.status);
        let mut lines = Vec::new();
        while !self.is_done(written) && !written.is_overdue() {
            let chunk = http.next_chunk()?;
            ensure!(!chunk.is_empty(), "the stream ended");
            lines.extend_from_slice(&chunk);
            let Some(end) = lines.windows(2).rposition(|two| two == b"\n\n") else { continue };
            for line in lines[..end].split(|byte| *byte == b'\n') {
                if let Some(message) = line.strip_prefix(b"data: ") {
                    self.handle(&serde_json::from_slice(message)?);
                }
            }
            lines.drain(..end + 2);
        }
        Ok(())
    }

    /// Counts a message, and advances the offset.
    fn handle(&mut self, message: &Value) {
        let headers = &message["headers"];
        if headers["control"] == "up-to-date" {
            self.offset = format!("{}_0", headers["global_last_seen_lsn"].as_str().unwrap_or_default());
        }
        if headers["operation"].is_string() {
            let lsn = headers["lsn"].as_str().unwrap_or_default();
            self.offset = format!("{lsn}_{}", headers["op_position"]);
            let id = message["value"]["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or(0);
            self.duplicates += u64::from(id <= self.last);
            self.gaps += u64::from(id > self.last + 1);
            self.last = self.last.max(id);
            let now = Instant::now();
            if let Some(last_row_at) = self.last_row_at.replace(now) {
                self.longest_gap = self.longest_gap.max(now - last_row_at);
            }
        }
    }
}
