//! Outbox of standby status updates.
//!
//! Invariants: at most two statuses are stored: the one being written, and the newest. A reply
//! request is kept when a newer status replaces an older one. No method waits for the server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use forebay_pgoutput::StandbyStatusUpdate;
use tokio::io::AsyncWrite;

/// `CopyData`: tag, length, status.
const FRAME_BYTES: usize = 5 + StandbyStatusUpdate::LEN;

/// Status updates that aren't written yet.
#[derive(Debug)]
pub(super) struct StatusOutbox {
    frame: [u8; FRAME_BYTES],
    /// Number of bytes of `frame` that are written; [`FRAME_BYTES`] if no frame is pending.
    written: usize,
    next: Option<StandbyStatusUpdate>,
    is_flushed: bool,
}

impl StatusOutbox {
    pub(super) fn new() -> Self {
        StatusOutbox { frame: [0; FRAME_BYTES], written: FRAME_BYTES, next: None, is_flushed: true }
    }

    /// Queues a status. It replaces one whose writing hasn't started.
    pub(super) fn put(&mut self, status: StandbyStatusUpdate) {
        let reply_requested = status.reply_requested || self.next.is_some_and(|next| next.reply_requested);
        self.next = Some(StandbyStatusUpdate { reply_requested, ..status });
    }

    /// Writes the queued statuses. Returns pending if the socket is full.
    pub(super) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.written == FRAME_BYTES {
                let Some(status) = self.next.take() else { break };
                self.start_frame(status);
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

    fn start_frame(&mut self, status: StandbyStatusUpdate) {
        let length = u32::try_from(4 + StandbyStatusUpdate::LEN).expect("the length is 38");
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

    fn status(flushed: u64, reply_requested: bool) -> StandbyStatusUpdate {
        StandbyStatusUpdate { flushed: Lsn(flushed), reply_requested, ..StandbyStatusUpdate::default() }
    }

    fn framed(status: StandbyStatusUpdate) -> Vec<u8> {
        [&b"d\0\0\0\x26"[..], &status.encode()].concat()
    }

    #[tokio::test]
    async fn a_status_is_written_as_a_copy_data_frame() {
        let (mut client, mut server) = duplex(1024);
        let mut outbox = StatusOutbox::new();
        outbox.put(status(7, false));
        std::future::poll_fn(|cx| outbox.poll_send(&mut client, cx)).await.unwrap();
        let mut read = [0; FRAME_BYTES];
        server.read_exact(&mut read).await.unwrap();
        assert_eq!(read.to_vec(), framed(status(7, false)));
    }

    #[tokio::test]
    async fn a_server_that_resumes_reading_gets_the_newest_status() {
        let (mut client, mut server) = duplex(10);
        let mut outbox = StatusOutbox::new();
        let mut cx = Context::from_waker(Waker::noop());
        for flushed in 1..100 {
            outbox.put(status(flushed, flushed == 50));
            assert!(outbox.poll_send(&mut client, &mut cx).is_pending());
        }
        let sending = async {
            std::future::poll_fn(|cx| outbox.poll_send(&mut client, cx)).await.unwrap();
            drop(client);
        };
        let mut read = Vec::new();
        let (_, all) = tokio::join!(sending, server.read_to_end(&mut read));
        all.unwrap();
        assert_eq!(read, [framed(status(1, false)), framed(status(99, true))].concat());
    }

    #[tokio::test]
    async fn a_closed_connection_is_an_error() {
        let (mut client, server) = duplex(10);
        drop(server);
        let mut outbox = StatusOutbox::new();
        outbox.put(status(1, false));
        std::future::poll_fn(|cx| outbox.poll_send(&mut client, cx)).await.unwrap_err();
    }
}
