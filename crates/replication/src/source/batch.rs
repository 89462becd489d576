//! What has come, for the consumer to read.

use forebay_pgoutput::{Commit, Frame, Lsn, PgOutputDecoder, PgOutputMessage};

use crate::core::progress::Position;
use crate::error::{Doing, Failure};
use crate::wire::Frames;

/// Messages in the order in which the server sent them, borrowed from what was read: nothing is copied.
///
/// Every transaction is a `Begin`, its changes, and a `Commit`; a relation is described before its first change and whenever it has
/// changed. What is here comes from committed transactions only. Transactions may be spread over several batches.
pub struct Batch<'a> {
    frames: Frames<'a>,
    state: &'a mut Reading,
    failure: Option<Failure>,
}

/// What is kept from one batch to the next.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) decoder: PgOutputDecoder,
    pub(crate) position: Position,
    /// Transactions that were committed before this are durable already.
    from: Lsn,
    is_skipping: bool,
    pub(crate) transactions: u64,
}

impl Reading {
    pub(crate) fn new(from: Lsn) -> Self {
        Reading {
            decoder: PgOutputDecoder::new(),
            position: Position::new(from),
            from,
            is_skipping: false,
            transactions: 0,
        }
    }

    /// Whether the consumer should see it.
    fn take(&mut self, message: &PgOutputMessage<'_>) -> bool {
        match message {
            PgOutputMessage::Begin(begin) => {
                self.position.on_begin(begin.final_lsn, begin.commit_time);
                // The server skips these itself; one that doesn't must not make us deliver twice.
                self.is_skipping = begin.final_lsn < self.from;
                !self.is_skipping
            }
            PgOutputMessage::Commit(Commit { end_lsn: end, .. }) => {
                self.position.on_commit(*end);
                self.transactions += 1;
                !std::mem::take(&mut self.is_skipping)
            }
            // They are sent once for all that follows.
            PgOutputMessage::Relation(_) | PgOutputMessage::Type(_) => true,
            _ => !self.is_skipping,
        }
    }
}

impl<'a> Batch<'a> {
    pub(crate) fn new(frames: Frames<'a>, state: &'a mut Reading) -> Self {
        Batch { frames, state, failure: None }
    }

    /// The next message. `None`: that was all for now.
    #[expect(clippy::should_implement_trait, reason = "an iterator could be put aside and outlive its turn")]
    pub fn next(&mut self) -> Option<PgOutputMessage<'a>> {
        loop {
            let payload = match self.frames.next()? {
                Ok(Frame::XLogData { payload, .. }) => payload,
                Ok(Frame::Keepalive { wal_end, reply_requested, .. }) => {
                    self.state.position.on_keepalive(wal_end, reply_requested);
                    continue;
                }
                Err(error) => return self.fail(Failure::wire(Doing::Streaming, error)),
            };
            match self.state.decoder.decode(payload) {
                Ok(message) if self.state.take(&message) => return Some(message),
                Ok(_) => {}
                Err(error) => return self.fail(error.into()),
            }
        }
    }

    fn fail(&mut self, failure: Failure) -> Option<PgOutputMessage<'a>> {
        self.failure.get_or_insert(failure);
        None
    }

    /// Why it ended early, if it did.
    pub(crate) fn end(self) -> Result<(), Failure> {
        self.failure.map_or(Ok(()), Err)
    }
}
