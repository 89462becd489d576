//! How far the stream has come, and what may be acknowledged.
//!
//! Invariant: what is acknowledged was made durable by the consumer first; it is never inside a transaction, never ahead of
//! what the server has sent, and never falls.

use std::time::{Duration, Instant};

use forebay_pgoutput::{Lsn, PgTime, StandbyStatus};

/// While something isn't acknowledged yet, the server hears of us this often.
const NEWS: Duration = Duration::from_millis(500);
/// How often a position between transactions is offered to the consumer: each costs it a write.
const ADVANCE: Duration = Duration::from_secs(5);
/// Or how much log may pile up.
const ADVANCE_BYTES: u64 = 16 << 20;
/// The server hears from us at least this often, whatever its timeout.
const LONGEST_SILENCE: Duration = Duration::from_secs(15);

/// What was read from the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// The last position that the server told of.
    pub(crate) received: Lsn,
    /// The end of the last transaction that was handed over whole.
    pub(crate) committed: Lsn,
    /// When it was committed, in the server's time.
    pub(crate) committed_at: Option<PgTime>,
    in_transaction: bool,
    reply_wanted: bool,
}

impl Position {
    pub(crate) fn new(from: Lsn) -> Self {
        Position {
            received: from,
            committed: from,
            committed_at: None,
            in_transaction: false,
            reply_wanted: false,
        }
    }

    pub(crate) fn on_begin(&mut self) {
        self.in_transaction = true;
    }

    /// `end`: the position after the commit.
    pub(crate) fn on_commit(&mut self, end: Lsn, at: PgTime) {
        self.in_transaction = false;
        self.committed = self.committed.max(end);
        self.committed_at = Some(at);
        self.received = self.received.max(end);
    }

    /// The server has sent all that there is up to `end`.
    pub(crate) fn on_keepalive(&mut self, end: Lsn, reply: bool) {
        self.received = self.received.max(end);
        self.reply_wanted |= reply;
    }
}

/// What the server was told.
#[derive(Debug)]
pub(crate) struct Feedback {
    durable: Lsn,
    acknowledged: Lsn,
    told_at: Instant,
    offered_at: Instant,
    silence: Duration,
}

impl Feedback {
    /// `sender_timeout`: the server's `wal_sender_timeout`; `None`: it waits for ever.
    pub(crate) fn new(from: Lsn, sender_timeout: Option<Duration>, now: Instant) -> Self {
        let silence = sender_timeout.map_or(LONGEST_SILENCE, |timeout| (timeout / 3).min(LONGEST_SILENCE));
        Feedback { durable: from, acknowledged: Lsn(0), told_at: now, offered_at: now, silence }
    }

    /// The consumer has made everything up to here durable.
    pub(crate) fn on_durable(&mut self, durable: Lsn) {
        self.durable = self.durable.max(durable);
    }

    /// A position after all transactions so far, which the consumer should record since it has nothing else to do. Without it an
    /// idle database would keep its log for ever while its neighbours write.
    pub(crate) fn idle_position(&mut self, position: &Position, now: Instant) -> Option<Lsn> {
        let is_pending = position.in_transaction || self.durable < position.committed;
        let ahead = position.received.0.saturating_sub(self.durable.0);
        // A server that shuts down asks until it hears that we have everything.
        let is_time = position.reply_wanted
            || ahead > ADVANCE_BYTES
            || now >= self.offered_at + ADVANCE.min(self.silence);
        (!is_pending && ahead > 0 && is_time).then(|| {
            self.offered_at = now;
            position.received
        })
    }

    /// When the server must hear from us.
    pub(crate) fn due(&self, position: &Position) -> Instant {
        match () {
            () if position.reply_wanted => self.told_at,
            () if self.durable < position.received || self.durable > self.acknowledged => {
                self.told_at + NEWS.min(self.silence)
            }
            () => self.told_at + self.silence,
        }
    }

    /// What the server is told now.
    pub(crate) fn tell(
        &mut self,
        position: &mut Position,
        now: Instant,
        clock: PgTime,
        reply: bool,
    ) -> StandbyStatus {
        self.told_at = now;
        position.reply_wanted = false;
        self.acknowledged = self.durable;
        let (flushed, applied) = (self.durable, self.durable);
        StandbyStatus { received: position.received.max(self.durable), flushed, applied, clock, reply }
    }

    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Trial {
        position: Position,
        feedback: Feedback,
        now: Instant,
    }

