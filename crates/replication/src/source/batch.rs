//! A batch of decoded messages, for the consumer.

use forebay_pgoutput::{Commit, Frame, Lsn, PgOutputDecoder, PgOutputMessage};

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

/// Decoder, progress and counters, kept from one batch to the next.
#[derive(Debug)]
pub(crate) struct DecodeState {
    pub(crate) decoder: PgOutputDecoder,
    pub(crate) progress: ReceiveProgress,
    /// Start of the stream. Transactions committed before it are durable already.
    from: Lsn,
    is_skipping: bool,
    pub(crate) transactions: u64,
}

impl DecodeState {
    pub(crate) fn new(from: Lsn) -> Self {
        DecodeState {
            decoder: PgOutputDecoder::new(),
            progress: ReceiveProgress::new(from),
            from,
            is_skipping: false,
            transactions: 0,
        }
    }

    /// Records a message, and returns whether the consumer receives it.
    fn record(&mut self, message: &PgOutputMessage<'_>) -> bool {
        match message {
            PgOutputMessage::Begin(begin) => {
                self.progress.on_begin(begin.final_lsn, begin.commit_time);
                // The server should skip these. If it doesn't, the consumer must not receive them
                // twice.
                self.is_skipping = begin.final_lsn < self.from;
                !self.is_skipping
            }
            PgOutputMessage::Commit(Commit { end_lsn, .. }) => {
                self.progress.on_commit(*end_lsn);
                self.transactions += 1;
                !std::mem::take(&mut self.is_skipping)
            }
            // The server sends them once, for later transactions, too.
            PgOutputMessage::Relation(_) | PgOutputMessage::Type(_) => true,
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
    pub fn next(&mut self) -> Option<PgOutputMessage<'a>> {
        loop {
            let payload = match self.frames.next()? {
                Ok(Frame::XLogData { payload, .. }) => payload,
                Ok(Frame::Keepalive { wal_end, reply_requested, .. }) => {
                    self.state.progress.on_keepalive(wal_end, reply_requested);
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

    fn fail(&mut self, error: ReplicationError) -> Option<PgOutputMessage<'a>> {
        self.error.get_or_insert(error);
        None
    }

    /// Fails if the batch ended early.
    pub(crate) fn finish(self) -> Result<(), ReplicationError> {
        self.error.map_or(Ok(()), Err)
    }
}
