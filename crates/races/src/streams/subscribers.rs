//! Subscribers: one process with thousands of client sockets. It publishes events, and counts those
//! that each subscriber receives.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{Timespec, epoll};

use crate::harness::ExperimentReport;
use crate::helper_process;

/// Number of requests that are sent before their response heads are read.
const WAVE: usize = 100;
/// Pause after a poll that found no data. The process polls instead of blocking in the kernel: over
/// loopback, waking a blocked reader costs CPU time of the server, which is measured. Real clients
/// run on other machines.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Byte that occurs once in every event, and nowhere else in the responses.
const MARK: u8 = b'~';
/// Body of an event.
const EVENT: &str = "{\"price\":1234.5,\"symbol\":\"FBAY\",\"text\":\"~ sixty-four bytes or so\"}";

/// One client, and the number of events that it received.
struct Subscriber {
    socket: TcpStream,
    events: u64,
}

/// Opens `count` streams, then runs the commands `publish N` until the race releases this process.
///
/// A command publishes `N` events, each after all subscribers have received the previous one. Then
/// it prints `received`.
pub(crate) fn run(count: usize, address: SocketAddr, target: &str) -> Result<ExperimentReport> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut subscribers = Vec::with_capacity(count);
    while subscribers.len() < count {
        let wave = subscribers.len()..count.min(subscribers.len() + WAVE);
        for user in wave.clone() {
            subscribers.push(Subscriber { socket: subscribe(address, target, user)?, events: 0 });
        }
        for user in wave {
            let socket = &subscribers[user].socket;
            read_head(socket).with_context(|| format!("reading the response head of stream {user}"))?;
            socket.set_nonblocking(true)?;
            epoll::add(&poll, socket, epoll::EventData::new_u64(user as u64), epoll::EventFlags::IN)?;
        }
    }
    helper_process::announce("ready")?;
    let mut publisher = TcpStream::connect(address)?;
    let mut published = 0;
    while let Some(command) = helper_process::next_command() {
        let Some(events) = command.strip_prefix("publish ").and_then(|events| events.parse::<u64>().ok())
        else {
            bail!("unknown command {command:?}");
        };
        for _ in 0..events {
            publish(&mut publisher)?;
            published += 1;
            receive(&poll, &mut subscribers, published)?;
        }
        helper_process::announce("received")?;
    }
    Ok(ExperimentReport::new("gone"))
}

fn subscribe(address: SocketAddr, target: &str, user: usize) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    let request = format!(
        "GET /{target} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\nx-user-id: user-{user}\r\n\r\n"
    );
    socket.write_all(request.as_bytes())?;
    Ok(socket)
}

fn read_head(mut socket: &TcpStream) -> Result<()> {
    let (mut head, mut bytes) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let read = socket.read(&mut bytes)?;
        ensure!(read > 0, "the server closed after {}", head.escape_ascii());
        head.extend_from_slice(&bytes[..read]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "the server replied {}", head.escape_ascii());
    Ok(())
}

fn publish(publisher: &mut TcpStream) -> Result<()> {
    let request =
        format!("POST /publish HTTP/1.1\r\nhost: race\r\ncontent-length: {}\r\n\r\n{EVENT}", EVENT.len());
    publisher.write_all(request.as_bytes())?;
    let mut answer = [0; 4096];
    let read = publisher.read(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 20"), "publishing returned {}", answer[..read].escape_ascii());
    Ok(())
}

/// Reads until every subscriber has `due` events.
fn receive(poll: impl std::os::fd::AsFd, subscribers: &mut [Subscriber], due: u64) -> Result<()> {
    let (mut bytes, mut ready) = (vec![0; 64 * 1024], Vec::with_capacity(1024));
    let mut waiting = subscribers.len();
    while waiting > 0 {
        ready.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&Timespec::default()))?;
        if ready.is_empty() {
            thread::sleep(POLL_INTERVAL);
        }
        for event in &ready {
            let subscriber = &mut subscribers[event.data.u64() as usize];
            let read = subscriber.socket.read(&mut bytes)?;
            ensure!(read > 0, "a stream ended after {} events", subscriber.events);
            let events = bytes[..read].iter().filter(|&&byte| byte == MARK).count() as u64;
            subscriber.events += events;
            ensure!(subscriber.events <= due, "a stream got an event twice");
            waiting -= usize::from(events > 0 && subscriber.events == due);
        }
    }
    Ok(())
}
