//! Response to a request whose head is too large: replaces hyper's 431, which has no body.
//!
//! Invariant: only a response of hyper is replaced, never one of the service.
//! Enforced by: `ConnectionActivity::has_response`, which is true from the service's response until
//! all bytes before it and of it are written.

use bytes::{Buf as _, Bytes};

use crate::config::HttpServerConfig;
use crate::hyper::activity::ConnectionActivity;

/// First bytes of hyper's response.
const STATUS_LINE: &[u8] = b"HTTP/1.1 431 ";

/// Replacement of hyper's 431 on one connection.
#[derive(Debug)]
pub(crate) struct OversizedHeadResponse {
    json: Option<&'static str>,
    /// Bytes of the replacement that aren't written yet.
    unwritten: Bytes,
}

impl OversizedHeadResponse {
    pub(crate) fn new(config: &HttpServerConfig) -> Self {
        OversizedHeadResponse { json: config.oversized_head_json, unwritten: Bytes::new() }
    }

    /// Returns what to write in place of `bytes`, which hyper wants to write; `None`: these bytes.
    pub(crate) fn replacement(&mut self, bytes: &[u8], activity: &ConnectionActivity) -> Option<Bytes> {
        let json = self.json?;
        if !bytes.starts_with(STATUS_LINE) || activity.is_active() || activity.has_response.get() {
            return None;
        }
        if self.unwritten.is_empty() {
            let response = format!(
                "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n\
                 cache-control: no-store\r\naccess-control-allow-origin: *\r\ncontent-length: {}\r\n\
                 connection: close\r\n\r\n{json}",
                json.len()
            );
            self.unwritten = response.into();
        }
        Some(self.unwritten.clone())
    }

    /// Records written bytes of the replacement. Returns whether it is complete.
    pub(crate) fn written(&mut self, count: usize) -> bool {
        self.unwritten.advance(count);
        self.unwritten.is_empty()
    }
}
