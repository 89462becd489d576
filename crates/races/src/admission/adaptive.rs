//! Adaptive limit of a gate in front of an upstream that slows down beyond its capacity, against
//! the best of some fixed limits. The gate is not told the capacity, which halves and doubles.
//!
//! The figure is the goodput: streams that end within [`DEADLINE`], per second. Clients outnumber
//! the capacity, and try again after a refusal. The adaptive gate runs once through all phases; its
//! goodput counts after [`Timing::adaptation`] of each phase.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_admission::{AdaptiveSignals, Admission, Builder, Class, Identifier};
use forebay_gate::{Config, ReverseProxy, UpstreamConfig};
use forebay_quota::Quota;
use forebay_stream::{HttpServer, HttpServerConfig};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::slowing_upstream::{LONG, SHORT, SlowingUpstream, StreamLength};
use crate::harness::{Better, Contest, Scoreboard};

/// Cases, in the order of the phases, with the capacity of each phase.
pub(crate) const PHASES: [(&str, u32); 3] =
    [("adaptive", 64), ("adaptive_half", 32), ("adaptive_double", 64)];
/// Case with long streams and its capacity. A lower limit ends none of them.
pub(crate) const LONG_CASE: (&str, u32) = ("adaptive_long", 64);
const CLIENTS: usize = 200;
/// Lowest value of the adaptive limit.
const FLOOR: u32 = 4;
/// Time of a short stream, or of a piece of a long one, from which it is of no use: twice the mean
/// without overload, and a bit.
const DEADLINE: Duration = Duration::from_millis(500);
/// Time after which a refused client tries again.
const RETRY: Duration = Duration::from_millis(50);

/// Duration of the parts of the race.
struct Timing {
    /// Until the goodput of a fixed limit counts, and how long it does.
    warm_up: Duration,
    fixed: Duration,
    /// Until the goodput of the adaptive limit counts after a change, and how long it does.
    adaptation: Duration,
    adaptive: Duration,
}

pub(crate) fn run(board: &mut Scoreboard) -> Result<()> {
    let millis = |full| Duration::from_millis(board.scaled(full));
    let timing = Timing {
        warm_up: millis(500),
        fixed: millis(1_500),
        adaptation: millis(4_000),
        adaptive: millis(5_000),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut best: Vec<(u32, f64)> = Vec::new();
        for (_, capacity) in PHASES {
            if best.iter().all(|(known, _)| *known != capacity) {
                best.push((capacity, best_fixed(capacity, SHORT, &timing).await?));
            }
        }
        let ours = adaptive(&PHASES, SHORT, &timing).await?;
        for ((case, capacity), ours) in PHASES.into_iter().zip(ours) {
            let theirs = best.iter().find(|(known, _)| *known == capacity).map_or(0.0, |(_, best)| *best);
            let (better, goal) = (Better::Higher, 0.9);
            board.contest(case, Contest { ours, peer: "fixed", theirs, unit: "streams/s", better, goal });
        }
        Ok(())
    })
}

/// Long streams: pieces per second that arrive in time.
pub(crate) fn run_long(board: &mut Scoreboard) -> Result<()> {
    let millis = |full| Duration::from_millis(board.scaled(full));
    let timing = Timing {
        warm_up: millis(1_000),
        fixed: millis(3_000),
        adaptation: millis(30_000),
        adaptive: millis(20_000),
    };
    let (case, capacity) = LONG_CASE;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (theirs, ours) = runtime.block_on(async {
        let best = best_fixed(capacity, LONG, &timing).await?;
        let ours = adaptive(&[LONG_CASE], LONG, &timing).await?;
        anyhow::Ok((best, ours.into_iter().sum()))
    })?;
    let (better, goal) = (Better::Higher, 0.9);
    board.contest(case, Contest { ours, peer: "fixed", theirs, unit: "pieces/s", better, goal });
    Ok(())
}

/// Returns the goodput of the best fixed limit.
async fn best_fixed(capacity: u32, length: StreamLength, timing: &Timing) -> Result<f64> {
    let mut best = 0.0;
    for limit in [capacity / 2, capacity * 3 / 4, capacity, capacity * 5 / 4, capacity * 2, 1_000] {
        let upstream = SlowingUpstream::start(capacity, length).await?;
        let contest = Crowd::start(&upstream, Admission::builder().total(limit)).await?;
        sleep(timing.warm_up).await;
        let goodput = contest.goodput(timing.fixed).await;
        eprintln!("  capacity {capacity}, fixed limit {limit}: {goodput:.0} in time per second");
        best = f64::max(best, goodput);
    }
    Ok(best)
}

