//! Random histories of a connection, against a model of the server that knows what it ran.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::core::backoff::Backoff;
use crate::core::pipeline::Expect;
use crate::core::sentinel::Sentinel;
use crate::error::ReplyError;

/// Requests are named by a byte and consist of copies of it, so that every byte on the wire tells whose it is.
type Id = u8;

struct Ticket {
    id: Id,
    dropped: Rc<Cell<bool>>,
}

impl Sink for Ticket {
    fn abandoned(&self) -> bool {
        self.dropped.get()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit {
        replies: u32,
        bytes: usize,
        timeout_ms: Option<u64>,
    },
    /// Like `Submit`, but the worker hasn't come by yet when the next thing happens.
    SubmitLate {
        replies: u32,
    },
    /// A command that the client doesn't know: the server answers it `answers` times instead of once.
    SubmitUnknown {
        answers: u32,
    },
    Drop(usize),
    Write(usize),
    /// The server answers what it has received.
    Serve,
    /// The server refuses what it has received: it has become a replica.
    Refuse,
    Push,
    /// This many bytes arrive from the server.
    Read(usize),
    Dialed(bool),
    Lose,
    LoseTwice,
    Advance(u64),
    Close,
    /// The runtime shuts down.
    Cancel,
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (1..4u32, 1..20usize, prop::option::weighted(0.9, 1..2000u64))
            .prop_map(|(replies, bytes, timeout_ms)| Op::Submit { replies, bytes, timeout_ms }),
        2 => (1..4u32).prop_map(|replies| Op::SubmitLate { replies }),
        1 => prop::sample::select(vec![1, 1, 1, 1, 1, 1, 0, 2]).prop_map(|answers| Op::SubmitUnknown { answers }),
        3 => any::<usize>().prop_map(Op::Drop),
        8 => (1..40usize).prop_map(Op::Write),
        6 => Just(Op::Serve),
        1 => Just(Op::Refuse),
        2 => Just(Op::Push),
        8 => (1..60usize).prop_map(Op::Read),
        5 => prop::bool::weighted(0.7).prop_map(Op::Dialed),
        1 => Just(Op::Lose),
        1 => Just(Op::LoseTwice),
        4 => (0..3000u64).prop_map(Op::Advance),
        1 => Just(Op::Close),
        1 => Just(Op::Cancel),
        2 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..120)
}

/// What the rules asked for.
#[derive(Default)]
struct Recorder {
    dialing: bool,
    connected: bool,
    shut: bool,
    left: Vec<Request<Ticket>>,
    left_bytes: Vec<u8>,
    answers: Vec<(Id, Result<Replies, RequestError>)>,
    pushes: usize,
    states: Vec<State>,
    losses: BTreeSet<&'static str>,
}

impl Shell<Ticket> for Recorder {
    fn dial(&mut self) {
        assert!(!self.dialing && !self.connected, "one loss starts one reconnection");
        self.dialing = true;
    }

    fn hangup(&mut self) {
        (self.dialing, self.connected) = (false, false);
    }

    fn gate(&mut self, shut: Option<RequestError>) {
        self.shut = shut.is_some();
    }

    fn take_late(&mut self, requests: &mut Vec<Request<Ticket>>, bytes: &mut Vec<u8>) {
        assert!(self.shut, "nobody may come in after the last one was taken");
        requests.append(&mut self.left);
        bytes.append(&mut self.left_bytes);
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<Replies, RequestError>) {
        self.answers.push((ticket.id, answer));
    }

    fn push(&mut self, _: Bytes) {
        self.pushes += 1;
    }

    fn announce(&mut self, from: State, status: Status) {
        assert!(Link::may_become(from, status.state), "{from} to {}", status.state);
        self.states.push(status.state);
        self.losses.extend(status.last_error.map(|loss| loss.as_str()));
    }
}

/// One request, as the test knows it.
struct Known {
    replies: u32,
    /// How often the server answers it.
    answers: u32,
    sentinel: Option<Sentinel>,
    bytes: usize,
    dropped: Rc<Cell<bool>>,
}

/// The server: runs what has arrived in full, in order.
#[derive(Default)]
struct Server {
    arriving: Option<(Id, usize)>,
    arrived: VecDeque<Id>,
    /// Everything that was ever run, over all connections.
    ran: Vec<Id>,
    refused: BTreeSet<Id>,
    /// Of these at least one byte arrived.
    begun: BTreeSet<Id>,
    sending: Vec<u8>,
    pushes: usize,
}

