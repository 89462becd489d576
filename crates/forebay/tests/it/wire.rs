//! A client that sees every byte, and so can be as rude or as exact as a test wants.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// Far beyond what anything here takes on a busy machine; reaching it is a failure.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Fails the test, rather than hang.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let answer = timeout(DEADLINE, future).await;
        answer.unwrap_or_else(|_| panic!("{place}: {what} took longer than {DEADLINE:?}"))
    }
}

/// Asks until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < DEADLINE, "{what}: still not so after {DEADLINE:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    unread: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Head {
    fn parse(text: String) -> Head {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap();
        let status = first.split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
            .collect();
        Head { status, headers, text }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_chunked(&self) -> bool {
        self.header("transfer-encoding") == Some("chunked")
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Client {
        let socket = within("connecting", TcpStream::connect(to)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Client { socket, unread: Vec::new() }
    }

    pub(crate) fn over(socket: TcpStream) -> Client {
        Client { socket, unread: Vec::new() }
    }

    /// `GET path` with these lines, each without its end.
    pub(crate) async fn get(to: SocketAddr, path: &str, lines: &[&str]) -> Client {
        let mut client = Client::connect(to).await;
        client.request("GET", path, lines, "").await;
        client
    }

    /// One question, one answer, one connection.
    pub(crate) async fn ask(to: SocketAddr, method: &str, path: &str, lines: &[&str], body: &str) -> Answer {
        let mut client = Client::connect(to).await;
        client.request(method, path, lines, body).await;
        client.answer().await
    }

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

    /// Nothing at the end of the stream, and nothing more after a reset.
    async fn read_more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let length = within("reading", self.socket.read(&mut buffer)).await.unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..length]);
        length > 0
    }

    /// None: the peer closed before it said a whole one.
    pub(crate) async fn try_head(&mut self) -> Option<Head> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let text = String::from_utf8(self.unread[..end].to_vec()).unwrap();
                self.unread.drain(..end + 4);
                return Some(Head::parse(text));
            }
            if !self.read_more().await {
                return None;
            }
        }
    }

    pub(crate) async fn head(&mut self) -> Head {
        self.try_head().await.expect("a head before the end")
    }

    /// Exactly so many bytes, or fewer at the end.
    pub(crate) async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.unread.len() < length && self.read_more().await {}
        let length = length.min(self.unread.len());
        self.unread.drain(..length).collect()
    }

    /// The next chunk; empty is the last. None: the stream broke off before it.
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

    /// The chunk's text.
    pub(crate) async fn event(&mut self) -> String {
        String::from_utf8(self.chunk().await.expect("a chunk before the end")).unwrap()
    }

    pub(crate) async fn answer(&mut self) -> Answer {
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
        Answer { head, body }
    }

    /// Reads until the peer closes, and gives what came before.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.read_more().await {}
        std::mem::take(&mut self.unread)
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
