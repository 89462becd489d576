//! The clients: one process with many sockets, on one epoll. They take the time at which each has its event.
//!
//! Those that poll ask again at once, from where the answer says: its header is named, and its value goes where the target has `OFFSET`.

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

/// In every event once, and in nothing else that servers send.
const MARK: u8 = b'~';
/// Where the next request begins.
const OFFSET_PLACEHOLDER: &str = "OFFSET";
/// Streams that don't poll have no header that says where to go on.
pub(super) const STREAM: &str = "-";
/// How long nobody hears anything when all have come to rest.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// How long an event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// Those who ask at the same time.
const WAVE: usize = 100;

struct Listener {
    socket: TcpStream,
    /// Of one that polls: what there is of its answer.
    answer: Vec<u8>,
    arrived: Option<u64>,
}

struct Listeners<'a> {
    clients: Vec<Listener>,
    header: &'a str,
    target: &'a str,
    buffer: Vec<u8>,
    bytes: usize,
}

/// `target` is asked for by each; where it has `OFFSET`, what comes first is the part behind `#`.
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
        listeners.clients.push(Listener { socket, answer: Vec::new(), arrived: None });
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
                "some have no event after {EVENT_TIMEOUT:?}"
            );
        }
        let mut said = format!("received {}", listeners.bytes / count);
        let arrived = listeners.clients.iter().filter_map(|client| client.arrived);
        arrived.for_each(|at| said += &format!(" {at}"));
        helper_process::announce(&said)?;
    }
    Ok(ExperimentReport::new("gone"))
}

fn request(socket: &mut TcpStream, target: &str, offset: &str) -> Result<()> {
    let target = target.replace(OFFSET_PLACEHOLDER, offset);
    let request = format!("GET {target} HTTP/1.1\r\nhost: race\r\n\r\n");
    Ok(socket.write_all(request.as_bytes())?)
}

impl Listeners<'_> {
    /// Hears whatever is there, or comes within the time; `false`: nothing did.
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
                client.answer.extend_from_slice(bytes);
                client.request_next(self.header, self.target)?;
            }
        }
        Ok(!ready.is_empty())
    }
}

impl Listener {
    /// If its answer is whole.
    fn request_next(&mut self, header: &str, target: &str) -> Result<()> {
        let end = self.answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let Some(end) = end else { return Ok(()) };
        let head = ResponseHead::parse(&self.answer[..end])?;
        ensure!(head.status == 200, "a poll is answered with {}", self.answer.escape_ascii());
        let length = match head.get("content-length") {
            Some(length) => end + length.parse::<usize>()?,
            None if self.answer.ends_with(b"0\r\n\r\n") => self.answer.len(),
            None => return Ok(()),
        };
        if self.answer.len() < length {
            return Ok(());
        }
        let offset = head.get(header).with_context(|| format!("an answer without {header}"))?;
        request(&mut self.socket, target, offset)?;
        self.answer.clear();
        Ok(())
    }
}
