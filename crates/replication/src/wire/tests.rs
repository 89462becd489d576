//! Tests of the wire client: with a scripted server in memory (`scripted_server.rs`), and with real
//! servers (`servers.rs`, `streams.rs`).

mod scripted_server;
mod servers;
mod streams;

use std::io;

use forebay_pgoutput::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::channel::ReplicationTransport;
use super::error::WireError;
use super::replication_stream::ReplicationStream;

impl ReplicationTransport for DuplexStream {
    /// Accepted and ignored: each byte wakes the reader.
    fn set_low_water(&self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown_and_wait(mut self) {
        let _gone = self.shutdown().await;
        let mut rest = Vec::new();
        let _reset = self.read_to_end(&mut rest).await;
    }
}

/// Returns the payloads of the buffered frames; fails at the first error.
fn payloads<S: ReplicationTransport>(stream: &mut ReplicationStream<S>) -> Result<Vec<Vec<u8>>, WireError> {
    let (mut frames, _) = stream.split();
    let mut payloads = Vec::new();
    while let Some(frame) = frames.next() {
        match frame? {
            Frame::XLogData { payload, .. } => payloads.push(payload.to_vec()),
            Frame::Keepalive { .. } => {}
        }
    }
    Ok(payloads)
}
