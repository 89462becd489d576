//! Request future: submits a request at its first poll and completes with the result.
//!
//! Dropping the future affects no other request. A late reply is discarded. If no byte of the
//! request was sent yet, the worker may remove it unsent.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::args::{ArgWriter, EncodedRequest};
use crate::client::ClientShared;
use crate::command::{CommandBatch, RedisCommand};
use crate::command_guard::CommandGuard;
use crate::core::pipeline::{ExpectedReplies, PipelineRequest, Replies};
use crate::encode_buffer::EncodeBuffer;
use crate::error::{ExecError, ReplyError, RequestError};
use crate::reply::{FromReplies, FromReply, ReplyCursor, ReplyToken, single};
use crate::reply_slot::{ReplySlot, RequestResult, SharedReplySlot};
use crate::request_observation::RequestObservation;

/// What a request sends, and how its replies are decoded.
#[doc(hidden)]
pub trait RequestSpec {
    /// Output of the future.
    type Output;
    fn expect(&self) -> ExpectedReplies;
    fn encode(&self, out: &mut ArgWriter<'_>);
    fn finish(&self, result: RequestResult) -> Self::Output;
}

/// Future of one request. The first poll submits the request.
#[must_use = "a request is sent when it is first polled"]
pub struct RequestFuture<'c, S: RequestSpec> {
    shared: &'c ClientShared,
    spec: S,
    timeout: Option<Duration>,
    slot: Option<SharedReplySlot>,
    done: bool,
    observation: RequestObservation,
}

/// An encoded request that is not submitted yet.
pub(crate) struct EncodedCall {
    buffer: EncodeBuffer,
    expect: ExpectedReplies,
    /// State of the guard after the request's commands.
    guard: Option<CommandGuard>,
}

impl<'c, S: RequestSpec> RequestFuture<'c, S> {
    pub(crate) fn new(shared: &'c ClientShared, spec: S) -> Self {
        RequestFuture {
            timeout: shared.config.response_timeout,
            shared,
            spec,
            slot: None,
            done: false,
            observation: RequestObservation::default(),
        }
    }

    /// Sets a deadline for this request, instead of
    /// [`Config::response_timeout`](crate::Config::response_timeout).
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Removes the deadline: the request ends with its reply or with the connection.
    pub(crate) fn without_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }

    fn submit(&mut self, waker: &Waker) -> Result<(), RequestError> {
        let encoded = self.encode()?;
        self.send(encoded, waker)
    }

    /// Encodes the request. Fails if the connection does not accept a command.
    ///
    /// Runs the caller's `ToArgs` and the code that observes requests, so the calling function must
    /// hold no lock.
    #[inline]
    pub(crate) fn encode(&mut self) -> Result<EncodedCall, RequestError> {
        let (expect, mut buffer) = (self.spec.expect(), EncodeBuffer::take());
        let mut writer = ArgWriter::guarded(&mut buffer, self.shared.guard());
        self.spec.encode(&mut writer);
        let encoded = writer.finish();
        self.observation.begin(self.shared, expect, &buffer);
        let EncodedRequest { probe, guard } = encoded?;
        Ok(EncodedCall { buffer, expect: expect.verified_by(probe), guard })
    }

    /// Submits the encoded request to the worker. Runs no caller's code except `waker.clone()`.
    #[inline]
    pub(crate) fn send(&mut self, encoded: EncodedCall, waker: &Waker) -> Result<(), RequestError> {
        let EncodedCall { mut buffer, expect, guard } = encoded;
        let (slot, bytes) = (ReplySlot::waiting(waker.clone()), buffer.len());
        let request = PipelineRequest { sink: slot.clone(), expect, bytes, timeout: self.timeout };
        self.shared.inbox.submit(&mut buffer, request)?;
        if let Some(guard) = guard {
            self.shared.store_guard(guard);
        }
        self.slot = Some(slot);
        Ok(())
    }

    /// Completes the request with its result, or with the error of a failed submission.
    pub(crate) fn finish(&mut self, result: RequestResult) -> S::Output {
        self.done = true;
        if let Some(slot) = self.slot.take() {
            ReplySlot::recycle(slot);
        }
        self.observation.end(&result);
        self.spec.finish(result)
    }
}

// Nothing is structurally pinned: the spec is used only by reference.
impl<S: RequestSpec> Unpin for RequestFuture<'_, S> {}

impl<S: RequestSpec> Future for RequestFuture<'_, S> {
    type Output = S::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<S::Output> {
        let request = &mut *self;
        assert!(!request.done, "polled after completion");
        match &request.slot {
            Some(slot) => slot.poll(cx).map(|result| request.finish(result)),
            None if request.spec.expect() == ExpectedReplies::Replies(0) => {
                Poll::Ready(request.finish(Ok(Replies::default())))
            }
            None => match request.submit(cx.waker()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(request.finish(Err(error))),
            },
        }
    }
}

