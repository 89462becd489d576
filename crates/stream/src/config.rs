//! Server configuration: all limits and timeouts.

use std::time::Duration;

/// Limits and timeouts of an [`HttpServer`](crate::HttpServer). All are on by default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpServerConfig {
    /// Time to receive a request's head, from its first byte; for the first request, from accept.
    /// A slower client gets a 408. A client that sent nothing, or only part of the HTTP/2
    /// preface, is closed without a response. Default 10 s.
    pub header_read_timeout: Duration,
    /// Maximum size of a request's head in bytes; a larger head gets a 431. Default 32 KiB.
    pub max_header_bytes: usize,
    /// JSON body of the 431 over HTTP/1.1, for example with advice; over HTTP/2 it has no body.
    /// Default: none.
    pub oversized_head_json: Option<&'static str>,
    /// Maximum header fields of a request; more get a 431. Default 100.
    pub max_headers: usize,
    /// Maximum time without a byte while the service waits for the request's body. Then the
    /// connection is closed, or over HTTP/2 the request is reset. Default 30 s.
    pub body_read_timeout: Duration,
    /// Maximum open connections, streams included. Further ones get a 503, or with a handshake such
    /// as TLS are closed without a response. Each connection uses a file descriptor. Default
    /// 16,384: admission's default of 10,000 streams, and room for others.
    pub max_connections: usize,
    /// Maximum idle time of a kept-alive connection. Default 60 s, longer than usual proxies wait.
    /// Over HTTP/2 it also bounds the last 16 KiB of a response.
    pub idle_timeout: Duration,
    /// Maximum time during which the client accepts no bytes; then the connection is closed. Over
    /// HTTP/2 each response has this limit too, and is reset. Default 30 s.
    pub write_timeout: Duration,
    /// Maximum bytes that a client may send during a live stream. They are discarded; a client
    /// that sends more is closed. Default 64 KiB.
    pub max_discarded_bytes: usize,
    /// Maximum concurrent requests of one HTTP/2 connection. Default 200.
    pub max_h2_requests: u32,
    /// Idle time before TCP keep-alive probes, which detect a vanished peer. Default 30 s.
    pub tcp_keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT`: maximum time for unacknowledged data (Linux). Default 30 s.
    pub tcp_user_timeout: Option<Duration>,
    /// Maximum duration of a drain; requests and streams left then are aborted. Default 30 s.
    pub drain_timeout: Duration,
    /// Time that a connection without a request stays open during a drain. A request that arrives
    /// in that time is answered with `connection: close`; an incomplete head gets a 503 at its
    /// end. At most half of `drain_timeout`. Default 500 ms.
    pub drain_grace: Duration,
}

impl Default for HttpServerConfig {
    fn default() -> Self {
        HttpServerConfig {
            header_read_timeout: Duration::from_secs(10),
            max_header_bytes: 32 * 1024,
            oversized_head_json: None,
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
