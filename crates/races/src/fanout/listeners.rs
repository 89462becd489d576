//! Listeners: one process with all client sockets on one epoll. It records when each client
//! receives its event.
//!
//! A client that long-polls sends its next request as soon as it has a reply. The new offset is in
//! the reply's header named `header`, and replaces `OFFSET` in the target.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{Timespec, epoll};

use super::now;
use crate::harness::ExperimentReport;
use crate::helper_process;
use crate::serving::ResponseHead;

/// Byte that occurs once in every event, and nowhere else in the responses.
const MARK: u8 = b'~';
/// Placeholder of the offset in a target.
const OFFSET_PLACEHOLDER: &str = "OFFSET";
/// Value of `header` for SSE clients, which send only one request.
pub(super) const STREAM: &str = "-";
/// If no data arrives for this time, all clients are connected and idle.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// Maximum time without data while clients wait for their event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Replies are read after each group of so many connections.
const WAVE: usize = 100;

/// One client.
struct Listener {
    socket: TcpStream,
    /// Received part of the reply, for a client that long-polls.
    reply: Vec<u8>,
    /// Time at which the event arrived, in nanoseconds. See `now`.
    arrived: Option<u64>,
}

/// All clients, and the buffer into which they read.
struct Listeners<'a> {
    clients: Vec<Listener>,
    header: &'a str,
    target: &'a str,
    buffer: Vec<u8>,
    /// Bytes that all clients have received since the last command.
    bytes: usize,
}

/// Connects `count` clients, all with a request for `target`. Then, for each command, waits until
/// all have an event, and prints the times. If `target` contains `OFFSET`, the part after `#` is
/// the first offset.
pub(super) fn run(count: usize, address: SocketAddr, header: &str, target: &str) -> Result<ExperimentReport> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (target, first) = target.split_once('#').unwrap_or((target, ""));
    let mut listeners =
        Listeners { clients: Vec::new(), header, target, buffer: vec![0; 64 * 1024], bytes: 0 };
    for user in 0..count {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        request(&mut socket, target, first)?;
        socket.set_nonblocking(true)?;
        epoll::add(&poll, &socket, epoll::EventData::new_u64(user as u64), epoll::EventFlags::IN)?;
        listeners.clients.push(Listener { socket, reply: Vec::new(), arrived: None });
        if user % WAVE == 0 {
            listeners.read_ready(&poll, Duration::ZERO)?;
        }
    }
    while listeners.read_ready(&poll, QUIET_TIME)? {}
    helper_process::announce("ready")?;
    while helper_process::next_command().is_some() {
        listeners.bytes = 0;
        listeners.clients.iter_mut().for_each(|client| client.arrived = None);
        helper_process::announce("expecting")?;
        while listeners.clients.iter().any(|client| client.arrived.is_none()) {
            ensure!(
                listeners.read_ready(&poll, EVENT_TIMEOUT)?,
                "some clients have no event after {EVENT_TIMEOUT:?}"
            );
        }
        let mut line = format!("received {}", listeners.bytes / count);
        let arrived = listeners.clients.iter().filter_map(|client| client.arrived);
        arrived.for_each(|at| line += &format!(" {at}"));
        helper_process::announce(&line)?;
    }
    Ok(ExperimentReport::new("gone"))
}

fn request(socket: &mut TcpStream, target: &str, offset: &str) -> Result<()> {
    let target = target.replace(OFFSET_PLACEHOLDER, offset);
    let request = format!("GET {target} HTTP/1.1\r\nhost: race\r\n\r\n");
    Ok(socket.write_all(request.as_bytes())?)
}

impl Listeners<'_> {
    /// Waits up to `within` for data, and reads it. Returns `false` if none arrived.
    fn read_ready(&mut self, poll: impl AsFd, within: Duration) -> Result<bool> {
        let mut ready = Vec::with_capacity(64);
        let within = Timespec::try_from(within)?;
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&within))?;
        for event in &ready {
            let client = &mut self.clients[event.data.u64() as usize];
            let read = match client.socket.read(&mut self.buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            ensure!(read > 0, "a stream ended");
            self.bytes += read;
            let bytes = &self.buffer[..read];
            if bytes.contains(&MARK) {
                client.arrived = Some(now());
            }
            if self.header != STREAM {
                client.reply.extend_from_slice(bytes);
                client.request_next(self.header, self.target)?;
            }
        }
        Ok(!ready.is_empty())
    }
}

impl Listener {
    /// Sends the next request if the reply is complete.
    fn request_next(&mut self, header: &str, target: &str) -> Result<()> {
        let end = self.reply.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let Some(end) = end else { return Ok(()) };
        let head = ResponseHead::parse(&self.reply[..end])?;
        ensure!(head.status == 200, "a poll returned {}", self.reply.escape_ascii());
        let length = match head.get("content-length") {
            Some(length) => end + length.parse::<usize>()?,
            None if self.reply.ends_with(b"0\r\n\r\n") => self.reply.len(),
            None => return Ok(()),
        };
        if self.reply.len() < length {
            return Ok(());
        }
        let offset = head.get(header).with_context(|| format!("a reply has no header {header}"))?;
        request(&mut self.socket, target, offset)?;
        self.reply.clear();
        Ok(())
    }
}
