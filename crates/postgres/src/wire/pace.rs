//! How eagerly a stream is read: at once, or many rows together.
//!
//! The server sends each row by itself. A reader that keeps up is woken for nearly each of them, and that is most of what
//! reading costs, on both sides. Where a backlog is sent nobody notices if rows wait for each other for a moment; so then
//! the kernel is told to wake us only when much has come (`SO_RCVLOWAT`), or the moment has passed.
//!
//! Invariant: a stream that brings less than [`BUSY_BYTES`] in a window, on average, is read at once, or will be soon, if it
//! was busy before; what waits for more waits for [`PATIENCE`] at most. So single changes, and transactions that take less
//! than a window, are not held up.
//! Not here: the socket and the timer; see `copy.rs`. The state is told the time.

use std::time::{Duration, Instant};

/// How much must have come before a busy stream is read. The kernel makes its own buffer twice as big.
pub(super) const MUCH_BYTES: usize = 64 * 1024;
/// How long a busy stream waits for that; tokio's timer may make it one more.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);
/// Long enough to see beyond the pauses that the server makes between transactions of a backlog, to decode the next.
const WINDOW: Duration = Duration::from_millis(8);
/// A window is busy that brings so much, which is 4 MB/s; changes that somebody waits for come to a tenth of it …
const BUSY_BYTES: usize = 32 * 1024;
/// … and in which we wait so often; otherwise there is nothing to save.
const BUSY_WAITS: usize = 32;
/// A busy stream is busy as long as a window brings this: 1 MB/s.
const STILL_BUSY_BYTES: usize = BUSY_BYTES / 4;

/// How eagerly to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    is_gathering: bool,
    /// What happened since then.
    since: Instant,
    waits: usize,
    bytes: usize,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Pace { is_gathering: false, since: now, waits: 0, bytes: 0 }
    }

    /// There is nothing to read, and we are about to wait: once for each time. Whether to wait for much.
    pub(super) fn waits(&mut self, now: Instant) -> bool {
        self.waits += 1;
        let age = now.saturating_duration_since(self.since);
        if age >= WINDOW {
            let enough = |found: usize, wanted: usize| {
                found as u128 * WINDOW.as_nanos() >= wanted as u128 * age.as_nanos()
            };
            // Whoever gathers waits rarely.
            let is_busy = match self.is_gathering {
                true => enough(self.bytes, STILL_BUSY_BYTES),
                false => enough(self.bytes, BUSY_BYTES) && enough(self.waits, BUSY_WAITS),
            };
            *self = Pace { is_gathering: is_busy, ..Pace::new(now) };
        }
        self.is_gathering
    }

    /// So much was read.
    pub(super) fn read(&mut self, bytes: usize) {
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// Reads `bytes` every so often, for `long`. When the stream became busy, if it did.
    fn run(
        pace: &mut Pace,
        begin: Instant,
        every: Duration,
        bytes: usize,
        long: Duration,
    ) -> Option<Duration> {
        let mut now = begin;
        while now < begin + long {
            if pace.waits(now) {
                return Some(now - begin);
            }
            pace.read(bytes);
            now += every;
        }
        None
    }

    #[test]
    fn a_stream_that_brings_much_for_a_while_gathers() {
        let begin = Instant::now();
        for (every, bytes) in [(5 * MICRO, 100), (10 * MICRO, 800), (200 * MICRO, 2000)] {
            let mut pace = Pace::new(begin);
            let busy_after = run(&mut pace, begin, every, bytes, Duration::from_secs(1)).unwrap();
            assert!((WINDOW..WINDOW * 2).contains(&busy_after), "{every:?}: {busy_after:?}");
        }
    }

    #[test]
    fn a_stream_that_comes_now_and_then_is_always_read_at_once() {
        let begin = Instant::now();
        // Ten thousand small transactions a second; large rows now and then; and little of either.
        for (every, bytes) in [(33 * MICRO, 70), (400 * MICRO, 100_000), (10_000 * MICRO, 100)] {
            let mut pace = Pace::new(begin);
            assert_eq!(run(&mut pace, begin, every, bytes, Duration::from_secs(2)), None, "{every:?}");
        }
    }

    #[test]
    fn short_transactions_with_pauses_are_read_at_once() {
        let (mut now, mut pace) = (Instant::now(), Pace::new(Instant::now()));
        for _ in 0..100 {
            assert_eq!(run(&mut pace, now, 5 * MICRO, 80, WINDOW / 4), None);
            now += 5 * WINDOW;
        }
    }

    #[test]
    fn a_backlog_of_transactions_gathers_though_the_server_pauses_between_them() {
        let (mut now, mut pace) = (Instant::now(), Pace::new(Instant::now()));
        let mut transactions = 0;
        while run(&mut pace, now, 5 * MICRO, 80, Duration::from_millis(2)).is_none() {
            now += Duration::from_millis(4);
            transactions += 1;
            assert!(transactions < 10);
        }
    }

    #[test]
    fn gathering_goes_on_while_much_comes_and_ends_when_little_does() {
        let mut now = Instant::now();
        let mut pace = Pace { is_gathering: true, ..Pace::new(now) };
        for _ in 0..1000 {
            pace.read(MUCH_BYTES);
            assert!(pace.waits(now), "few waits are what it is for");
            now += Duration::from_millis(2);
        }
        let until = now + 2 * WINDOW;
        while pace.waits(now) {
            assert!(now < until, "it notices within two windows");
            pace.read(100);
            now += Duration::from_millis(1);
        }
        pace = Pace { is_gathering: true, ..Pace::new(now) };
        assert!(pace.waits(now));
        pace.read(100);
        assert!(!pace.waits(now + Duration::from_secs(1)), "a pause ends it at once");
    }
}
