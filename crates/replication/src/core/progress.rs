//! Progress of the stream: received and durable positions, and the standby status updates.
//!
//! Invariant: an acknowledged position was made durable by the consumer first. It is never inside a
//! transaction, never ahead of the server's last message, and never decreases. Lag is zero when all
//! received changes are durable.
//! Enforced by: only [`StandbyFeedback`] creates a `StandbyStatusUpdate`, from its own durable
//! position.

use std::time::{Duration, Instant};

use forebay_pgoutput::{Lsn, PgTime, StandbyStatusUpdate};

/// Interval between status updates while received changes aren't acknowledged.
const PENDING_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two idle positions offered to the consumer, which writes each to disk.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// An idle position is offered earlier once it is this far ahead.
const IDLE_BYTES: u64 = 16 << 20;
/// Maximum interval between status updates, for any server timeout.
const MAX_INTERVAL: Duration = Duration::from_secs(15);

/// Positions read from the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveProgress {
    /// The last position that the server sent.
    pub(crate) received: Lsn,
    /// End of the last transaction that was passed on completely.
    pub(crate) committed: Lsn,
    in_transaction: bool,
    reply_requested: bool,
    /// Lag is measured from this transaction until it is durable, then from `newest`. A list of all
    /// pending ones would be unbounded.
    measured: Option<PendingTransaction>,
    newest: Option<PendingTransaction>,
}

/// A transaction whose changes are arriving or not yet durable.
#[derive(Debug, Clone, Copy)]
struct PendingTransaction {
    /// Start of its commit record. A durable position beyond it includes the whole transaction.
    commit: Lsn,
    /// Commit time, by the server's clock.
    committed_at: PgTime,
}

impl ReceiveProgress {
    pub(crate) fn new(from: Lsn) -> Self {
        ReceiveProgress {
            received: from,
            committed: from,
            in_transaction: false,
            reply_requested: false,
            measured: None,
            newest: None,
        }
    }

    /// Records a `Begin`. `commit` is the start of the commit record.
    pub(crate) fn on_begin(&mut self, commit: Lsn, committed_at: PgTime) {
        self.in_transaction = true;
        self.newest = Some(PendingTransaction { commit, committed_at });
        self.measured = self.measured.or(self.newest);
    }

    /// Records a `Commit`. `end` is the position after it.
    pub(crate) fn on_commit(&mut self, end: Lsn) {
        self.in_transaction = false;
        self.committed = self.committed.max(end);
        self.received = self.received.max(end);
    }

    /// Returns the commit time from which lag is measured; `None`: all received changes are
    /// durable.
    pub(crate) fn behind_since(&mut self, durable: Lsn) -> Option<PgTime> {
        let is_pending = |transaction: &PendingTransaction| durable <= transaction.commit;
        self.measured = self.measured.filter(is_pending).or(self.newest.filter(is_pending));
        self.measured.map(|transaction| transaction.committed_at)
    }

    /// Records a keepalive: the server has sent all changes up to `end`.
    pub(crate) fn on_keepalive(&mut self, end: Lsn, reply: bool) {
        self.received = self.received.max(end);
        self.reply_requested |= reply;
    }
}

/// Decides when to send a standby status update, and which positions it contains.
#[derive(Debug)]
pub(crate) struct StandbyFeedback {
    durable: Lsn,
    acknowledged: Lsn,
    sent_at: Instant,
    /// When an idle position was last offered to the consumer.
    offered_at: Instant,
    /// Maximum interval between status updates.
    interval: Duration,
}

impl StandbyFeedback {
    /// `sender_timeout` is the server's `wal_sender_timeout`; `None` if it is disabled.
    pub(crate) fn new(from: Lsn, sender_timeout: Option<Duration>, now: Instant) -> Self {
        let interval = sender_timeout.map_or(MAX_INTERVAL, |timeout| (timeout / 3).min(MAX_INTERVAL));
        StandbyFeedback { durable: from, acknowledged: Lsn(0), sent_at: now, offered_at: now, interval }
    }

    /// Records that the consumer has made all changes up to here durable.
    pub(crate) fn on_durable(&mut self, durable: Lsn) {
        self.durable = self.durable.max(durable);
    }

