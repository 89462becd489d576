//! How eagerly a stream is read: at once, or many rows together.
//!
//! The server sends each row by itself. A reader that keeps up is woken for every few of them, and that is most of what
//! reading costs. So where the server sends what was committed long ago, the kernel is told to wake us only when much has
//! come (`SO_RCVLOWAT`), or after a moment that is short beside the delay that there is already.
//!
//! Invariant: what waits for more waits for at most a sixteenth of the time that has passed since its commit, and for
//! [`LONGEST`]; what was committed just now is read at once, or with the next breath, which is not further away than [`LONG_BREATH`].
//!
//! Measured on loopback, draining rows of 80 bytes, decoding included: 0.2 µs of our CPU a row in place of 2.4, and a tenth less
//! of the server's. Moments of a few milliseconds are worse than none: then each row is a segment of its own, where an eager
//! reader makes the server send several in one, and its CPU rises by half. Hence [`SHORTEST`].
//!
//! Between transactions there is a breath: what comes within [`BREATH`] of what was read before it is read together with what
//! comes meanwhile; where that was a crowd, within [`LONG_BREATH`], and without a wake-up for each that comes. A lone transaction is
//! read at once, and thousands in a second cost the consumer, its disk and its clients one wake-up for all that come in a breath: about a
//! third of the CPU, where each has one row.
//!
//! Not here: the socket and the timer; see `copy.rs`. The clock is the server's, as it stamps what it sends.

use std::time::Duration;

use forebay_pgoutput::PgTime;

/// How much must have come before we are woken. The kernel makes its own buffer at least twice as big.
pub(super) const MUCH_BYTES: usize = 64 * 1024;
/// No wait is worth it that is shorter.
const SHORTEST: Duration = Duration::from_millis(10);
/// No wait is longer: beyond this there is nothing more to save.
const LONGEST: Duration = Duration::from_millis(32);
/// How long, between transactions, what comes next may wait for more after something was read.
pub(super) const BREATH: Duration = Duration::from_millis(1);
/// And after a crowd was read.
pub(super) const LONG_BREATH: Duration = Duration::from_millis(2);
/// So many transactions in one read are a crowd.
const CROWD: u32 = 4;
/// Which part of the delay that there is we may add.
const SHARE: u64 = 16;
/// pgoutput's `Begin`: its tag, the place of its commit, the time of its commit, its transaction's number.
const BEGIN_BYTES: usize = 1 + 8 + 8 + 4;

/// How far the stream is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// When the transaction was committed that came last.
    committed: PgTime,
    /// When the frame was sent that came last.
    sent: PgTime,
    /// Whether a transaction has begun to come whose end hasn't.
    is_inside: bool,
    /// How many have ended since the last read.
    ended: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace { committed: PgTime(0), sent: PgTime(0), is_inside: false, ended: 0 }
    }

    /// A message came that was sent then.
    #[inline]
    pub(super) fn saw(&mut self, sent: PgTime, message: &[u8]) {
        self.sent = sent;
        match message {
            [b'B', _, _, _, _, _, _, _, _, clock @ ..] if message.len() == BEGIN_BYTES => {
                if let Some(clock) = clock.first_chunk() {
                    self.committed = PgTime(i64::from_be_bytes(*clock));
                }
                self.is_inside = true;
            }
            [b'C', ..] => {
                self.is_inside = false;
                self.ended = self.ended.saturating_add(1);
            }
            _ => {}
        }
    }

    /// How long after the last read, of which everything was seen, the next one may be; `None`: at once, since a transaction is on
    /// its way.
    pub(super) fn breath(&mut self) -> Option<Duration> {
        let ended = std::mem::take(&mut self.ended);
        (!self.is_inside).then_some(if ended < CROWD { BREATH } else { LONG_BREATH })
    }

    /// How long what comes next may wait for more; `None`: not at all.
    pub(super) fn patience(&self) -> Option<Duration> {
        // Clocks can be set back, and a transaction of another server has that server's.
        let behind = self.sent.0.saturating_sub(self.committed.0).max(0).unsigned_abs();
        let patience = Duration::from_micros(behind / SHARE);
        (patience >= SHORTEST).then(|| patience.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(committed_micros: i64) -> Vec<u8> {
        [&b"B\0\0\0\0\0\0\0\x09"[..], &committed_micros.to_be_bytes(), &[0, 0, 0, 7]].concat()
    }

    #[test]
    fn what_was_committed_just_now_is_read_at_once() {
        let mut pace = Pace::new();
        assert_eq!(pace.patience(), None, "nothing came yet");
        for behind_ms in [-1_000_000, 0, 1, 50, 159] {
            pace.saw(PgTime(behind_ms * 1000), &begin(0));
            assert_eq!(pace.patience(), None, "{behind_ms} ms");
        }
    }

    #[test]
    fn what_is_late_may_wait_for_a_part_of_that() {
        let mut pace = Pace::new();
        for (behind_ms, patience_ms) in [(160, 10), (320, 20), (512, 32), (1_000_000_000, 32)] {
            pace.saw(PgTime(behind_ms * 1000 + 5), &begin(5));
            assert_eq!(pace.patience(), Some(Duration::from_millis(patience_ms)), "{behind_ms} ms");
        }
        pace.saw(PgTime(i64::MAX), &begin(i64::MIN));
        assert_eq!(pace.patience(), Some(LONGEST));
    }

    #[test]
    fn a_long_transaction_is_behind_once_it_has_taken_long() {
        let mut pace = Pace::new();
        pace.saw(PgTime(1_000_000), &begin(1_000_000));
        for (sent, waits) in [(1_050_000, false), (1_150_000, false), (1_200_000, true), (9_000_000, true)] {
            pace.saw(PgTime(sent), b"I and so on, whatever is in it");
            assert_eq!(pace.patience().is_some(), waits, "{sent}");
        }
        pace.saw(PgTime(9_000_000), &begin(8_999_000));
        assert_eq!(pace.patience(), None, "the next one isn't");
    }

    #[test]
    fn breath_is_drawn_between_transactions_only() {
        let mut pace = Pace::new();
        assert_eq!(pace.breath(), Some(BREATH));
        for (message, breath) in [
            (&begin(0)[..], None),
            (b"I and so on", None),
            (b"C and so on", Some(BREATH)),
            (b"R", Some(BREATH)),
        ] {
            pace.saw(PgTime(0), message);
            assert_eq!(pace.breath(), breath, "{}", message.escape_ascii());
        }
        for (transactions, breath) in [(1, BREATH), (CROWD, LONG_BREATH), (CROWD - 1, BREATH)] {
            for _ in 0..transactions {
                pace.saw(PgTime(0), &begin(0));
                pace.saw(PgTime(0), b"C and so on");
            }
            assert_eq!(pace.breath(), Some(breath), "{transactions}");
        }
    }

    #[test]
    fn nothing_else_is_taken_for_a_begin() {
        let mut pace = Pace::new();
        for message in
            [&b""[..], b"B", &begin(-1_000_000_000)[..20], &[begin(-1_000_000_000), vec![0]].concat()]
        {
            pace.saw(PgTime(0), message);
            assert_eq!(pace, Pace::new());
        }
    }
}
