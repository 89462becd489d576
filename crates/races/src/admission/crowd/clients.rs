//! Clients: one process that opens all streams of the crowd, a hundred at a time.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::servers::{EVENT, PER_USER};
use crate::harness::{ExperimentReport, Spread};

/// Number of streams that are opened at once.
const WAVE: usize = 100;
/// Number of waves that are opened before the first measurement, so that one-time work of the
/// servers doesn't count. They stay open: the servers would count closed ones for a while.
const WARM_UP_WAVES: usize = 2;
/// Number of streams that aren't measured.
pub(crate) const WARM_UP_STREAMS: u64 = (WARM_UP_WAVES * WAVE) as u64;
/// Maximum bytes of a response head and the first event.
const MAX_RESPONSE_BYTES: usize = 4096;

/// An open stream, and the time from its first SYN to the first byte of the response.
struct CrowdStream {
    socket: TcpStream,
    first_byte_ms: f64,
}

/// Opens [`WARM_UP_STREAMS`] and `count` streams, and keeps all of them open. Then checks that one
/// more request is refused. Reports the median times of the first measured wave and of the last.
pub(crate) fn run(address: SocketAddr, count: usize) -> Result<ExperimentReport> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut early = Vec::new();
        for wave in 0..WARM_UP_WAVES {
            early.extend(open_wave(address, &format!("early-{wave}"), 0..WAVE).await?);
        }
        let (mut sockets, mut medians_ms) = (Vec::with_capacity(count), Vec::new());
        while sockets.len() < count {
            let wave = sockets.len()..count.min(sockets.len() + WAVE);
            let streams = open_wave(address, "user", wave).await?;
            medians_ms.push(Spread::of(streams.iter().map(|stream| stream.first_byte_ms)).median);
            sockets.extend(streams.into_iter().map(|stream| stream.socket));
        }
        expect_refusal(address).await?;
        drop(early);
        let [first, .., last] = medians_ms[..] else { bail!("{count} streams are fewer than two waves") };
        Ok(ExperimentReport::new("open").with("first_ms", first).with("last_ms", last))
    })
}

/// Opens streams concurrently, and waits for the first event of each.
async fn open_wave(address: SocketAddr, user: &str, wave: Range<usize>) -> Result<Vec<CrowdStream>> {
    let mut opening = JoinSet::new();
    for at in wave {
        let user = format!("{user}-{}", at / PER_USER as usize);
        opening.spawn(async move {
            let started = Instant::now();
            let (socket, response, first_byte) = request(address, &user).await?;
            let first_byte_ms = (first_byte - started).as_secs_f64() * 1e3;
            let is_stream = response.starts_with(b"HTTP/1.1 200 ");
            ensure!(is_stream, "stream {at} got {}", response.escape_ascii());
            Ok(CrowdStream { socket, first_byte_ms })
        });
    }
    opening.join_all().await.into_iter().collect()
}

/// Checks that a request beyond the total gets a 503.
async fn expect_refusal(address: SocketAddr) -> Result<()> {
    let (_socket, response, _) = request(address, "newcomer").await?;
    let is_refused = response.starts_with(b"HTTP/1.1 503 ");
    ensure!(is_refused, "the request beyond the total got {}", response.escape_ascii());
    Ok(())
}

/// Sends a request. Returns the connection, the bytes that arrived until they contain an event or
/// the head of a refusal, and when the first of them arrived.
async fn request(address: SocketAddr, user: &str) -> Result<(TcpStream, Vec<u8>, Instant)> {
    let mut socket = TcpStream::connect(address).await.context("connecting")?;
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nx-user-id: {user}\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let (mut response, mut first_byte) = (Vec::new(), None);
    let has = |response: &[u8], text: &[u8]| response.windows(text.len()).any(|window| window == text);
    while !has(&response, EVENT.as_bytes()) {
        let read = socket.read_buf(&mut response).await?;
        first_byte.get_or_insert_with(Instant::now);
        let size = response.len();
        ensure!(read > 0, "the server closed after {}", response.escape_ascii());
        ensure!(size <= MAX_RESPONSE_BYTES, "no event in {size} bytes");
        if !response.starts_with(b"HTTP/1.1 200 ") && has(&response, b"\r\n\r\n") {
            break;
        }
    }
    Ok((socket, response, first_byte.context("the server sent nothing")?))
}
