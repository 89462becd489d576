//! HTTP over a connection that may break at any byte; an answer is whole, or it is none.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Far beyond the long-poll interval and that of keep-alives, as the tests set them.
const SILENCE: Duration = Duration::from_secs(30);
/// Receive buffer of a slow reader, in bytes: small, so that the server has to wait for it.
const NARROW: u32 = 4096;

#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    unread: Vec<u8>,
    /// Whether an answer came by it before.
    pub(crate) is_used: bool,
}

#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Head {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
        let found = lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr) -> io::Result<Self> {
        let socket = timeout(SILENCE, TcpStream::connect(to)).await??;
        socket.set_nodelay(true)?;
        Ok(Connection { socket, unread: Vec::new(), is_used: false })
    }

    /// Opens a connection that takes little before its client reads.
    pub(crate) async fn open_narrow(to: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(NARROW)?;
        let socket = timeout(SILENCE, socket.connect(to)).await??;
        Ok(Connection { socket, unread: Vec::new(), is_used: false })
    }

    pub(crate) async fn ask(&mut self, method: &str, path: &str) -> io::Result<()> {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        timeout(SILENCE, self.socket.write_all(text.as_bytes())).await?
    }

    pub(crate) async fn head(&mut self) -> io::Result<Head> {
        let end = self.find(b"\r\n\r\n").await?;
        let text = String::from_utf8(self.unread.drain(..end + 4).collect()).map_err(io::Error::other)?;
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok(Head { status: status.ok_or_else(|| io::Error::other("no status"))?, text })
    }

    pub(crate) async fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        match head.header("content-length") {
            Some(length) => body = self.take(length.parse().map_err(io::Error::other)?).await?,
            None if head.header("transfer-encoding") == Some("chunked") => {
                while let Some(chunk) = self.chunk().await? {
                    body.extend(chunk);
                }
            }
            None => {}
        }
        self.is_used = true;
        Ok(body)
    }

    /// `None`: that was the last one.
    pub(crate) async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = self.find(b"\r\n").await?;
        let size = std::str::from_utf8(&self.unread[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.ok_or_else(|| io::Error::other("no size of a chunk"))?;
        self.unread.drain(..end + 2);
        let mut chunk = self.take(size + 2).await?;
        chunk.truncate(size);
        Ok((size > 0).then_some(chunk))
    }

    async fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < length {
            self.read().await?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    async fn find(&mut self, part: &[u8]) -> io::Result<usize> {
        let mut looked = 0;
        loop {
            let found = self.unread[looked..].windows(part.len()).position(|window| window == part);
            if let Some(at) = found {
                return Ok(looked + at);
            }
            looked = self.unread.len().saturating_sub(part.len() - 1);
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match timeout(SILENCE, self.socket.read(&mut buffer)).await?? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.unread.extend_from_slice(&buffer[..length]);
                Ok(())
            }
        }
    }
}
