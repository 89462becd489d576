//! HTTP/1.1 client connection. If it breaks at any byte, the current call returns an error.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longest wait for a byte. Far longer than the long-polls and keep-alives in the settings.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Receive buffer of a slow client, in bytes. Small, so that the server must wait for the client.
const SMALL_RECEIVE_BUFFER: u32 = 4096;

/// A connection for one request after another.
#[derive(Debug)]
pub(crate) struct OracleConnection {
    socket: TcpStream,
    unread: Vec<u8>,
    /// Whether a whole response was read from it.
    pub(crate) is_used: bool,
}

/// Status line and headers of a response.
#[derive(Debug)]
pub(crate) struct OracleResponseHead {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl OracleResponseHead {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let found = lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

impl OracleConnection {
    /// Connects.
    pub(crate) async fn open(to: SocketAddr) -> io::Result<Self> {
        let socket = timeout(READ_TIMEOUT, TcpStream::connect(to)).await??;
        socket.set_nodelay(true)?;
        Ok(OracleConnection { socket, unread: Vec::new(), is_used: false })
    }

    /// Connects with a small receive buffer.
    pub(crate) async fn open_slow(to: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(SMALL_RECEIVE_BUFFER)?;
        let socket = timeout(READ_TIMEOUT, socket.connect(to)).await??;
        Ok(OracleConnection { socket, unread: Vec::new(), is_used: false })
    }

    /// Sends a request without a body.
    pub(crate) async fn send(&mut self, method: &str, path: &str) -> io::Result<()> {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        timeout(READ_TIMEOUT, self.socket.write_all(text.as_bytes())).await?
    }

    /// Reads the head of a response.
    pub(crate) async fn read_head(&mut self) -> io::Result<OracleResponseHead> {
        let end = self.find(b"\r\n\r\n").await?;
        let text = String::from_utf8(self.unread.drain(..end + 4).collect()).map_err(io::Error::other)?;
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(OracleResponseHead {
            status: status.ok_or_else(|| io::Error::other("the response has no status"))?,
            text,
        })
    }

    /// Reads the whole body of a response.
    pub(crate) async fn read_body(&mut self, head: &OracleResponseHead) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        match head.header("content-length") {
            Some(length) => body = self.take(length.parse().map_err(io::Error::other)?).await?,
            None if head.header("transfer-encoding") == Some("chunked") => {
                while let Some(chunk) = self.read_chunk().await? {
                    body.extend(chunk);
                }
            }
            None => {}
        }
        self.is_used = true;
        Ok(body)
    }

    /// Reads a chunk of a chunked body. `None`: the body has ended.
    pub(crate) async fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = self.find(b"\r\n").await?;
        let size = std::str::from_utf8(&self.unread[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.ok_or_else(|| io::Error::other("a chunk without a size"))?;
        self.unread.drain(..end + 2);
        let mut chunk = self.take(size + 2).await?;
        chunk.truncate(size);
        Ok((size > 0).then_some(chunk))
    }

    /// Reads exactly `length` bytes.
    async fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.read().await?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    /// Reads until `unread` contains `part`, and returns its index.
    async fn find(&mut self, part: &[u8]) -> io::Result<usize> {
        let mut searched = 0;
        loop {
            let found = self.unread[searched..].windows(part.len()).position(|window| window == part);
            if let Some(at) = found {
                return Ok(searched + at);
            }
            searched = self.unread.len().saturating_sub(part.len() - 1);
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match timeout(READ_TIMEOUT, self.socket.read(&mut buffer)).await?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.unread.extend_from_slice(&buffer[..length]);
                Ok(())
            }
        }
    }
}
