//! HTTP client with little overhead: one blocking socket. It reads bodies in large parts, and
//! doesn't store them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Size of the read buffer.
const READ_BYTES: usize = 256 * 1024;
/// Maximum time without data from the server.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// One connection to a server, for sequential requests.
pub(crate) struct HttpConnection {
    address: SocketAddr,
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Range of the buffer that is received and not consumed.
    unread: std::ops::Range<usize>,
}

/// Head of a response.
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl ResponseHead {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Returns a header. Fails if it is missing.
    pub(crate) fn require(&self, name: &str) -> Result<&str> {
        self.get(name).with_context(|| format!("a response with status {} has no header {name}", self.status))
    }

    /// Parses a head: all bytes up to the empty line.
    pub(crate) fn parse(bytes: &[u8]) -> Result<ResponseHead> {
        let text = std::str::from_utf8(bytes)?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        Ok(ResponseHead { status: status.context("a response has no status")?, headers: headers.collect() })
    }
}

impl HttpConnection {
    pub(crate) fn open(address: SocketAddr) -> Result<HttpConnection> {
        let socket = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(HttpConnection { address, socket, buffer: vec![0; READ_BYTES], unread: 0..0 })
    }

    /// Sends a GET, reads the complete response, and returns its status.
    pub(crate) fn fetch(&mut self, target: &str) -> Result<u16> {
        let head = self.get(target)?;
        self.read_body(&head, |_| {})?;
        Ok(head.status)
    }

    /// Sends a GET, and reads the head of the response.
    pub(crate) fn get(&mut self, target: &str) -> Result<ResponseHead> {
        self.send("GET", target)?;
        self.read_head()
    }

    pub(crate) fn send(&mut self, method: &str, target: &str) -> Result<()> {
        let request = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address);
        Ok(self.socket.write_all(request.as_bytes())?)
    }

    pub(crate) fn read_head(&mut self) -> Result<ResponseHead> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let line = self.read_line()?;
            head.extend_from_slice(&line);
            ensure!(head.len() < 64 * 1024, "a response head has more than 64 KiB");
        }
        ResponseHead::parse(&head)
    }

    /// Reads the body that follows a head, calls `take` for each part, and returns the length.
    pub(crate) fn read_body(&mut self, head: &ResponseHead, mut take: impl FnMut(&[u8])) -> Result<u64> {
        if let Some(length) = head.get("content-length") {
            let length = length.parse()?;
            self.read_exactly(length, &mut take)?;
            return Ok(length as u64);
        }
        if head.get("transfer-encoding") != Some("chunked") {
            return Ok(0);
        }
        let mut total = 0;
        loop {
            let size = self.read_chunk_size()?;
            self.read_exactly(size, &mut take)?;
            total += size as u64;
            ensure!(self.read_line()? == b"\r\n", "a chunk has no CRLF at its end");
            if size == 0 {
                return Ok(total);
            }
        }
    }

    /// Sets the maximum time without data from the server.
    pub(crate) fn set_read_timeout(&self, patience: Duration) -> Result<()> {
        Ok(self.socket.set_read_timeout(Some(patience))?)
    }

    /// Reads the next chunk of a stream. It is empty at the end of the stream.
    pub(crate) fn next_chunk(&mut self) -> Result<Vec<u8>> {
        let (size, mut chunk) = (self.read_chunk_size()?, Vec::new());
        self.read_exactly(size, &mut |bytes: &[u8]| chunk.extend_from_slice(bytes))?;
        ensure!(self.read_line()? == b"\r\n", "a chunk has no CRLF at its end");
        Ok(chunk)
    }

    /// Reads the next bytes of a stream, including the framing of chunks.
    pub(crate) fn next_bytes(&mut self) -> Result<&[u8]> {
        if self.unread.is_empty() {
            self.fill_buffer()?;
        }
        let unread = std::mem::take(&mut self.unread);
        Ok(&self.buffer[unread])
    }

    /// Reads the size of the next chunk.
    fn read_chunk_size(&mut self) -> Result<usize> {
        let line = self.read_line()?;
        Ok(usize::from_str_radix(std::str::from_utf8(&line)?.trim_end(), 16)?)
    }

    fn read_exactly(&mut self, mut length: usize, take: &mut impl FnMut(&[u8])) -> Result<()> {
        while length > 0 {
            if self.unread.is_empty() {
                self.fill_buffer()?;
            }
            let taken = length.min(self.unread.len());
            take(&self.buffer[self.unread.start..self.unread.start + taken]);
            self.unread.start += taken;
            length -= taken;
        }
        Ok(())
    }

    fn read_line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            if self.unread.is_empty() {
                self.fill_buffer()?;
            }
            let unread = &self.buffer[self.unread.clone()];
            let end = unread.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let taken = end.unwrap_or(unread.len());
            line.extend_from_slice(&unread[..taken]);
            self.unread.start += taken;
            if end.is_some() {
                return Ok(line);
            }
        }
    }

    fn fill_buffer(&mut self) -> Result<()> {
        let read = self.socket.read(&mut self.buffer)?;
        ensure!(read > 0, "the server closed the connection");
        self.unread = 0..read;
        Ok(())
    }
}