impl Server {
    fn receive(&mut self, bytes: &[u8], known: &BTreeMap<Id, Known>) {
        for &id in bytes {
            self.begun.insert(id);
            let (current, count) = self.arriving.unwrap_or((id, 0));
            assert_eq!(current, id, "one request's bytes are never inside another's");
            self.arriving = Some((id, count + 1));
            if count + 1 == known[&id].bytes {
                self.arrived.push_back(id);
                self.arriving = None;
            }
        }
    }

    fn serve(&mut self, known: &BTreeMap<Id, Known>) {
        for id in self.arrived.drain(..) {
            assert!(!self.ran.contains(&id), "request {id} was replayed");
            self.ran.push(id);
            for reply in 0..known[&id].answers {
                let text = match reply {
                    0 => format!(":{id}\r\n"),
                    1 => format!("$3\r\n{id:03}\r\n"),
                    _ => format!("|1\r\n+a\r\n+b\r\n*1\r\n:{id}\r\n"),
                };
                self.sending.extend_from_slice(text.as_bytes());
            }
            self.sending.extend(echoes(known[&id].sentinel));
        }
    }

    fn refuse(&mut self, known: &BTreeMap<Id, Known>) {
        for id in self.arrived.drain(..) {
            self.refused.insert(id);
            for _ in 0..known[&id].answers {
                self.sending.extend_from_slice(b"-READONLY You can't write against a read only replica.\r\n");
            }
            self.sending.extend(echoes(known[&id].sentinel));
        }
    }

    fn hang_up(&mut self) {
        (self.arriving, self.sending) = (None, Vec::new());
        self.arrived.clear();
    }
}

/// What the server answers to a sentinel.
fn echoes(sentinel: Option<Sentinel>) -> Vec<u8> {
    let echo = sentinel.map_or(String::new(), |sentinel| format!("$16\r\n{}\r\n", sentinel.argument()));
    echo.repeat(Sentinel::TIMES.into()).into_bytes()
}

/// The connection, the server and the callers together.
struct World {
    now: Instant,
    connection: Connection<Ticket>,
    shell: Recorder,
    server: Server,
    known: BTreeMap<Id, Known>,
    answered: BTreeSet<Id>,
    last_ok: Option<Id>,
    /// Failed before a byte of them had left.
    must_not_run: BTreeSet<Id>,
    outcomes: Vec<&'static str>,
    generation: u64,
}

