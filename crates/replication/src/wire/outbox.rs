//! What we tell the server while it streams.
//!
//! Invariants: at most two statuses wait, the one that is being written and the newest; a request for an answer isn't lost
//! when a newer status takes an older one's place. Nothing here waits for the server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_pgoutput::StandbyStatusUpdate;
use tokio::io::AsyncWrite;

/// CopyData: its tag, its length, a status.
const FRAME_BYTES: usize = 5 + StandbyStatusUpdate::LEN;

/// Statuses on their way out.
#[derive(Debug)]
pub(super) struct Outbox {
    frame: [u8; FRAME_BYTES],
    /// How much of the frame is written; all of it: there is none.
    written: usize,
    next: Option<StandbyStatusUpdate>,
    is_flushed: bool,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Outbox { frame: [0; FRAME_BYTES], written: FRAME_BYTES, next: None, is_flushed: true }
    }

    /// To be written when there is room. It takes the place of what wasn't begun.
    pub(super) fn put(&mut self, status: StandbyStatusUpdate) {
        let reply_requested = status.reply_requested || self.next.is_some_and(|next| next.reply_requested);
        self.next = Some(StandbyStatusUpdate { reply_requested, ..status });
    }

    /// Writes what there is. Pending: the socket has no room now.
    pub(super) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.written == FRAME_BYTES {
                let Some(status) = self.next.take() else { break };
                self.begin(status);
            }
            match ready!(Pin::new(&mut *stream).poll_write(cx, &self.frame[self.written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.written += bytes,
            }
            self.is_flushed = false;
        }
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn begin(&mut self, status: StandbyStatusUpdate) {
        let length = u32::try_from(4 + StandbyStatusUpdate::LEN).expect("it is 38");
        self.frame[0] = b'd';
        self.frame[1..5].copy_from_slice(&length.to_be_bytes());
        self.frame[5..].copy_from_slice(&status.encode());
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use forebay_pgoutput::Lsn;
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    fn status(flushed: u64, reply: bool) -> StandbyStatusUpdate {
        StandbyStatusUpdate {
            flushed: Lsn(flushed),
            reply_requested: reply,
            ..StandbyStatusUpdate::default()
        }
    }

    fn framed(status: StandbyStatusUpdate) -> Vec<u8> {
        [&b"d\0\0\0\x26"[..], &status.encode()].concat()
    }

    #[tokio::test]
    async fn a_status_is_a_frame() {
        let (mut ours, mut theirs) = duplex(1024);
        let mut outbox = Outbox::new();
        outbox.put(status(7, false));
        std::future::poll_fn(|cx| outbox.poll_send(&mut ours, cx)).await.unwrap();
        let mut read = [0; FRAME_BYTES];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(read.to_vec(), framed(status(7, false)));
    }

    #[tokio::test]
    async fn a_server_that_doesnt_read_gets_the_newest_when_it_does() {
        let (mut ours, mut theirs) = duplex(10);
        let mut outbox = Outbox::new();
        let mut cx = Context::from_waker(Waker::noop());
        for flushed in 1..100 {
            outbox.put(status(flushed, flushed == 50));
            assert!(outbox.poll_send(&mut ours, &mut cx).is_pending());
        }
        let sending = async {
            std::future::poll_fn(|cx| outbox.poll_send(&mut ours, cx)).await.unwrap();
            drop(ours);
        };
        let mut read = Vec::new();
        let (_, all) = tokio::join!(sending, theirs.read_to_end(&mut read));
        all.unwrap();
        assert_eq!(read, [framed(status(1, false)), framed(status(99, true))].concat());
    }

    #[tokio::test]
    async fn a_server_that_is_gone_is_an_error() {
        let (mut ours, theirs) = duplex(10);
        drop(theirs);
        let mut outbox = Outbox::new();
        outbox.put(status(1, false));
        std::future::poll_fn(|cx| outbox.poll_send(&mut ours, cx)).await.unwrap_err();
    }
}
