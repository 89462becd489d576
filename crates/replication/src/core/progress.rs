//! How far the stream has come, and what may be acknowledged.
//!
//! Invariant: what is acknowledged was made durable by the consumer first; it is never inside a transaction, never ahead of
//! what the server has sent, and never falls. Nothing is late when everything that has come is durable.

use std::time::{Duration, Instant};

use forebay_pgoutput::{Lsn, PgTime, StandbyStatusUpdate};

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
    in_transaction: bool,
    reply_wanted: bool,
    /// Lag is measured by this one until it is durable, and then by the newest: remembering all that are pending would have no bound.
    measured: Option<Begun>,
    newest: Option<Begun>,
}

/// A transaction that has begun to come.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// Where its commit begins in the log: whatever is durable beyond this has all of it.
    commit: Lsn,
    /// In the server's time.
    committed_at: PgTime,
}

impl Position {
    pub(crate) fn new(from: Lsn) -> Self {
        Position {
            received: from,
            committed: from,
            in_transaction: false,
            reply_wanted: false,
            measured: None,
            newest: None,
        }
    }

    /// `commit`: where its commit begins.
    pub(crate) fn on_begin(&mut self, commit: Lsn, committed_at: PgTime) {
        self.in_transaction = true;
        self.newest = Some(Begun { commit, committed_at });
        self.measured = self.measured.or(self.newest);
    }

    /// `end`: the position after the commit.
    pub(crate) fn on_commit(&mut self, end: Lsn) {
        self.in_transaction = false;
        self.committed = self.committed.max(end);
        self.received = self.received.max(end);
    }

    /// When that was committed which has come and isn't durable: the consumer is behind since then. `None`: it has everything.
    pub(crate) fn behind_since(&mut self, durable: Lsn) -> Option<PgTime> {
        let is_pending = |begun: &Begun| durable <= begun.commit;
        self.measured = self.measured.filter(is_pending).or(self.newest.filter(is_pending));
        self.measured.map(|begun| begun.committed_at)
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
    ) -> StandbyStatusUpdate {
        self.told_at = now;
        position.reply_wanted = false;
        self.acknowledged = self.durable;
        let (flushed, applied) = (self.durable, self.durable);
        StandbyStatusUpdate {
            received: position.received.max(self.durable),
            flushed,
            applied,
            clock,
            reply_requested: reply,
        }
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

        fn told(&mut self) -> StandbyStatusUpdate {
            self.feedback.tell(&mut self.position, self.now, PgTime(0), false)
        }

        fn offered(&mut self) -> Option<u64> {
            self.now += ADVANCE;
            self.feedback.idle_position(&self.position, self.now).map(|lsn| lsn.0)
        }

        /// Its commit takes ten bytes of the log.
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
    fn the_consumer_is_behind_since_the_commit_of_what_is_not_durable() {
        let mut trial = Trial::new();
        assert_eq!(trial.behind_since(100), None, "nothing has come");
        trial.begin(200, 7);
        assert_eq!(trial.behind_since(100), Some(7), "it has begun to come");
        trial.commit(200);
        assert_eq!(trial.behind_since(100), Some(7), "it has come");
        assert_eq!(trial.behind_since(200), None, "it is durable");
    }

    #[test]
    fn the_keepalives_of_an_idle_server_make_nobody_late() {
        let mut trial = Trial::new();
        trial.begin(200, 7);
        trial.commit(200);
        assert_eq!(trial.behind_since(200), None);
        trial.position.on_keepalive(Lsn(900), false);
        assert_eq!(trial.behind_since(200), None);
    }

    #[test]
    fn lag_is_measured_by_one_transaction_until_it_is_durable_and_then_by_the_newest() {
        let mut trial = Trial::new();
        for (end, committed_at) in [(200, 7), (300, 8), (400, 9)] {
            trial.begin(end, committed_at);
            trial.commit(end);
        }
        assert_eq!(trial.behind_since(100), Some(7));
        assert_eq!(trial.behind_since(200), Some(9));
        trial.begin(500, 10);
        assert_eq!(trial.behind_since(300), Some(9), "a later one makes it no younger");
        assert_eq!(trial.behind_since(400), Some(10));
    }

    #[test]
    fn what_comes_again_and_is_durable_already_makes_nobody_late() {
        let mut trial = Trial::new();
        trial.begin(90, 7);
        assert_eq!(trial.behind_since(100), None);
    }

    #[test]
    fn only_what_is_durable_is_acknowledged() {
        let mut trial = Trial::new();
        trial.begin(200, 0);
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
        trial.begin(400, 0);
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
                    0 if !open => { open = true; trial.begin(at + 10, 0); }
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
