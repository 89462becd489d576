//! Raw TCP client and strict decoder of chunked bodies.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::test_server::soon;

pub(crate) struct RawClient {
    pub(crate) socket: TcpStream,
    read: Vec<u8>,
}

/// Decoded part of a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DecodedChunks {
    pub(crate) data: Vec<u8>,
    /// The last chunk was received.
    pub(crate) complete: bool,
}

impl RawClient {
    pub(crate) async fn connect(address: SocketAddr) -> RawClient {
        RawClient {
            socket: soon("a connection", TcpStream::connect(address)).await.unwrap(),
            read: Vec::new(),
        }
    }

    /// Connects with a small receive buffer.
    pub(crate) async fn connect_narrow(address: SocketAddr) -> RawClient {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        RawClient { socket: soon("a connection", socket.connect(address)).await.unwrap(), read: Vec::new() }
    }

    /// Connects and sends one request's head.
    pub(crate) async fn ask(address: SocketAddr, request: &str) -> RawClient {
        let mut client = RawClient::connect(address).await;
        client.send(&format!("{request}\r\nhost: test\r\n\r\n")).await;
        client
    }

    pub(crate) async fn send(&mut self, text: &str) {
        soon("a write", self.socket.write_all(text.as_bytes())).await.unwrap();
    }

    /// Reads until `mark` and returns everything up to its end.
    pub(crate) async fn until(&mut self, mark: &str) -> String {
        loop {
            let found = self.read.windows(mark.len()).position(|window| window == mark.as_bytes());
            if let Some(found) = found {
                let rest = self.read.split_off(found + mark.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            let count = soon(mark, self.socket.read_buf(&mut self.read)).await.unwrap();
            assert!(count > 0, "{mark:?} not received: {}", self.read.escape_ascii());
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    pub(crate) async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            let read = soon("more bytes", self.socket.read_buf(&mut self.read)).await.unwrap();
            assert!(read > 0, "closed after {} of {count} bytes", self.read.len());
        }
        let rest = self.read.split_off(count);
        std::mem::replace(&mut self.read, rest)
    }

    /// Reads until the connection is closed or reset.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while soon("the end", self.socket.read_buf(&mut self.read)).await.is_ok_and(|count| count > 0) {}
        std::mem::take(&mut self.read)
    }

    pub(crate) async fn rest_of_chunks(&mut self) -> DecodedChunks {
        decode(&self.rest().await)
    }

    /// Resets the connection, as a crash does.
    pub(crate) fn reset(self) {
        SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Decodes strictly; incomplete chunks are dropped.
pub(crate) fn decode(mut bytes: &[u8]) -> DecodedChunks {
    let mut data = Vec::new();
    loop {
        let Some(line) = bytes.windows(2).position(|window| window == b"\r\n") else {
            return DecodedChunks { data, complete: false };
        };
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        let Some(chunk) = bytes.get(line + 2..line + 2 + size) else {
            return DecodedChunks { data, complete: false };
        };
        let end = &bytes[line + 2 + size..];
        if size == 0 {
            assert_eq!(end, b"\r\n", "nothing comes after the last chunk");
            return DecodedChunks { data, complete: true };
        }
        data.extend_from_slice(chunk);
        match end.strip_prefix(b"\r\n") {
            Some(next) => bytes = next,
            None => return DecodedChunks { data, complete: false },
        }
    }
}
