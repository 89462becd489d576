//! Lane: one direction of a connection. Buffers bytes and decides when they may be forwarded.
//!
//! Invariant: each byte is forwarded once, in order; the end of the stream is forwarded last.
//! Enforced by: one queue, from which only [`Lane::record_written`] removes.
//! Out of scope: sockets, clocks.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::Instant;

/// Bytes held at which a lane stops reading.
const MAX_HELD_BYTES: usize = 256 * 1024;
/// A throttled lane writes at most this many times per second, each time an equal part of its rate.
const THROTTLE_STEPS_PER_SECOND: u64 = 100;

/// Faults of one direction, for all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectionFaults {
    pub(super) stalled: bool,
    pub(super) delay: Duration,
    /// Maximum rate in bytes per second.
    pub(super) rate: Option<NonZeroU64>,
    /// Bytes that may still be forwarded; at 0 all connections are closed.
    pub(super) truncate_after: Option<u64>,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Lane {
    held: VecDeque<HeldChunk>,
    held_bytes: usize,
    /// Time at which the sender ended the stream.
    ended: Option<Instant>,
    /// Whether the end of the stream was sent to the receiver.
    closed: bool,
    /// Time before which a throttled lane writes nothing, because its rate is used up.
    throttled_until: Option<Instant>,
}

/// Bytes of one read.
#[derive(Debug)]
struct HeldChunk {
    received_at: Instant,
    bytes: Vec<u8>,
    written: usize,
}

/// Next action of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LaneAction<'a> {
    Write(&'a [u8]),
    /// Send the end of the stream to the receiver.
    Close,
    Wait(Instant),
    Nothing,
}

impl Lane {
    /// Returns true if bytes should be read from the sender.
    pub(super) fn takes_input(&self, faults: &DirectionFaults) -> bool {
        !faults.stalled && self.ended.is_none() && self.held_bytes < MAX_HELD_BYTES
    }

