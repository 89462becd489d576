//! One direction of one connection: what is held, and when it may pass.
//!
//! Invariant: bytes leave in the order in which they came, none twice; the end of the stream leaves last.
//! Kept by: one queue; only `passed` takes from it.
//! Not here: sockets, clocks.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

const MAX_HELD_BYTES: usize = 256 * 1024;
/// A throttled lane writes what it may in this time, then waits as long.
const THROTTLE_STEPS_PER_SECOND: u64 = 100;

/// The faults in force in one direction, for all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    pub(super) stalled: bool,
    pub(super) delay: Duration,
    /// Bytes a second.
    pub(super) rate: Option<NonZeroU64>,
    /// How many more bytes pass; at zero, all is cut.
    pub(super) truncate_after: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    held: VecDeque<Chunk>,
    held_bytes: usize,
    /// When its sender ended the stream.
    ended: Option<Instant>,
    /// Whether its receiver was told so, or is to be told at once.
    closed: bool,
    /// Until when a throttled lane has used up its rate.
    spent_until: Option<Instant>,
}

#[derive(Debug)]
struct Chunk {
    came: Instant,
    bytes: Vec<u8>,
    passed: usize,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Write(&'a [u8]),
    /// Tell the receiver that the stream has ended.
    Close,
    Wait(Instant),
    Nothing,
}

impl Lane {
    /// Whether to read from the sender.
    pub(super) fn wants(&self, faults: &Faults) -> bool {
        !faults.stalled && self.ended.is_none() && self.held_bytes < MAX_HELD_BYTES
    }

    pub(super) fn came(&mut self, bytes: &[u8], now: Instant) {
        if self.closed {
            return; // half closed: nobody is there to read it
        }
        self.held_bytes += bytes.len();
        self.held.push_back(Chunk { came: now, bytes: bytes.to_vec(), passed: 0 });
    }

    pub(super) fn ended(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    pub(super) fn next(&self, faults: &Faults, now: Instant) -> Next<'_> {
        if faults.stalled {
            return Next::Nothing;
        }
        let Some(chunk) = self.held.front() else {
            return match self.ended {
                Some(ended) if !self.closed && ended + faults.delay <= now => Next::Close,
                Some(ended) if !self.closed => Next::Wait(ended + faults.delay),
                Some(_) | None => Next::Nothing,
            };
        };
        let mut limit = faults.truncate_after.unwrap_or(u64::MAX);
        let mut due = chunk.came + faults.delay;
        if let Some(rate) = faults.rate {
            limit = limit.min((rate.get() / THROTTLE_STEPS_PER_SECOND).max(1));
            due = self.spent_until.map_or(due, |spent| spent.max(due));
        }
        if now < due {
            return Next::Wait(due);
        }
        let rest = &chunk.bytes[chunk.passed..];
        Next::Write(&rest[..rest.len().min(usize::try_from(limit).unwrap_or(usize::MAX))])
    }

    /// So many bytes of the last `Write` were written.
    pub(super) fn passed(&mut self, count: usize, faults: &mut Faults, now: Instant) {
        let chunk = self.held.front_mut().expect("only what is held can pass");
        chunk.passed += count;
        self.held_bytes -= count;
        if chunk.passed == chunk.bytes.len() {
            self.held.pop_front();
        }
        let count = u64::try_from(count).expect("a usize fits in a u64");
        if let Some(rate) = faults.rate {
            let start = self.spent_until.map_or(now, |spent| spent.max(now));
            self.spent_until = Some(start + Duration::from_nanos(count.saturating_mul(1_000_000_000) / rate));
        }
        faults.truncate_after = faults.truncate_after.map(|left| left.saturating_sub(count));
    }

