//! A request on its way: submitted at the first poll, answered at the last.
//!
//! Dropping it earlier disturbs nobody: a reply that comes later is thrown away, and a request of which no byte has left
//! may not be sent at all.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::client::Shared;
use crate::command::{ArgWriter, Batch, Command, Verdict};
use crate::core::pipeline::{Expect, Replies, Request};
use crate::error::{ExecError, ReplyError, RequestError};
use crate::guard::Words;
use crate::hooks::{Hooks, Outcome, RequestReport};
use crate::reply::{Cursor, FromReplies, FromReply, Token, single};
use crate::slot::{Answer, Slot};

/// What a request sends and what becomes of its replies.
#[doc(hidden)]
pub trait Job {
    /// What awaiting it gives.
    type Output;
    fn expect(&self) -> Expect;
    fn encode(&self, out: &mut ArgWriter<'_>);
    fn finish(&self, answer: Answer) -> Self::Output;
}

/// A request; await it.
#[must_use = "a request is sent when it is first polled"]
pub struct Exec<'c, J: Job> {
    shared: &'c Shared,
    job: J,
    timeout: Option<Duration>,
    slot: Option<Arc<Slot>>,
    done: bool,
    report: Option<Box<Report>>,
}

impl<'c, J: Job> Exec<'c, J> {
    pub(crate) fn new(shared: &'c Shared, job: J) -> Self {
        Exec { timeout: shared.config.response_timeout, shared, job, slot: None, done: false, report: None }
    }

    /// Another deadline than [`Config::response_timeout`](crate::Config::response_timeout), for this request only.
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Without a deadline: it is answered, or the connection ends.
    pub(crate) fn unbounded(mut self) -> Self {
        self.timeout = None;
        self
    }

    /// Leaves the request for the worker.
    pub(crate) fn submit(&mut self, cx: &mut Context<'_>) -> Result<(), RequestError> {
        let expect = self.job.expect();
        let (timeout, slot) = (self.timeout, Slot::waiting(cx.waker().clone()));
        if let Some(hooks) = &self.shared.config.hooks {
            self.report = Some(Box::new(Report::begin(hooks.clone(), expect)));
        }
        let left = self.shared.inbox.leave(
            |out| {
                let before = out.len();
                let mut writer = ArgWriter::guarded(out, self.shared.guard());
                self.job.encode(&mut writer);
                let verdict = writer.verdict();
                if let Ok(Verdict { guard: Some(guard), .. }) = verdict {
                    self.shared.note_guard(guard);
                }
                if let Some(report) = &mut self.report {
                    report.command = first_word(&out[before..]);
                }
                verdict.map(|verdict| expect.verified_by(verdict.sentinel))
            },
            |expect, bytes| Request { sink: slot.clone(), expect, bytes, timeout },
        );
        if let (Err(_), Some(report)) = (&left, &mut self.report) {
            // It didn't come to encoding it in the right place.
            let mut encoded = Vec::new();
            self.job.encode(&mut ArgWriter::new(&mut encoded));
            report.command = first_word(&encoded);
        }
        left?;
        self.slot = Some(slot);
        Ok(())
    }

    /// Ends the request with its answer, or without one if it couldn't even be left.
    pub(crate) fn finish(&mut self, answer: Answer) -> J::Output {
        self.done = true;
        if let Some(slot) = self.slot.take() {
            Slot::recycle(slot);
        }
        if let Some(report) = self.report.take() {
            report.end(match &answer {
                Ok(_) => Outcome::Replied,
                Err(error) => Outcome::Failed(error),
            });
        }
        self.job.finish(answer)
    }
}

// Nothing in it is pinned: the job is only ever used by reference.
impl<J: Job> Unpin for Exec<'_, J> {}

impl<J: Job> Future for Exec<'_, J> {
    type Output = J::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<J::Output> {
        let exec = &mut *self;
        assert!(!exec.done, "polled after completion");
        match &exec.slot {
            Some(slot) => slot.poll(cx).map(|answer| exec.finish(answer)),
            None if exec.job.expect() == Expect::Replies(0) => {
                Poll::Ready(exec.finish(Ok(Replies::default())))
            }
            None => match exec.submit(cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(exec.finish(Err(error))),
            },
        }
    }
}

impl<J: Job> Drop for Exec<'_, J> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.abandon();
            if let Some(report) = self.report.take() {
                report.end(Outcome::Dropped);
            }
        }
    }
}

