//! HTTP/1.1 connection that sends exact bytes, and functions that wait with a deadline.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Longest wait. Above the interval of 60 s at which the heap is trimmed: tests of memory with
/// fewer than 500 connections depend on that trim.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Awaits a future. Fails after [`DEADLINE`], naming `what` and the caller.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let output = timeout(DEADLINE, future).await;
        output.unwrap_or_else(|_| panic!("{caller}: {what} took longer than {DEADLINE:?}"))
    }
}

/// Waits until `is_so` returns true. Fails after [`DEADLINE`].
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < DEADLINE, "{what}: not true after {DEADLINE:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A connection, of a client or of an upstream.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    pub(crate) socket: TcpStream,
    /// Bytes that were received and not read yet.
    unread: Vec<u8>,
}

/// Head of a request or of a response.
#[derive(Debug, Clone)]
pub(crate) struct HttpHead {
    /// Status of a response; 0 for a request.
    pub(crate) status: u16,
    /// Names, in lower case, and values.
    pub(crate) headers: Vec<(String, String)>,
    /// The head as received, without the empty line.
    pub(crate) text: String,
}

impl HttpHead {
    fn parse(text: String) -> HttpHead {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap();
        let status = first.split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        HttpHead { status, headers, text }
    }

    /// Returns the first value of a header. `name` is in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }
}

/// A complete response.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponse {
    pub(crate) head: HttpHead,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }
}

impl HttpConnection {
    pub(crate) async fn connect(to: SocketAddr) -> HttpConnection {
        let socket = within("connecting", TcpStream::connect(to)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        HttpConnection { socket, unread: Vec::new() }
    }

    /// Uses an accepted or connected socket.
    pub(crate) fn over(socket: TcpStream) -> HttpConnection {
        HttpConnection { socket, unread: Vec::new() }
    }

    /// Connects and sends `GET path` with header lines without line ends.
    pub(crate) async fn get(to: SocketAddr, path: &str, lines: &[&str]) -> HttpConnection {
        let mut client = HttpConnection::connect(to).await;
        client.request("GET", path, lines, "").await;
        client
    }

    /// Sends one request on a new connection and returns the response.
    pub(crate) async fn fetch(
        to: SocketAddr,
        method: &str,
        path: &str,
        lines: &[&str],
        body: &str,
    ) -> HttpResponse {
        let mut client = HttpConnection::connect(to).await;
        client.request(method, path, lines, body).await;
        client.response().await
    }

    /// Sends a request. A body that isn't empty gets a `Content-Length`.
    pub(crate) async fn request(&mut self, method: &str, path: &str, lines: &[&str], body: &str) {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for line in lines {
            text += &format!("{line}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(text + "\r\n" + body).await;
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("sending", self.socket.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Reads more bytes. Returns false at the end of the stream and after a reset.
    async fn read_more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let length = within("reading", self.socket.read(&mut buffer)).await.unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..length]);
        length > 0
    }

    /// Reads a head. Returns `None` if the peer closes before the head is complete.
    pub(crate) async fn try_head(&mut self) -> Option<HttpHead> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.unread[..end]).into_owned();
                self.unread.drain(..end + 4);
                return Some(HttpHead::parse(text));
            }
            if !self.read_more().await {
                return None;
            }
        }
    }

    /// Reads a head. Fails if the peer closes before the head is complete.
    pub(crate) async fn head(&mut self) -> HttpHead {
        self.try_head().await.expect("a head before the end")
    }

    /// Reads `length` bytes, or fewer at the end of the stream.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.unread.len() < length && self.read_more().await {}
        let length = length.min(self.unread.len());
        self.unread.drain(..length).collect()
    }

    /// Reads the next chunk; the last one is empty. Returns `None` if the stream ends before it.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n") {
                let size = std::str::from_utf8(&self.unread[..end]).unwrap();
                let size = usize::from_str_radix(size.split(';').next().unwrap(), 16).unwrap();
                self.unread.drain(..end + 2);
                let mut data = self.take(size + 2).await;
                if data.len() < size + 2 {
                    return None;
                }
                data.truncate(size);
                return Some(data);
            }
            if !self.read_more().await {
                return None;
            }
        }
    }

    /// Reads the next chunk as text. Fails if the stream ends before it.
    pub(crate) async fn event(&mut self) -> String {
        String::from_utf8(self.chunk().await.expect("a chunk before the end")).unwrap()
    }

    /// Reads a response with its body.
    pub(crate) async fn response(&mut self) -> HttpResponse {
        let head = self.head().await;
        let body = match head.header("content-length") {
            Some(length) => self.take(length.parse().unwrap()).await,
            None if head.is_chunked() => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk().await.filter(|chunk| !chunk.is_empty()) {
                    body.extend(chunk);
                }
                body
            }
            None => Vec::new(),
        };
        HttpResponse { head, body }
    }

    /// Reads until the peer closes the connection. Returns all unread bytes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.read_more().await {}
        std::mem::take(&mut self.unread)
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