    /// Its receiver sees no more from here on.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.held.clear();
        self.held_bytes = 0;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether neither side will use it any more.
    pub(super) fn is_finished(&self) -> bool {
        self.closed && self.ended.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lane(chunks: &[&[u8]], now: Instant) -> Lane {
        let mut lane = Lane::default();
        for chunk in chunks {
            lane.came(chunk, now);
        }
        lane
    }

    #[test]
    fn without_faults_bytes_pass_at_once_and_the_end_comes_last() {
        let (now, mut faults) = (Instant::now(), Faults::default());
        let mut lane = lane(&[b"one", b"two"], now);
        lane.ended(now);
        for (written, count) in [(&b"one"[..], 2), (b"e", 1), (b"two", 3)] {
            assert_eq!(lane.next(&faults, now), Next::Write(written));
            lane.passed(count, &mut faults, now);
        }
        assert_eq!(lane.next(&faults, now), Next::Close);
        lane.close();
        assert_eq!(lane.next(&faults, now), Next::Nothing);
        assert!(lane.is_finished());
    }

    #[test]
    fn a_stalled_lane_neither_reads_nor_writes() {
        let now = Instant::now();
        let lane = lane(&[b"one"], now);
        let stalled = Faults { stalled: true, ..Faults::default() };
        assert!(!lane.wants(&stalled));
        assert_eq!(lane.next(&stalled, now), Next::Nothing);
        assert_eq!(lane.next(&Faults::default(), now), Next::Write(b"one"));
    }

    #[test]
    fn a_delay_counts_from_when_a_byte_came_and_holds_for_the_end_too() {
        let (now, mut faults) = (Instant::now(), Faults { delay: SECOND, ..Faults::default() });
        let mut lane = lane(&[b"one"], now);
        lane.ended(now + SECOND / 2);
        assert_eq!(lane.next(&faults, now), Next::Wait(now + SECOND));
        assert_eq!(lane.next(&faults, now + SECOND), Next::Write(b"one"));
        lane.passed(3, &mut faults, now + SECOND);
        assert_eq!(lane.next(&faults, now + SECOND), Next::Wait(now + SECOND * 3 / 2));
        assert_eq!(lane.next(&faults, now + SECOND * 2), Next::Close);
    }

    #[test]
    fn a_throttle_spends_time_for_every_byte() {
        let (now, mut faults) = (Instant::now(), Faults { rate: NonZeroU64::new(200), ..Faults::default() });
        let mut lane = lane(&[b"abcdef"], now);
        assert_eq!(lane.next(&faults, now), Next::Write(b"ab"));
        lane.passed(2, &mut faults, now);
        assert_eq!(lane.next(&faults, now), Next::Wait(now + SECOND / 100));
        assert_eq!(lane.next(&faults, now + SECOND / 100), Next::Write(b"cd"));
    }

    #[test]
    fn a_truncation_is_exact() {
        let (now, mut faults) = (Instant::now(), Faults { truncate_after: Some(4), ..Faults::default() });
        let mut lane = lane(&[b"one", b"two"], now);
        assert_eq!(lane.next(&faults, now), Next::Write(b"one"));
        lane.passed(3, &mut faults, now);
        assert_eq!(lane.next(&faults, now), Next::Write(b"t"));
        lane.passed(1, &mut faults, now);
        assert_eq!(faults.truncate_after, Some(0));
    }

    #[test]
    fn what_is_held_is_bounded() {
        let now = Instant::now();
        let mut lane = lane(&[&[0; MAX_HELD_BYTES - 1]], now);
        assert!(lane.wants(&Faults::default()));
        lane.came(&[0], now);
        assert!(!lane.wants(&Faults::default()));
    }

    #[test]
    fn a_half_closed_lane_reads_on_and_forgets() {
        let (now, faults) = (Instant::now(), Faults::default());
        let mut lane = lane(&[b"held"], now);
        lane.close();
        assert!(lane.wants(&faults));
        lane.came(b"more", now);
        assert_eq!(lane.next(&faults, now), Next::Nothing);
        assert!(!lane.is_finished());
    }
}
