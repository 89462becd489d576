//! Random histories of a connection, checked against a model of the server that records what it
//! ran.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use fastrand::Rng;
use proptest::prelude::*;

use super::*;
use crate::core::backoff::ReconnectBackoff;
use crate::core::echo_probe::EchoProbe;
use crate::core::pipeline::ExpectedReplies;
use crate::error::ReplyError;

/// Identifies a request. A request consists of copies of its id, so every byte on the wire shows
/// its owner.
type Id = u8;

struct TestSink {
    id: Id,
    dropped: Rc<Cell<bool>>,
}

impl ReplySink for TestSink {
    fn is_abandoned(&self) -> bool {
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
    /// Like `Submit`, but the next operation runs before the worker takes the request.
    SubmitLate {
        replies: u32,
    },
    /// A command that is not in the client's command table. The server sends `server_replies`
    /// replies instead of one.
    SubmitUnknown {
        server_replies: u32,
    },
    Drop(usize),
    Write(usize),
    /// The server replies to everything that it has received.
    Serve,
    /// The server refuses everything that it has received: it has become a replica.
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
        1 => prop::sample::select(vec![1, 1, 1, 1, 1, 1, 0, 2]).prop_map(|server_replies| Op::SubmitUnknown { server_replies }),
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

/// Effects that the core requested.
#[derive(Default)]
struct RecordingHandler {
    dialing: bool,
    connected: bool,
    rejecting: bool,
    queued: Vec<PipelineRequest<TestSink>>,
    queued_bytes: Vec<u8>,
    results: Vec<(Id, Result<Replies, RequestError>)>,
    pushes: usize,
    states: Vec<State>,
    losses: BTreeSet<&'static str>,
}

impl EffectHandler<TestSink> for RecordingHandler {
    fn dial(&mut self) {
        assert!(!self.dialing && !self.connected, "one loss starts one reconnection");
        self.dialing = true;
    }

    fn hangup(&mut self) {
        (self.dialing, self.connected) = (false, false);
    }

    fn set_rejection(&mut self, rejection: Option<RequestError>) {
        self.rejecting = rejection.is_some();
    }

    fn take_remaining(&mut self, requests: &mut Vec<PipelineRequest<TestSink>>, bytes: &mut Vec<u8>) {
        assert!(self.rejecting, "no request may arrive after the remaining ones were taken");
        requests.append(&mut self.queued);
        bytes.append(&mut self.queued_bytes);
    }

    fn complete(&mut self, sink: TestSink, result: Result<Replies, RequestError>) {
        self.results.push((sink.id, result));
    }

    fn push(&mut self, _: Bytes) {
        self.pushes += 1;
    }

    fn publish_status(&mut self, from: State, status: Status) {
        assert!(LinkState::may_become(from, status.state), "{from} to {}", status.state);
        self.states.push(status.state);
        self.losses.extend(status.last_error.map(|loss| loss.as_str()));
    }
}

/// A request as the test submitted it.
struct SubmittedRequest {
    replies: u32,
    /// Number of replies that the model server sends.
    server_replies: u32,
    probe: Option<EchoProbe>,
    bytes: usize,
    dropped: Rc<Cell<bool>>,
}

/// Model of the server: runs requests that have arrived completely, in order.
#[derive(Default)]
struct ModelServer {
    arriving: Option<(Id, usize)>,
    arrived: VecDeque<Id>,
    /// Every request that ran, over all connections.
    ran: Vec<Id>,
    refused: BTreeSet<Id>,
    /// Requests of which at least one byte arrived.
    begun: BTreeSet<Id>,
    sending: Vec<u8>,
    pushes: usize,
}

impl ModelServer {
    fn receive(&mut self, bytes: &[u8], submitted: &BTreeMap<Id, SubmittedRequest>) {
        for &id in bytes {
            self.begun.insert(id);
            let (current, count) = self.arriving.unwrap_or((id, 0));
            assert_eq!(current, id, "one request's bytes are never inside another's");
            self.arriving = Some((id, count + 1));
            if count + 1 == submitted[&id].bytes {
                self.arrived.push_back(id);
                self.arriving = None;
            }
        }
    }

    fn serve(&mut self, submitted: &BTreeMap<Id, SubmittedRequest>) {
        for id in self.arrived.drain(..) {
            assert!(!self.ran.contains(&id), "request {id} was replayed");
            self.ran.push(id);
            for reply in 0..submitted[&id].server_replies {
                let text = match reply {
                    0 => format!(":{id}\r\n"),
                    1 => format!("$3\r\n{id:03}\r\n"),
                    _ => format!("|1\r\n+a\r\n+b\r\n*1\r\n:{id}\r\n"),
                };
                self.sending.extend_from_slice(text.as_bytes());
            }
            self.sending.extend(echoes(submitted[&id].probe));
        }
    }

    fn refuse(&mut self, submitted: &BTreeMap<Id, SubmittedRequest>) {
        for id in self.arrived.drain(..) {
            self.refused.insert(id);
            for _ in 0..submitted[&id].server_replies {
                self.sending.extend_from_slice(b"-READONLY You can't write against a read only replica.\r\n");
            }
            self.sending.extend(echoes(submitted[&id].probe));
        }
    }

    fn hang_up(&mut self) {
        (self.arriving, self.sending) = (None, Vec::new());
        self.arrived.clear();
    }
}

/// Returns the server's replies to a probe.
fn echoes(probe: Option<EchoProbe>) -> Vec<u8> {
    let echo = probe.map_or(String::new(), |probe| format!("$16\r\n{}\r\n", probe.argument()));
    echo.repeat(EchoProbe::ECHO_COUNT.into()).into_bytes()
}

/// The connection core, the model server and the callers.
struct ConnectionModel {
    now: Instant,
    connection: ConnectionCore<TestSink>,
    handler: RecordingHandler,
    server: ModelServer,
    submitted: BTreeMap<Id, SubmittedRequest>,
    completed: BTreeSet<Id>,
    last_ok: Option<Id>,
    /// Requests that failed before any of their bytes was sent.
    must_not_run: BTreeSet<Id>,
    outcomes: Vec<&'static str>,
    generation: u64,
}

fn settings(generation: u64) -> ConnectionSettings {
    ConnectionSettings {
        policy: LinkPolicy {
            reconnect: Some(ReconnectBackoff::default()),
            close_timeout: Duration::from_millis(500),
        },
        limits: ReplyLimits::default(),
        stall_timeout: Some(Duration::from_secs(4)),
        arrays_are_pushes: false,
        leave_unfit_server: true,
        generation,
    }
}

impl ConnectionModel {
    fn new() -> Self {
        let now = Instant::now();
        let mut model = ConnectionModel {
            now,
            connection: ConnectionCore::new(settings(1), Rng::with_seed(1), now),
            handler: RecordingHandler::default(),
            server: ModelServer::default(),
            submitted: BTreeMap::new(),
            completed: BTreeSet::new(),
            last_ok: None,
            must_not_run: BTreeSet::new(),
            outcomes: Vec::new(),
            generation: 1,
        };
        model.connection.start(now, &mut model.handler);
        model
    }

    fn submit(&mut self, replies: u32, bytes: usize, timeout: Option<Duration>) {
        self.submit_as(ExpectedReplies::Replies(replies), replies, bytes, timeout);
    }

    fn submit_as(
        &mut self,
        expect: ExpectedReplies,
        server_replies: u32,
        bytes: usize,
        timeout: Option<Duration>,
    ) {
        let id = self.submitted.len() as Id;
        if self.handler.rejecting || self.submitted.len() >= usize::from(Id::MAX) {
            return; // the inbox rejects it
        }
        let dropped = Rc::new(Cell::new(false));
        let (replies, probe) = match expect {
            ExpectedReplies::Replies(replies) | ExpectedReplies::Confirmations(replies, _) => (replies, None),
            ExpectedReplies::Verified(replies, probe) => (replies, Some(probe)),
        };
        self.submitted
            .insert(id, SubmittedRequest { replies, server_replies, probe, bytes, dropped: dropped.clone() });
        self.handler.queued.push(PipelineRequest { sink: TestSink { id, dropped }, expect, bytes, timeout });
        self.handler.queued_bytes.extend(std::iter::repeat_n(id, bytes));
    }

    fn take_submitted(&mut self) {
        let (mut requests, mut bytes) = Default::default();
        std::mem::swap(&mut requests, &mut self.handler.queued);
        std::mem::swap(&mut bytes, &mut self.handler.queued_bytes);
        self.connection.accept(&mut requests, &mut bytes, self.now);
        assert!(requests.is_empty() && bytes.is_empty());
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Submit { replies, bytes, timeout_ms } => {
                self.submit(replies, bytes, timeout_ms.map(Duration::from_millis));
                self.take_submitted();
            }
            Op::SubmitLate { replies } => self.submit(replies, 5, Some(Duration::from_secs(1))),
            Op::SubmitUnknown { server_replies } => {
                let expect = ExpectedReplies::Verified(1, EchoProbe::of(self.submitted.len() as u64));
                self.submit_as(expect, server_replies, 5, Some(Duration::from_secs(1)));
                self.take_submitted();
            }
            Op::Drop(pick) if !self.submitted.is_empty() => {
                self.submitted[&((pick % self.submitted.len()) as Id)].dropped.set(true);
            }
            Op::Write(count) if self.handler.connected => {
                self.connection.resume(self.now, &mut self.handler);
                self.take_submitted();
                let count = count.min(self.connection.unsent().len());
                self.server.receive(&self.connection.unsent()[..count], &self.submitted);
                self.connection.wrote(count);
            }
            Op::Serve => self.server.serve(&self.submitted),
            Op::Refuse => self.server.refuse(&self.submitted),
            Op::Push if self.handler.connected => {
                self.server.sending.extend_from_slice(b">2\r\n+hello\r\n:1\r\n");
                self.server.pushes += 1;
            }
            Op::Read(count) if self.handler.connected => {
                self.connection.resume(self.now, &mut self.handler);
                let count = count.min(self.server.sending.len());
                let bytes: Vec<u8> = self.server.sending.drain(..count).collect();
                self.connection.input().extend_from_slice(&bytes);
                self.connection.received(self.now, &mut self.handler);
            }
            Op::Dialed(success) if self.handler.dialing => {
                self.handler.dialing = false;
                if success {
                    self.server.hang_up();
                    self.handler.connected = true;
                    self.connection.connected(b"", self.now, &mut self.handler);
                } else {
                    self.connection.lost(ConnectionLoss::Closed, self.now, &mut self.handler);
                }
            }
            Op::Lose if self.handler.connected => {
                self.connection.lost(ConnectionLoss::Closed, self.now, &mut self.handler)
            }
            Op::LoseTwice if self.handler.connected => {
                self.connection.lost(ConnectionLoss::Closed, self.now, &mut self.handler);
                self.connection.lost(ConnectionLoss::Closed, self.now, &mut self.handler);
            }
            Op::Advance(ms) => {
                self.connection.resume(self.now, &mut self.handler);
                self.take_submitted();
                self.now += Duration::from_millis(ms);
                self.connection.tick(self.now, &mut self.handler);
            }
            Op::Close => {
                self.take_submitted();
                self.connection.close(self.now, &mut self.handler);
            }
            Op::Cancel => self.connection.cancel(self.now, &mut self.handler),
            Op::Restart if self.connection.is_closed() => {
                self.generation += 1;
                self.connection =
                    ConnectionCore::new(settings(self.generation), Rng::with_seed(self.generation), self.now);
                self.connection.start(self.now, &mut self.handler);
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
        for (id, result) in self.handler.results.drain(..) {
            assert!(self.completed.insert(id), "request {id} completed twice");
            self.outcomes.push(result.as_ref().map_or_else(RequestError::as_str, |_| "ok"));
            match result {
                Ok(replies) if self.server.refused.contains(&id) => {
                    left_unfit = true;
                    assert_eq!(
                        self.submitted[&id].server_replies, self.submitted[&id].replies,
                        "{id} has a wrong number of replies"
                    );
                    check_refused(self.submitted[&id].replies, &replies);
                }
                Ok(replies) => {
                    assert_eq!(
                        self.submitted[&id].server_replies, self.submitted[&id].replies,
                        "{id} has a wrong number of replies"
                    );
                    assert!(self.server.ran.contains(&id), "request {id} completed before it ran");
                    assert!(self.last_ok < Some(id), "{id} completed after {:?}", self.last_ok);
                    self.last_ok = Some(id);
                    check_replies(id, self.submitted[&id].replies, &replies);
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
        let state = *self.handler.states.last().expect("it has started");
        assert!(!left_unfit || state != State::Open, "a server that refuses is left");
        let lets_in = matches!(state, State::Connecting | State::Open | State::Reconnecting);
        assert_eq!(self.handler.rejecting, !lets_in, "{state}");
        if let State::Failed | State::Closed = state {
            assert_eq!(self.connection.open_requests(), 0, "requests are open in {state}");
            assert!(!self.handler.connected && self.handler.queued.is_empty());
        }
        let run: BTreeSet<Id> = self.server.ran.iter().copied().collect();
        assert!(run.is_disjoint(&self.must_not_run), "a request ran after it had failed unsent");
    }

    /// Lets all deadlines pass, closes the connection, and checks that no request is left open.
    fn finish(mut self) {
        for _ in 0..40 {
            self.apply(Op::Advance(1_000));
        }
        let waiting = |model: &ConnectionModel, id: &Id| {
            !model.submitted[id].dropped.get() && !model.completed.contains(id)
        };
        self.apply(Op::Close);
        self.apply(Op::Advance(1_000));
        assert!(self.connection.is_closed());
        for id in self.submitted.keys() {
            assert!(!waiting(&self, id), "request {id} hangs");
        }
    }
}

fn check_refused(count: u32, replies: &Replies) {
    let mut cursor = crate::reply::ReplyCursor::new(replies);
    for _ in 0..=count {
        let error = cursor.next::<u8>().expect_err("refused, or no reply");
        assert!(matches!(error, ReplyError::Server(_) | ReplyError::Mismatch(_)), "{error}");
    }
}

fn check_replies(id: Id, count: u32, replies: &Replies) {
    let mut cursor = crate::reply::ReplyCursor::new(replies);
    for reply in 0..count {
        let found = match reply {
            0 | 1 => cursor.next::<u8>().expect("an integer"),
            _ => cursor.next::<(u8,)>().expect("an array of one").0,
        };
        assert_eq!(found, id, "reply of another request");
    }
    assert!(cursor.next::<()>().is_err(), "more replies than were requested");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_completes_once_in_order_and_none_is_replayed(ops in ops()) {
        let mut model = ConnectionModel::new();
        for op in ops {
            model.apply(op);
        }
        model.finish();
    }
}

/// Checks that the random histories reach every state and every kind of result.
#[test]
fn random_histories_reach_every_state_and_every_kind_of_result() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut states, mut oks, mut restarts) = (BTreeSet::new(), 0, 0);
    let mut losses = BTreeSet::new();
    let mut errors: BTreeSet<&str> = BTreeSet::new();
    for _ in 0..500 {
        let ops = ops().new_tree(&mut runner).expect("the strategy never rejects").current();
        let mut model = ConnectionModel::new();
        for op in ops {
            model.apply(op);
        }
        oks += model.outcomes.iter().filter(|outcome| **outcome == "ok").count();
        errors.extend(model.outcomes.iter().filter(|outcome| **outcome != "ok"));
        states.extend(model.handler.states.iter().map(|state| state.as_str()));
        losses.append(&mut model.handler.losses);
        restarts += model.generation - 1;
    }
    let reached: Vec<_> = states.into_iter().collect();
    assert_eq!(reached, ["closed", "closing", "connecting", "failed", "open", "reconnecting"]);
    assert_eq!(
        errors.into_iter().collect::<Vec<_>>(),
        ["cancelled", "closed", "deadline", "lost", "rejected"]
    );
    assert_eq!(losses.into_iter().collect::<Vec<_>>(), ["closed", "protocol", "stalled", "unfit"]);
    assert!(oks > 100 && restarts > 100, "{oks} successes, {restarts} restarts");
}