/// Returns the goodput of the adaptive limit in each phase.
async fn adaptive(phases: &[(&str, u32)], length: StreamLength, timing: &Timing) -> Result<Vec<f64>> {
    let upstream = SlowingUpstream::start(phases[0].1, length).await?;
    let builder = Admission::builder().adaptive(FLOOR, AdaptiveSignals::StartsAndProcess);
    let contest = Crowd::start(&upstream, builder).await?;
    let mut goodputs = Vec::new();
    for (case, capacity) in phases.iter().copied() {
        upstream.set_capacity(capacity);
        let adapting = contest.goodput(timing.adaptation).await;
        let goodput = contest.goodput(timing.adaptive).await;
        let limit = contest.admission.status_listing(0).adaptive.map_or(0, |adaptive| adaptive.limit);
        eprintln!(
            "  {case}, capacity {capacity}: {adapting:.0} in time per second while it adapts, then {goodput:.0}; limit {limit}"
        );
        goodputs.push(goodput);
    }
    Ok(goodputs)
}

/// A gate and its clients. Dropping it ends them.
struct Crowd {
    admission: Admission,
    good: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Crowd {
    async fn start(upstream: &SlowingUpstream, builder: Builder) -> Result<Self> {
        let admission = builder.class(Class::ANONYMOUS, 100).build(Quota::local());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let config = Config::new(UpstreamConfig::new(upstream.address.to_string().parse()?));
        let service = ReverseProxy::new(config, Identifier::new()).service(admission.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            HttpServer::new(listener, service, HttpServerConfig::default()).run(std::future::pending()).await;
        });
        let good = Arc::new(AtomicU64::new(0));
        for _ in 0..CLIENTS {
            let good = Arc::clone(&good);
            tasks.spawn(async move {
                if let Err(error) = run_client(address, &good).await {
                    eprintln!("  client failed: {error:#}");
                }
            });
        }
        Ok(Crowd { admission, good, _tasks: tasks })
    }

    /// Returns the streams or pieces per second that are in time, for `time` from now.
    async fn goodput(&self, time: Duration) -> f64 {
        let (before, started) = (self.good.load(Ordering::Relaxed), Instant::now());
        sleep(time).await;
        (self.good.load(Ordering::Relaxed) - before) as f64 / started.elapsed().as_secs_f64()
    }
}

/// Opens one stream after the other on one connection.
async fn run_client(address: SocketAddr, good: &AtomicU64) -> Result<()> {
    sleep(RETRY.mul_f64(fastrand::f64())).await; // so that not all clients start at once
    let mut connection = BufReader::new(TcpStream::connect(address).await?);
    loop {
        let started = Instant::now();
        connection.write_all(b"GET /stream HTTP/1.1\r\nHost: race\r\n\r\n").await?;
        if !read_response(&mut connection, started, good).await? {
            sleep(RETRY).await;
        }
    }
}

/// Reads a response to its end, and counts the pieces of a stream that arrive in time: the first
/// one after the request, the next ones after the one before. Returns whether it is a stream.
async fn read_response(
    connection: &mut BufReader<TcpStream>,
    mut before: Instant,
    good: &AtomicU64,
) -> Result<bool> {
    let (mut line, mut is_stream, mut length) = (String::new(), None, 0);
    loop {
        line.clear();
        connection.read_line(&mut line).await?;
        let text = line.trim_end().to_ascii_lowercase();
        if is_stream.is_none() {
            is_stream = Some(text.starts_with("http/1.1 200"));
        } else if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse().context("content-length")?;
        } else if text.is_empty() {
            break;
        }
    }
    if is_stream != Some(true) {
        connection.read_exact(&mut vec![0; length]).await?;
        return Ok(false);
    }
    for _ in 0..length {
        connection.read_u8().await?;
        let now = Instant::now();
        good.fetch_add(u64::from(now - before <= DEADLINE), Ordering::Relaxed);
        before = now;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_pieces_in_time_are_counted() {
        let length = StreamLength { pieces: 4, work: Duration::from_millis(1) };
        let slow = StreamLength { pieces: 2, work: DEADLINE * 2 };
        for (length, expected) in [(length, 4), (slow, 0)] {
            let upstream = SlowingUpstream::start(4, length).await.unwrap();
            let good = AtomicU64::new(0);
            let mut connection = BufReader::new(TcpStream::connect(upstream.address).await.unwrap());
            connection.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            assert!(read_response(&mut connection, Instant::now(), &good).await.unwrap());
            assert_eq!(good.load(Ordering::Relaxed), expected);
        }
    }
}
