//! What a server is told: every bound and every deadline.

use std::time::Duration;

/// The bounds of a [`Server`](crate::Server). Every one is on by default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeConfig {
    /// From the first byte of a request's head to its last; for the first request, from the moment the connection was
    /// accepted. A client that is slower gets a 408; one that sent nothing, or part of HTTP/2's preface, is closed without
    /// a word. Default 10 s: a head is one packet or two.
    pub header_read_timeout: Duration,
    /// The size of a request's head; a larger one gets a 431. Default 32 KiB, enough for large tokens.
    pub max_header_bytes: usize,
    /// Header fields of a request; more get a 431. Default 100.
    pub max_headers: usize,
    /// While the service waits for the request's body, how long the client may send nothing; then it is closed, or over
    /// HTTP/2 the request reset. Default 30 s.
    pub body_read_timeout: Duration,
    /// Connections at once, streams included; the next gets a 503 at once. Each takes a descriptor. Default 16,384: the
    /// 10,000 streams that admission lets in by default, and room for those that are refused or ask something else.
    pub max_connections: usize,
    /// How long a kept-alive connection may be without a request. Default 60 s, above the usual proxies' own. Over HTTP/2
    /// it also bounds the last 16 KiB of a response.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of what it is sent; then it is closed. Over HTTP/2 that holds for each response
    /// as well, which is then reset. Default 30 s.
    pub write_timeout: Duration,
    /// Bytes that a client may send while it is being streamed to; they are thrown away. One that sends more is closed.
    /// Default 64 KiB.
    pub max_discarded_bytes: usize,
    /// Requests at once on one HTTP/2 connection. Default 200.
    pub max_h2_requests: u32,
    /// Keep-alive probes after so long without traffic, so that a peer that is gone is noticed on an idle stream.
    /// Default 30 s.
    pub tcp_keepalive: Option<Duration>,
    /// Sent data, or a probe, that nobody acknowledges for so long ends the connection (Linux). Default 30 s.
    pub tcp_user_timeout: Option<Duration>,
    /// How long running requests and streams may go on after the shutdown began; then they are cut. Default 30 s.
    pub drain_timeout: Duration,
    /// How long a connection without a request stays open after the shutdown began, for a request that is on its way; it is answered
    /// with `connection: close`. A head that is incomplete then gets a 503. At most half of `drain_timeout`. Default 500 ms.
    pub drain_grace: Duration,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            header_read_timeout: Duration::from_secs(10),
            max_header_bytes: 32 * 1024,
            max_headers: 100,
            body_read_timeout: Duration::from_secs(30),
            max_connections: 16_384,
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            max_discarded_bytes: 64 * 1024,
            max_h2_requests: 200,
            tcp_keepalive: Some(Duration::from_secs(30)),
            tcp_user_timeout: Some(Duration::from_secs(30)),
            drain_timeout: Duration::from_secs(30),
            drain_grace: Duration::from_millis(500),
        }
    }
}