impl<J: Job> fmt::Debug for Exec<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("submitted", &self.slot.is_some()).finish_non_exhaustive()
    }
}

/// One command.
pub(crate) struct One<C, T> {
    command: C,
    reply: PhantomData<fn() -> T>,
}

impl<C, T> One<C, T> {
    pub(crate) fn new(command: C) -> Self {
        One { command, reply: PhantomData }
    }
}

impl<C: Command, T: FromReply> Job for One<C, T> {
    type Output = Result<T, ExecError>;

    #[inline]
    fn expect(&self) -> Expect {
        Expect::Replies(1)
    }

    #[inline]
    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.command(&self.command);
    }

    #[inline]
    fn finish(&self, answer: Answer) -> Self::Output {
        Ok(single(&answer?)?)
    }
}

/// A pipeline.
pub(crate) struct Several<B, R> {
    batch: B,
    replies: PhantomData<fn() -> R>,
}

impl<B, R> Several<B, R> {
    pub(crate) fn new(batch: B) -> Self {
        Several { batch, replies: PhantomData }
    }
}

impl<B: Batch<R>, R: FromReplies> Job for Several<B, R> {
    type Output = Result<R::Results, RequestError>;

    fn expect(&self) -> Expect {
        Expect::Replies(self.batch.len() as u32)
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        self.batch.write(out);
    }

    fn finish(&self, answer: Answer) -> Self::Output {
        Ok(R::from_replies(&mut Cursor::new(&answer?), self.batch.len()))
    }
}

/// A transaction.
pub(crate) struct Atomic<B, R>(Several<B, R>);

impl<B, R> Atomic<B, R> {
    pub(crate) fn new(batch: B) -> Self {
        Atomic(Several::new(batch))
    }
}

impl<B: Batch<R>, R: FromReplies> Job for Atomic<B, R> {
    type Output = Result<R::Results, ExecError>;

    fn expect(&self) -> Expect {
        match self.0.batch.len() {
            0 => Expect::Replies(0),
            commands => Expect::Replies(commands as u32 + 2),
        }
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.own_command(&("MULTI",));
        self.0.encode(out);
        out.end_transaction();
    }

    fn finish(&self, answer: Answer) -> Self::Output {
        let (replies, commands) = (answer?, self.0.batch.len());
        let mut cursor = Cursor::new(&replies);
        if commands == 0 {
            return Ok(R::from_replies(&mut cursor, 0));
        }
        // MULTI and each command are acknowledged; the first refusal says why EXEC will refuse, too.
        let mut refused = None;
        for _ in 0..=commands {
            if let Err(error) = cursor.next::<()>() {
                refused.get_or_insert(error);
            }
        }
        match cursor.enter()? {
            Token::Array(_) => Ok(R::from_replies(&mut cursor, commands)),
            Token::Null => Err(ReplyError::Aborted.into()),
            other => Err(refused.unwrap_or_else(|| other.mismatch("the results of EXEC")).into()),
        }
    }
}

/// A subscription's command: answered by push messages.
pub(crate) struct Confirmed<C> {
    pub(crate) command: C,
    pub(crate) count: u32,
    pub(crate) kind: &'static str,
}

impl<C: Command> Job for Confirmed<C> {
    type Output = Result<(), ExecError>;

    fn expect(&self) -> Expect {
        Expect::Confirmations(self.count, self.kind)
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.own_command(&self.command);
    }

    fn finish(&self, answer: Answer) -> Self::Output {
        let replies = answer?;
        if replies.first.is_empty() { Ok(()) } else { Ok(single(&replies)?) }
    }
}

/// What the hooks will be told.
struct Report {
    hooks: Arc<dyn Hooks>,
    command: String,
    commands: usize,
    started: Instant,
}

impl Report {
    fn begin(hooks: Arc<dyn Hooks>, expect: Expect) -> Self {
        let commands = match expect {
            Expect::Replies(count) | Expect::Confirmations(count, _) | Expect::Verified(count, _) => {
                count as usize
            }
        };
        Report { hooks, command: String::new(), commands, started: Instant::now() }
    }

    fn end(self, outcome: Outcome<'_>) {
        let Report { hooks, command, commands, started } = self;
        hooks.request(&RequestReport { command: &command, commands, took: started.elapsed(), outcome });
    }
}

/// The name of the first command.
fn first_word(encoded: &[u8]) -> String {
    let arguments = memchr::memchr(b'\n', encoded).map_or(0, |end| end + 1);
    let name = Words(&encoded[arguments..]).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