impl<S: RequestSpec> Drop for RequestFuture<'_, S> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.abandon();
            self.observation.end_dropped();
        }
    }
}

impl<S: RequestSpec> fmt::Debug for RequestFuture<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFuture").field("submitted", &self.slot.is_some()).finish_non_exhaustive()
    }
}

/// [`RequestSpec`] of one command.
pub(crate) struct CommandSpec<C, T> {
    command: C,
    reply: PhantomData<fn() -> T>,
}

impl<C, T> CommandSpec<C, T> {
    pub(crate) fn new(command: C) -> Self {
        CommandSpec { command, reply: PhantomData }
    }
}

impl<C: RedisCommand, T: FromReply> RequestSpec for CommandSpec<C, T> {
    type Output = Result<T, ExecError>;

    #[inline]
    fn expect(&self) -> ExpectedReplies {
        ExpectedReplies::Replies(1)
    }

    #[inline]
    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.command(&self.command);
    }

    #[inline]
    fn finish(&self, result: RequestResult) -> Self::Output {
        Ok(single(&result?)?)
    }
}

/// [`RequestSpec`] of a pipeline.
pub(crate) struct PipelineSpec<B, R> {
    batch: B,
    replies: PhantomData<fn() -> R>,
}

impl<B, R> PipelineSpec<B, R> {
    pub(crate) fn new(batch: B) -> Self {
        PipelineSpec { batch, replies: PhantomData }
    }
}

impl<B: CommandBatch<R>, R: FromReplies> RequestSpec for PipelineSpec<B, R> {
    type Output = Result<R::Results, RequestError>;

    fn expect(&self) -> ExpectedReplies {
        ExpectedReplies::Replies(self.batch.len() as u32)
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        self.batch.write(out);
    }

    fn finish(&self, result: RequestResult) -> Self::Output {
        Ok(R::from_replies(&mut ReplyCursor::new(&result?), self.batch.len()))
    }
}

/// [`RequestSpec`] of a transaction.
pub(crate) struct TransactionSpec<B, R>(PipelineSpec<B, R>);

impl<B, R> TransactionSpec<B, R> {
    pub(crate) fn new(batch: B) -> Self {
        TransactionSpec(PipelineSpec::new(batch))
    }
}

impl<B: CommandBatch<R>, R: FromReplies> RequestSpec for TransactionSpec<B, R> {
    type Output = Result<R::Results, ExecError>;

    fn expect(&self) -> ExpectedReplies {
        match self.0.batch.len() {
            0 => ExpectedReplies::Replies(0),
            commands => ExpectedReplies::Replies(commands as u32 + 2),
        }
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.unguarded_command(&("MULTI",));
        self.0.encode(out);
        out.end_transaction();
    }

    fn finish(&self, result: RequestResult) -> Self::Output {
        let (replies, commands) = (result?, self.0.batch.len());
        let mut cursor = ReplyCursor::new(&replies);
        if commands == 0 {
            return Ok(R::from_replies(&mut cursor, 0));
        }
        // The server acknowledges MULTI and each command. The first error among these replies is
        // the reason if EXEC fails.
        let mut first_error = None;
        for _ in 0..=commands {
            if let Err(error) = cursor.next::<()>() {
                first_error.get_or_insert(error);
            }
        }
        match cursor.enter()? {
            ReplyToken::Array(_) => Ok(R::from_replies(&mut cursor, commands)),
            ReplyToken::Null => Err(ReplyError::Aborted.into()),
            other => Err(first_error.unwrap_or_else(|| other.mismatch("the results of EXEC")).into()),
        }
    }
}

/// [`RequestSpec`] of a SUBSCRIBE or UNSUBSCRIBE command, which push messages confirm.
pub(crate) struct SubscribeSpec<C> {
    pub(crate) command: C,
    pub(crate) count: u32,
    pub(crate) kind: &'static str,
}

impl<C: RedisCommand> RequestSpec for SubscribeSpec<C> {
    type Output = Result<(), ExecError>;

    fn expect(&self) -> ExpectedReplies {
        ExpectedReplies::Confirmations(self.count, self.kind)
    }

    fn encode(&self, out: &mut ArgWriter<'_>) {
        out.unguarded_command(&self.command);
    }

    fn finish(&self, result: RequestResult) -> Self::Output {
        let replies = result?;
        if replies.first.is_empty() { Ok(()) } else { Ok(single(&replies)?) }
    }
}