    /// Appends bytes of the sender; discards them if the lane is closed.
    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) {
        if self.closed {
            return; // half closed: the receiver already got the end of the stream
        }
        self.held_bytes += bytes.len();
        self.held.push_back(HeldChunk { received_at: now, bytes: bytes.to_vec(), written: 0 });
    }

    /// Records that the sender ended the stream.
    pub(super) fn record_end(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Returns the next action under these faults.
    pub(super) fn next(&self, faults: &DirectionFaults, now: Instant) -> LaneAction<'_> {
        if faults.stalled {
            return LaneAction::Nothing;
        }
        let Some(chunk) = self.held.front() else {
            return match self.ended {
                Some(ended) if !self.closed && ended + faults.delay <= now => LaneAction::Close,
                Some(ended) if !self.closed => LaneAction::Wait(ended + faults.delay),
                Some(_) | None => LaneAction::Nothing,
            };
        };
        let mut limit = faults.truncate_after.unwrap_or(u64::MAX);
        let mut due = chunk.received_at + faults.delay;
        if let Some(rate) = faults.rate {
            limit = limit.min((rate.get() / THROTTLE_STEPS_PER_SECOND).max(1));
            due = self.throttled_until.map_or(due, |until| until.max(due));
        }
        if now < due {
            return LaneAction::Wait(due);
        }
        let rest = &chunk.bytes[chunk.written..];
        LaneAction::Write(&rest[..rest.len().min(usize::try_from(limit).unwrap_or(usize::MAX))])
    }

    /// Records that `count` bytes of the last `Write` were written.
    pub(super) fn record_written(&mut self, count: usize, faults: &mut DirectionFaults, now: Instant) {
        let chunk = self.held.front_mut().expect("only held bytes are written");
        chunk.written += count;
        self.held_bytes -= count;
        if chunk.written == chunk.bytes.len() {
            self.held.pop_front();
        }
        let count = u64::try_from(count).expect("a usize fits in a u64");
        if let Some(rate) = faults.rate {
            let start = self.throttled_until.map_or(now, |until| until.max(now));
            self.throttled_until =
                Some(start + Duration::from_nanos(count.saturating_mul(1_000_000_000) / rate));
        }
        faults.truncate_after = faults.truncate_after.map(|left| left.saturating_sub(count));
    }

    /// Records that the end of the stream was sent to the receiver. Discards held and later bytes.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.held.clear();
        self.held_bytes = 0;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns true if the sender ended the stream and the receiver was sent its end.
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
            lane.push(chunk, now);
        }
        lane
    }

    #[test]
    fn without_faults_bytes_pass_at_once_and_the_end_comes_last() {
        let (now, mut faults) = (Instant::now(), DirectionFaults::default());
        let mut lane = lane(&[b"one", b"two"], now);
        lane.record_end(now);
        for (written, count) in [(&b"one"[..], 2), (b"e", 1), (b"two", 3)] {
            assert_eq!(lane.next(&faults, now), LaneAction::Write(written));
            lane.record_written(count, &mut faults, now);
        }
        assert_eq!(lane.next(&faults, now), LaneAction::Close);
        lane.close();
        assert_eq!(lane.next(&faults, now), LaneAction::Nothing);
        assert!(lane.is_finished());
    }

    #[test]
    fn a_stalled_lane_neither_reads_nor_writes() {
        let now = Instant::now();
        let lane = lane(&[b"one"], now);
        let stalled = DirectionFaults { stalled: true, ..DirectionFaults::default() };
        assert!(!lane.takes_input(&stalled));
        assert_eq!(lane.next(&stalled, now), LaneAction::Nothing);
        assert_eq!(lane.next(&DirectionFaults::default(), now), LaneAction::Write(b"one"));
    }

    #[test]
    fn a_delay_applies_to_each_byte_and_to_the_end() {
        let (now, mut faults) =
            (Instant::now(), DirectionFaults { delay: SECOND, ..DirectionFaults::default() });
        let mut lane = lane(&[b"one"], now);
        lane.record_end(now + SECOND / 2);
        assert_eq!(lane.next(&faults, now), LaneAction::Wait(now + SECOND));
        assert_eq!(lane.next(&faults, now + SECOND), LaneAction::Write(b"one"));
        lane.record_written(3, &mut faults, now + SECOND);
        assert_eq!(lane.next(&faults, now + SECOND), LaneAction::Wait(now + SECOND * 3 / 2));
        assert_eq!(lane.next(&faults, now + SECOND * 2), LaneAction::Close);
    }

    #[test]
    fn a_throttle_takes_time_for_every_byte() {
        let (now, mut faults) =
            (Instant::now(), DirectionFaults { rate: NonZeroU64::new(200), ..DirectionFaults::default() });
        let mut lane = lane(&[b"abcdef"], now);
        assert_eq!(lane.next(&faults, now), LaneAction::Write(b"ab"));
        lane.record_written(2, &mut faults, now);
        assert_eq!(lane.next(&faults, now), LaneAction::Wait(now + SECOND / 100));
        assert_eq!(lane.next(&faults, now + SECOND / 100), LaneAction::Write(b"cd"));
    }

    #[test]
    fn a_truncation_is_exact() {
        let (now, mut faults) =
            (Instant::now(), DirectionFaults { truncate_after: Some(4), ..DirectionFaults::default() });
        let mut lane = lane(&[b"one", b"two"], now);
        assert_eq!(lane.next(&faults, now), LaneAction::Write(b"one"));
        lane.record_written(3, &mut faults, now);
        assert_eq!(lane.next(&faults, now), LaneAction::Write(b"t"));
        lane.record_written(1, &mut faults, now);
        assert_eq!(faults.truncate_after, Some(0));
    }

    #[test]
    fn held_bytes_are_bounded() {
        let now = Instant::now();
        let mut lane = lane(&[&[0; MAX_HELD_BYTES - 1]], now);
        assert!(lane.takes_input(&DirectionFaults::default()));
        lane.push(&[0], now);
        assert!(!lane.takes_input(&DirectionFaults::default()));
    }

    #[test]
    fn a_half_closed_lane_reads_and_discards() {
        let (now, faults) = (Instant::now(), DirectionFaults::default());
        let mut lane = lane(&[b"held"], now);
        lane.close();
        assert!(lane.takes_input(&faults));
        lane.push(b"more", now);
        assert_eq!(lane.next(&faults, now), LaneAction::Nothing);
        assert!(!lane.is_finished());
    }
}