fn rules(generation: u64) -> Rules {
    Rules {
        policy: Policy { reconnect: Some(Backoff::default()), close_timeout: Duration::from_millis(500) },
        limits: Limits::default(),
        stall_timeout: Some(Duration::from_secs(4)),
        arrays_are_pushes: false,
        leave_unfit_server: true,
        generation,
    }
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let mut world = World {
            now,
            connection: Connection::new(rules(1), Dice::seeded(1), now),
            shell: Recorder::default(),
            server: Server::default(),
            known: BTreeMap::new(),
            answered: BTreeSet::new(),
            last_ok: None,
            must_not_run: BTreeSet::new(),
            outcomes: Vec::new(),
            generation: 1,
        };
        world.connection.start(now, &mut world.shell);
        world
    }

    fn submit(&mut self, replies: u32, bytes: usize, timeout: Option<Duration>) {
        self.submit_as(Expect::Replies(replies), replies, bytes, timeout);
    }

    fn submit_as(&mut self, expect: Expect, answers: u32, bytes: usize, timeout: Option<Duration>) {
        let id = self.known.len() as Id;
        if self.shell.shut || self.known.len() >= usize::from(Id::MAX) {
            return; // the inbox rejects it
        }
        let dropped = Rc::new(Cell::new(false));
        let (replies, sentinel) = match expect {
            Expect::Replies(replies) | Expect::Confirmations(replies, _) => (replies, None),
            Expect::Verified(replies, sentinel) => (replies, Some(sentinel)),
        };
        self.known.insert(id, Known { replies, answers, sentinel, bytes, dropped: dropped.clone() });
        self.shell.left.push(Request { sink: Ticket { id, dropped }, expect, bytes, timeout });
        self.shell.left_bytes.extend(std::iter::repeat_n(id, bytes));
    }

    fn visit(&mut self) {
        let (mut requests, mut bytes) = Default::default();
        std::mem::swap(&mut requests, &mut self.shell.left);
        std::mem::swap(&mut bytes, &mut self.shell.left_bytes);
        self.connection.accept(&mut requests, &mut bytes, self.now);
        assert!(requests.is_empty() && bytes.is_empty());
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Submit { replies, bytes, timeout_ms } => {
                self.submit(replies, bytes, timeout_ms.map(Duration::from_millis));
                self.visit();
            }
            Op::SubmitLate { replies } => self.submit(replies, 5, Some(Duration::from_secs(1))),
            Op::SubmitUnknown { answers } => {
                let expect = Expect::Verified(1, Sentinel::of(self.known.len() as u64));
                self.submit_as(expect, answers, 5, Some(Duration::from_secs(1)));
                self.visit();
            }
            Op::Drop(pick) if !self.known.is_empty() => {
                self.known[&((pick % self.known.len()) as Id)].dropped.set(true);
            }
            Op::Write(count) if self.shell.connected => {
                self.connection.resume(self.now, &mut self.shell);
                self.visit();
                let count = count.min(self.connection.unsent().len());
                self.server.receive(&self.connection.unsent()[..count], &self.known);
                self.connection.wrote(count);
            }
            Op::Serve => self.server.serve(&self.known),
            Op::Refuse => self.server.refuse(&self.known),
            Op::Push if self.shell.connected => {
                self.server.sending.extend_from_slice(b">2\r\n+hello\r\n:1\r\n");
                self.server.pushes += 1;
            }
            Op::Read(count) if self.shell.connected => {
                self.connection.resume(self.now, &mut self.shell);
                let count = count.min(self.server.sending.len());
                let bytes: Vec<u8> = self.server.sending.drain(..count).collect();
                self.connection.input().extend_from_slice(&bytes);
                self.connection.received(self.now, &mut self.shell);
            }
            Op::Dialed(success) if self.shell.dialing => {
                self.shell.dialing = false;
                if success {
                    self.server.hang_up();
                    self.shell.connected = true;
                    self.connection.connected(b"", self.now, &mut self.shell);
                } else {
                    self.connection.lost(Loss::Closed, self.now, &mut self.shell);
                }
            }
            Op::Lose if self.shell.connected => self.connection.lost(Loss::Closed, self.now, &mut self.shell),
            Op::LoseTwice if self.shell.connected => {
                self.connection.lost(Loss::Closed, self.now, &mut self.shell);
                self.connection.lost(Loss::Closed, self.now, &mut self.shell);
            }
            Op::Advance(ms) => {
                self.connection.resume(self.now, &mut self.shell);
                self.visit();
                self.now += Duration::from_millis(ms);
                self.connection.tick(self.now, &mut self.shell);
            }
            Op::Close => {
                self.visit();
                self.connection.close(self.now, &mut self.shell);
            }
            Op::Cancel => self.connection.cancel(self.now, &mut self.shell),
            Op::Restart if self.connection.is_closed() => {
                self.generation += 1;
                self.connection =
                    Connection::new(rules(self.generation), Dice::seeded(self.generation), self.now);
                self.connection.start(self.now, &mut self.shell);
            }
            Op::Drop(_)
            | Op::Write(_)
            | Op::Push
            | Op::Read(_)
            | Op::Dialed(_)
            | Op::Lose
            | Op::LoseTwice
            | Op::Restart => {}
        }
        self.check();
    }

    fn check(&mut self) {
        let mut left_unfit = false;
        for (id, answer) in self.shell.answers.drain(..) {
            assert!(self.answered.insert(id), "request {id} was answered twice");
            self.outcomes.push(answer.as_ref().map_or_else(RequestError::as_str, |_| "ok"));
            match answer {
                Ok(replies) if self.server.refused.contains(&id) => {
                    left_unfit = true;
                    assert_eq!(self.known[&id].answers, self.known[&id].replies, "{id} is out of step");
                    check_refused(self.known[&id].replies, &replies);
                }
                Ok(replies) => {
                    assert_eq!(self.known[&id].answers, self.known[&id].replies, "{id} is out of step");
                    assert!(self.server.ran.contains(&id), "request {id} was answered before it ran");
                    assert!(self.last_ok < Some(id), "{id} was answered after {:?}", self.last_ok);
                    self.last_ok = Some(id);
                    check_replies(id, self.known[&id].replies, &replies);
                }
                Err(error) => {
                    let begun = self.server.begun.contains(&id);
                    assert!(begun || !matches!(error, RequestError::Lost(_)), "{id} was lost before it left");
                    assert!(
                        !begun || !matches!(error, RequestError::Rejected { .. }),
                        "{id} left and was rejected"
                    );
                    if !begun {
                        self.must_not_run.insert(id);
                    }
                }
            }
        }
        let state = *self.shell.states.last().expect("it has started");
        assert!(!left_unfit || state != State::Open, "a server that refuses is left");
        let lets_in = matches!(state, State::Connecting | State::Open | State::Reconnecting);
        assert_eq!(self.shell.shut, !lets_in, "{state}");
        if let State::Failed | State::Closed = state {
            assert_eq!(self.connection.open_requests(), 0, "nobody is open in {state}");
            assert!(!self.shell.connected && self.shell.left.is_empty());
        }
        let run: BTreeSet<Id> = self.server.ran.iter().copied().collect();
        assert!(run.is_disjoint(&self.must_not_run), "a request ran after it had failed unsent");
    }

    /// However it stands, time and a close answer everybody.
    fn finish(mut self) {
        for _ in 0..40 {
            self.apply(Op::Advance(1_000));
        }
        let waiting = |world: &World, id: &Id| !world.known[id].dropped.get() && !world.answered.contains(id);
        self.apply(Op::Close);
        self.apply(Op::Advance(1_000));
        assert!(self.connection.is_closed());
        for id in self.known.keys() {
            assert!(!waiting(&self, id), "request {id} hangs");
        }
    }
}

