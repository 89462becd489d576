//! The wire client against a server that is played (`played.rs`) and real ones (`servers.rs`, `streams.rs`).

mod played;
mod servers;
mod streams;

use std::io;

use forebay_pgoutput::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::channel::Line;
use super::copy::Copy;
use super::error::WireError;

impl Line for DuplexStream {
    /// It is told, and wakes for each byte all the same.
    fn set_low_water(&self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    async fn hang_up(mut self) {
        let _gone = self.shutdown().await;
        let mut rest = Vec::new();
        let _reset = self.read_to_end(&mut rest).await;
    }
}

/// The payloads that have come, until the first error.
fn payloads<S: Line>(copy: &mut Copy<S>) -> Result<Vec<Vec<u8>>, WireError> {
    let (mut frames, _) = copy.split();
    let mut payloads = Vec::new();
    while let Some(frame) = frames.next() {
        match frame? {
            Frame::XLogData { payload, .. } => payloads.push(payload.to_vec()),
            Frame::Keepalive { .. } => {}
        }
    }
    Ok(payloads)
}
