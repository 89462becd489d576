//! Peer `bare_thread`: one thread that writes the same bytes to one socket after another.

use std::io::{Read, Write};
use std::net::TcpListener;

use anyhow::{Result, ensure};

use super::now;
use crate::harness::ExperimentReport;
use crate::helper_process;

pub(super) const NAME: &str = "bare_thread";

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// Accepts `count` clients. Then, for each command, writes one event of `bytes` bytes to all of
/// them.
pub(super) fn run(count: usize, bytes: usize) -> Result<ExperimentReport> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    helper_process::announce(&format!("listening {}", listener.local_addr()?))?;
    let mut sockets = Vec::new();
    let mut request = [0; 4096];
    for _ in 0..count {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        ensure!(socket.read(&mut request)? > 0, "a client left");
        socket.write_all(HEAD)?;
        sockets.push(socket);
    }
    let mut event = vec![b'x'; bytes];
    event[bytes / 2] = b'~';
    while helper_process::next_command().is_some() {
        let started = now();
        for socket in &mut sockets {
            socket.write_all(&event)?;
        }
        helper_process::announce(&format!("wrote {started}"))?;
    }
    Ok(ExperimentReport::new("gone"))
}