fn check_refused(count: u32, replies: &Replies) {
    let mut cursor = crate::reply::Cursor::new(replies);
    for _ in 0..=count {
        let error = cursor.next::<u8>().expect_err("refused, or no reply");
        assert!(matches!(error, ReplyError::Server(_) | ReplyError::Mismatch(_)), "{error}");
    }
}

fn check_replies(id: Id, count: u32, replies: &Replies) {
    let mut cursor = crate::reply::Cursor::new(replies);
    for reply in 0..count {
        let found = match reply {
            0 | 1 => cursor.next::<u8>().expect("an integer"),
            _ => cursor.next::<(u8,)>().expect("an array of one").0,
        };
        assert_eq!(found, id, "somebody else's reply");
    }
    assert!(cursor.next::<()>().is_err(), "more replies than were asked for");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everybody_is_answered_once_in_order_and_nothing_is_replayed(ops in ops()) {
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        world.finish();
    }
}

/// The random test is worth something only if it gets everywhere.
#[test]
fn random_histories_reach_every_state_and_every_kind_of_answer() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut states, mut oks, mut restarts) = (BTreeSet::new(), 0, 0);
    let mut losses = BTreeSet::new();
    let mut errors: BTreeSet<&str> = BTreeSet::new();
    for _ in 0..500 {
        let ops = ops().new_tree(&mut runner).expect("the strategy never rejects").current();
        let mut world = World::new();
        for op in ops {
            world.apply(op);
        }
        oks += world.outcomes.iter().filter(|outcome| **outcome == "ok").count();
        errors.extend(world.outcomes.iter().filter(|outcome| **outcome != "ok"));
        states.extend(world.shell.states.iter().map(|state| state.as_str()));
        losses.append(&mut world.shell.losses);
        restarts += world.generation - 1;
    }
    let reached: Vec<_> = states.into_iter().collect();
    assert_eq!(reached, ["closed", "closing", "connecting", "failed", "open", "reconnecting"]);
    assert_eq!(
        errors.into_iter().collect::<Vec<_>>(),
        ["cancelled", "closed", "deadline", "lost", "rejected"]
    );
    assert_eq!(losses.into_iter().collect::<Vec<_>>(), ["closed", "protocol", "stalled", "unfit"]);
    assert!(oks > 100 && restarts > 100, "{oks} answers, {restarts} restarts");
}