    impl Trial {
        fn new() -> Self {
            let now = Instant::now();
            let feedback = Feedback::new(Lsn(100), Some(Duration::from_secs(60)), now);
            Trial { position: Position::new(Lsn(100)), feedback, now }
        }

        fn told(&mut self) -> StandbyStatus {
            self.feedback.tell(&mut self.position, self.now, PgTime(0), false)
        }

        fn offered(&mut self) -> Option<u64> {
            self.now += ADVANCE;
            self.feedback.idle_position(&self.position, self.now).map(|lsn| lsn.0)
        }

        fn commit(&mut self, end: u64) {
            self.position.on_commit(Lsn(end), PgTime(0));
        }
    }

    #[test]
    fn only_what_is_durable_is_acknowledged() {
        let mut trial = Trial::new();
        trial.position.on_begin();
        trial.commit(200);
        assert_eq!(trial.told().flushed, Lsn(100));
        trial.feedback.on_durable(Lsn(200));
        assert_eq!(trial.told().flushed, Lsn(200));
    }

    #[test]
    fn an_idle_position_is_offered_only_when_nothing_is_pending() {
        let mut trial = Trial::new();
        assert_eq!(trial.offered(), None);
        trial.position.on_keepalive(Lsn(300), false);
        assert_eq!(trial.offered(), Some(300));
        trial.position.on_begin();
        assert_eq!(trial.offered(), None, "inside a transaction");
        trial.commit(400);
        assert_eq!(trial.offered(), None, "not durable yet");
        trial.feedback.on_durable(Lsn(400));
        assert_eq!(trial.offered(), None, "nothing new");
        trial.position.on_keepalive(Lsn(500), false);
        assert_eq!(trial.offered(), Some(500));
    }

    #[test]
    fn an_idle_position_is_offered_now_and_then_and_at_once_when_much_log_is_behind_it() {
        let mut trial = Trial::new();
        trial.position.on_keepalive(Lsn(300), false);
        assert_eq!(trial.feedback.idle_position(&trial.position, trial.now), None);
        trial.position.on_keepalive(Lsn(300 + ADVANCE_BYTES), false);
        let offered = trial.feedback.idle_position(&trial.position, trial.now);
        assert_eq!(offered, Some(Lsn(300 + ADVANCE_BYTES)));
    }

    #[test]
    fn the_server_hears_from_us_at_a_third_of_its_patience_and_at_once_when_it_asks() {
        let (now, mut position) = (Instant::now(), Position::new(Lsn(0)));
        let mut feedback = Feedback::new(Lsn(0), Some(Duration::from_secs(6)), now);
        assert_eq!(feedback.due(&position), now + Duration::from_secs(2));
        feedback.on_durable(Lsn(7));
        assert_eq!(feedback.due(&position), now + NEWS);
        position.on_keepalive(Lsn(7), true);
        assert_eq!(feedback.due(&position), now);
        feedback.tell(&mut position, now, PgTime(0), false);
        assert_eq!(feedback.due(&position), now + Duration::from_secs(2));
        assert_eq!(Feedback::new(Lsn(7), None, now).due(&position), now + NEWS, "the first word");
        let mut patient = Feedback::new(Lsn(7), None, now);
        patient.tell(&mut position, now, PgTime(0), false);
        assert_eq!(patient.due(&position), now + LONGEST_SILENCE);
    }

    proptest! {
        #[test]
        fn acknowledgements_never_fall_and_never_pass_what_was_sent(
            events in prop::collection::vec((0..4_u8, 1..50_u64), 0..200)
        ) {
            let (mut trial, mut at, mut last, mut open) = (Trial::new(), 100, 0, false);
            for (kind, by) in events {
                at += by;
                match kind {
                    0 if !open => { open = true; trial.position.on_begin(); }
                    1 if open => { open = false; trial.commit(at); }
                    2 if !open => trial.position.on_keepalive(Lsn(at), by % 2 == 0),
                    3 => {
                        let durable = trial.offered().map_or(trial.position.committed, Lsn);
                        trial.feedback.on_durable(durable);
                    }
                    _ => {}
                }
                let status = trial.told();
                prop_assert!(status.flushed.0 >= last && status.flushed <= status.received && status.received.0 <= at);
                prop_assert!(!open || status.flushed <= trial.position.committed.max(Lsn(last)));
                last = status.flushed.0;
            }
        }
    }
}