    /// Returns a position after all received transactions for the consumer to record, if none is
    /// pending. Without it, an idle database would retain WAL that other databases of the cluster
    /// write.
    pub(crate) fn idle_position(&mut self, position: &ReceiveProgress, now: Instant) -> Option<Lsn> {
        let is_pending = position.in_transaction || self.durable < position.committed;
        let ahead = position.received.0.saturating_sub(self.durable.0);
        // A server that shuts down requests replies until everything is acknowledged.
        let is_due = position.reply_requested
            || ahead > IDLE_BYTES
            || now >= self.offered_at + IDLE_INTERVAL.min(self.interval);
        (!is_pending && ahead > 0 && is_due).then(|| {
            self.offered_at = now;
            position.received
        })
    }

    /// Returns when the next status update is due.
    pub(crate) fn due(&self, position: &ReceiveProgress) -> Instant {
        match () {
            () if position.reply_requested => self.sent_at,
            () if self.durable < position.received || self.durable > self.acknowledged => {
                self.sent_at + PENDING_INTERVAL.min(self.interval)
            }
            () => self.sent_at + self.interval,
        }
    }

    /// Returns the status update to send now. The caller sends it, and may request a reply.
    pub(crate) fn status(
        &mut self,
        position: &mut ReceiveProgress,
        now: Instant,
        clock: PgTime,
    ) -> StandbyStatusUpdate {
        self.sent_at = now;
        position.reply_requested = false;
        self.acknowledged = self.durable;
        let (flushed, applied) = (self.durable, self.durable);
        StandbyStatusUpdate {
            received: position.received.max(self.durable),
            flushed,
            applied,
            clock,
            reply_requested: false,
        }
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct ProgressHarness {
        position: ReceiveProgress,
        feedback: StandbyFeedback,
        now: Instant,
    }

    impl ProgressHarness {
        fn new() -> Self {
            let now = Instant::now();
            let feedback = StandbyFeedback::new(Lsn(100), Some(Duration::from_secs(60)), now);
            ProgressHarness { position: ReceiveProgress::new(Lsn(100)), feedback, now }
        }

        fn status(&mut self) -> StandbyStatusUpdate {
            self.feedback.status(&mut self.position, self.now, PgTime(0))
        }

        fn offered(&mut self) -> Option<u64> {
            self.now += IDLE_INTERVAL;
            self.feedback.idle_position(&self.position, self.now).map(|lsn| lsn.0)
        }

        /// The commit record takes ten bytes.
        fn begin(&mut self, end: u64, committed_at: i64) {
            self.position.on_begin(Lsn(end - 10), PgTime(committed_at));
        }

        fn commit(&mut self, end: u64) {
            self.position.on_commit(Lsn(end));
        }

        fn behind_since(&mut self, durable: u64) -> Option<i64> {
            self.feedback.on_durable(Lsn(durable));
            self.position.behind_since(self.feedback.durable()).map(|at| at.0)
        }
    }

    #[test]
    fn lag_is_measured_from_the_commit_of_a_transaction_that_is_not_durable() {
        let mut harness = ProgressHarness::new();
        assert_eq!(harness.behind_since(100), None, "nothing was received");
        harness.begin(200, 7);
        assert_eq!(harness.behind_since(100), Some(7), "its changes are arriving");
        harness.commit(200);
        assert_eq!(harness.behind_since(100), Some(7), "it was received");
        assert_eq!(harness.behind_since(200), None, "it is durable");
    }

    #[test]
    fn keepalives_of_an_idle_server_cause_no_lag() {
        let mut harness = ProgressHarness::new();
        harness.begin(200, 7);
        harness.commit(200);
        assert_eq!(harness.behind_since(200), None);
        harness.position.on_keepalive(Lsn(900), false);
        assert_eq!(harness.behind_since(200), None);
    }

    #[test]
    fn lag_is_measured_by_one_transaction_until_it_is_durable_and_then_by_the_newest() {
        let mut harness = ProgressHarness::new();
        for (end, committed_at) in [(200, 7), (300, 8), (400, 9)] {
            harness.begin(end, committed_at);
            harness.commit(end);
        }
        assert_eq!(harness.behind_since(100), Some(7));
        assert_eq!(harness.behind_since(200), Some(9));
        harness.begin(500, 10);
        assert_eq!(harness.behind_since(300), Some(9), "a later one makes it no younger");
        assert_eq!(harness.behind_since(400), Some(10));
    }

    #[test]
    fn a_repeated_transaction_that_is_durable_already_causes_no_lag() {
        let mut harness = ProgressHarness::new();
        harness.begin(90, 7);
        assert_eq!(harness.behind_since(100), None);
    }

    #[test]
    fn only_durable_positions_are_acknowledged() {
        let mut harness = ProgressHarness::new();
        harness.begin(200, 0);
        harness.commit(200);
        assert_eq!(harness.status().flushed, Lsn(100));
        harness.feedback.on_durable(Lsn(200));
        assert_eq!(harness.status().flushed, Lsn(200));
    }

    #[test]
    fn an_idle_position_is_offered_only_when_nothing_is_pending() {
        let mut harness = ProgressHarness::new();
        assert_eq!(harness.offered(), None);
        harness.position.on_keepalive(Lsn(300), false);
        assert_eq!(harness.offered(), Some(300));
        harness.begin(400, 0);
        assert_eq!(harness.offered(), None, "inside a transaction");
        harness.commit(400);
        assert_eq!(harness.offered(), None, "not durable yet");
        harness.feedback.on_durable(Lsn(400));
        assert_eq!(harness.offered(), None, "nothing new");
        harness.position.on_keepalive(Lsn(500), false);
        assert_eq!(harness.offered(), Some(500));
    }

    #[test]
    fn an_idle_position_is_offered_at_intervals_and_at_once_when_far_ahead() {
        let mut harness = ProgressHarness::new();
        harness.position.on_keepalive(Lsn(300), false);
        assert_eq!(harness.feedback.idle_position(&harness.position, harness.now), None);
        harness.position.on_keepalive(Lsn(300 + IDLE_BYTES), false);
        let offered = harness.feedback.idle_position(&harness.position, harness.now);
        assert_eq!(offered, Some(Lsn(300 + IDLE_BYTES)));
    }

    #[test]
    fn a_status_is_due_at_a_third_of_the_server_timeout_and_at_once_when_requested() {
        let (now, mut position) = (Instant::now(), ReceiveProgress::new(Lsn(0)));
        let mut feedback = StandbyFeedback::new(Lsn(0), Some(Duration::from_secs(6)), now);
        assert_eq!(feedback.due(&position), now + Duration::from_secs(2));
        feedback.on_durable(Lsn(7));
        assert_eq!(feedback.due(&position), now + PENDING_INTERVAL);
        position.on_keepalive(Lsn(7), true);
        assert_eq!(feedback.due(&position), now);
        feedback.status(&mut position, now, PgTime(0));
        assert_eq!(feedback.due(&position), now + Duration::from_secs(2));
        assert_eq!(
            StandbyFeedback::new(Lsn(7), None, now).due(&position),
            now + PENDING_INTERVAL,
            "the first status"
        );
        let mut unlimited = StandbyFeedback::new(Lsn(7), None, now);
        unlimited.status(&mut position, now, PgTime(0));
        assert_eq!(unlimited.due(&position), now + MAX_INTERVAL);
    }

    proptest! {
        #[test]
        fn acknowledgements_never_decrease_and_never_pass_the_received_position(
            events in prop::collection::vec((0..4_u8, 1..50_u64), 0..200)
        ) {
            let (mut harness, mut at, mut last, mut open) = (ProgressHarness::new(), 100, 0, false);
            for (kind, by) in events {
                at += by;
                match kind {
                    0 if !open => { open = true; harness.begin(at + 10, 0); }
                    1 if open => { open = false; harness.commit(at); }
                    2 if !open => harness.position.on_keepalive(Lsn(at), by % 2 == 0),
                    3 => {
                        let durable = harness.offered().map_or(harness.position.committed, Lsn);
                        harness.feedback.on_durable(durable);
                    }
                    _ => {}
                }
                let status = harness.status();
                prop_assert!(status.flushed.0 >= last && status.flushed <= status.received && status.received.0 <= at);
                prop_assert!(!open || status.flushed <= harness.position.committed.max(Lsn(last)));
                last = status.flushed.0;
            }
        }
    }
}
