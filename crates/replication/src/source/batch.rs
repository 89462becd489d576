//! A batch of decoded messages, for the consumer.

use forebay_pgoutput::{Commit, Decoder, Frame, Lsn, Message};

use crate::core::progress::ReceiveProgress;
use crate::error::{ReplicationError, SourceOperation};
use crate::wire::Frames;

/// Messages in the order of the server, borrowed from the read buffer without copying.
///
/// A transaction consists of a `Begin`, its changes, and a `Commit`. A `Relation` precedes the
/// first change of its table, and is repeated after the table was altered. All transactions are
/// committed. A transaction may span several batches.
pub struct MessageBatch<'a> {
    frames: Frames<'a>,
    state: &'a mut DecodeState,
    error: Option<ReplicationError>,
}

/// Decoder state that lasts from one batch to the next.
#[derive(Debug)]
pub(crate) struct DecodeState {
    pub(crate) decoder: Decoder,
    pub(crate) progress: ReceiveProgress,
    /// Start of the stream. Transactions committed before it are durable already.
    from: Lsn,
    is_skipping: bool,
    pub(crate) transactions: u64,
}

impl DecodeState {
    pub(crate) fn new(from: Lsn) -> Self {
        DecodeState {
            decoder: Decoder::new(),
            progress: ReceiveProgress::new(from),
            from,
            is_skipping: false,
            transactions: 0,
        }
    }

    /// Records a message, and returns whether the consumer receives it.
    fn record(&mut self, message: &Message<'_>) -> bool {
        match message {
            Message::Begin(begin) => {
                self.progress.on_begin(begin.final_lsn, begin.clock);
                // The server should skip these. If it doesn't, they must not be delivered twice.
                self.is_skipping = begin.final_lsn < self.from;
                !self.is_skipping
            }
            Message::Commit(Commit { end, .. }) => {
                self.progress.on_commit(*end);
                self.transactions += 1;
                !std::mem::take(&mut self.is_skipping)
            }
            // The server sends them once, for later transactions, too.
            Message::Relation(_) | Message::Type(_) => true,
            _ => !self.is_skipping,
        }
    }
}

impl<'a> MessageBatch<'a> {
    pub(crate) fn new(frames: Frames<'a>, state: &'a mut DecodeState) -> Self {
        MessageBatch { frames, state, error: None }
    }

    /// Returns the next message; `None` at the end of the batch.
    #[expect(clippy::should_implement_trait, reason = "a message borrows the buffer of this call")]
    pub fn next(&mut self) -> Option<Message<'a>> {
        loop {
            let payload = match self.frames.next()? {
                Ok(Frame::Data { payload, .. }) => payload,
                Ok(Frame::Keepalive { end, reply, .. }) => {
                    self.state.progress.on_keepalive(end, reply);
                    continue;
                }
                Err(error) => return self.fail(ReplicationError::wire(SourceOperation::Stream, error)),
            };
            match self.state.decoder.decode(payload) {
                Ok(message) if self.state.record(&message) => return Some(message),
                Ok(_) => {}
                Err(error) => return self.fail(error.into()),
            }
        }
    }

    fn fail(&mut self, error: ReplicationError) -> Option<Message<'a>> {
        self.error.get_or_insert(error);
        None
    }

    /// Fails if the batch ended early.
    pub(crate) fn finish(self) -> Result<(), ReplicationError> {
        self.error.map_or(Ok(()), Err)
    }
}
