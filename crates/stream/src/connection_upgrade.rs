//! Upgrade of a client's connection to another protocol, such as WebSocket.
//!
//! Invariant: the response body of an upgrade is polled only after the 101 is written, and lives as
//! long as the upgraded connection. So a permit that the body owns is held until then.
//! Enforced by: [`serve_upgraded`] writes the head, hands the connection over, and then polls the
//! body to its end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;

use crate::service::ResponseBody;
use crate::stats::ServerStats;
use crate::upgraded_io::UpgradedIo;

/// Upgrades the client's connection: insert a clone into the extensions of a response with status
/// 101, and keep one in the response's body.
///
/// The server writes the head of the response with `connection: upgrade`. Then it polls the body
/// until the body ends, and ignores its data. When the body is first polled, [`Self::take`] returns
/// the connection. The connection may outlive the body, but the server no longer counts it then.
///
/// Only a request over HTTP/1.1 whose body has been read can be upgraded, with a
/// [`Handshake`](crate::Handshake) or without. Any other connection is closed after the response.
#[derive(Debug, Clone, Default)]
pub struct ConnectionUpgrade(Arc<Mutex<Option<UpgradedIo>>>);

impl ConnectionUpgrade {
    /// Creates the upgrade of one connection.
    pub fn new() -> ConnectionUpgrade {
        ConnectionUpgrade::default()
    }

    /// Takes the connection. Returns `None` until the 101 is written, and after the first call.
    pub fn take(&self) -> Option<UpgradedIo> {
        self.0.lock().take()
    }
}

/// Parts of an upgraded connection, taken from hyper.
pub(crate) struct UpgradeParts<B> {
    pub(crate) io: UpgradedIo,
    pub(crate) head: Bytes,
    pub(crate) body: B,
    pub(crate) upgrade: ConnectionUpgrade,
}

/// Writes the 101, hands the connection to the body, and polls the body to its end.
pub(crate) async fn serve_upgraded<B: ResponseBody>(parts: UpgradeParts<B>, stats: ServerStats) {
    let _open = OpenUpgrade::new(stats);
    let UpgradeParts { mut io, head, body, upgrade } = parts;
    let mut body = pin!(body);
    let written = match io.write_all(&head).await {
        Ok(()) => io.flush().await,
        failed => failed,
    };
    if let Err(error) = written {
        return tracing::debug!(%error, "upgrade response not written");
    }
    *upgrade.0.lock() = Some(io);
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Err(error) = frame {
            return tracing::debug!(error = %error.into(), "upgraded connection failed");
        }
    }
}

/// Counts an upgraded connection as open until it is dropped.
struct OpenUpgrade(ServerStats);

impl OpenUpgrade {
    fn new(stats: ServerStats) -> OpenUpgrade {
        stats.counters().upgrades.increment();
        stats.counters().upgraded_connections.increment();
        OpenUpgrade(stats)
    }
}

impl Drop for OpenUpgrade {
    fn drop(&mut self) {
        self.0.counters().upgraded_connections.decrement();
    }
}
