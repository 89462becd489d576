//! Latency of one GET at a time, with client and server on one CPU, compared with a raw socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use anyhow::{Result, ensure};
use forebay_sandbox::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;

use super::contestant::{RedisContestant, VALUE_BYTES, encode, keys};
use super::{ForebayRedis, Fred, MultiplexedRedisRs, Rustis};
use crate::harness::{Better, Contest, Entrant, Scoreboard, Spread, interleave};
use crate::machine::CpuPin;

/// Size of a reply: `$100\r\n`, the value, `\r\n`.
const REPLY_BYTES: usize = 6 + VALUE_BYTES + 2;

pub(crate) fn run(board: &mut Scoreboard, server: &Redis) -> Result<()> {
    let (url, requests) = (&server.url(), board.scaled(20_000));
    let _pinned = CpuPin::to_one_cpu(&[server.pid()])?;
    let mut entrants = [
        client::<ForebayRedis>(url, requests),
        Entrant { name: "raw-socket", turn: Box::new(|| raw_socket(server.addr(), requests)) },
        Entrant { name: "raw-tokio-socket", turn: Box::new(|| raw_tokio_socket(server.addr(), requests)) },
        client::<Rustis>(url, requests),
        client::<MultiplexedRedisRs>(url, requests),
        client::<Fred>(url, requests),
    ];
    let samples = interleave(board.rounds(), &mut entrants)?;
    let p50s: Vec<_> = samples.into_iter().map(|(name, p50s)| (name, Spread::of(p50s))).collect();
    board.table("sequential", "us, p50", &p50s);
    let (ours, (peer, raw)) = (p50s[0].1.median, p50s[1]);
    let contest =
        Contest { ours, peer, theirs: raw.median, unit: "us", better: Better::Lower, goal: 1.0 / 1.15 };
    board.contest("sequential", contest);
    Ok(())
}

/// Returns the median, without the first tenth of the requests, which are the warm-up.
fn p50(latencies_us: Vec<f64>) -> f64 {
    let warm_up = latencies_us.len() / 10;
    Spread::of(latencies_us.into_iter().skip(warm_up)).median
}

fn client<C: RedisContestant>(url: &str, requests: u64) -> Entrant<'_, f64> {
    let turn = move || {
        let url = url.to_owned();
        run_in_task(async move {
            let (mut client, key) = (C::connect(&url).await?, &keys()[0]);
            let mut latencies_us = Vec::with_capacity(requests as usize);
            for _ in 0..requests {
                let started = Instant::now();
                let value = client.get(key).await?;
                latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
                ensure!(value.len() == VALUE_BYTES, "a reply has {} bytes", value.len());
            }
            Ok(p50(latencies_us))
        })
    };
    Entrant { name: C::NAME, turn: Box::new(turn) }
}

/// Runs the work in a spawned task of a current-thread runtime, as a server runs its handlers. The
/// future of `block_on` itself would wait for one more poll of the I/O driver after each wake, and
/// the client's latency would include that.
fn run_in_task(work: impl Future<Output = Result<f64>> + Send + 'static) -> Result<f64> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::spawn(work).await? })
}

fn raw_socket(address: SocketAddr, requests: u64) -> Result<f64> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let (request, mut reply) = (encode(&["GET", &keys()[0]]), [0; 4096]);
    let mut latencies_us = Vec::with_capacity(requests as usize);
    for _ in 0..requests {
        let started = Instant::now();
        socket.write_all(request.as_bytes())?;
        let mut read = 0;
        while read < REPLY_BYTES {
            let more = socket.read(&mut reply[read..])?;
            ensure!(more > 0, "the server closed the connection");
            read += more;
        }
        latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok(p50(latencies_us))
}

fn raw_tokio_socket(address: SocketAddr, requests: u64) -> Result<f64> {
    run_in_task(async move {
        let mut socket = tokio::net::TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (request, mut reply) = (encode(&["GET", &keys()[0]]), [0; 4096]);
        let mut latencies_us = Vec::with_capacity(requests as usize);
        for _ in 0..requests {
            let started = Instant::now();
            socket.write_all(request.as_bytes()).await?;
            let mut read = 0;
            while read < REPLY_BYTES {
                let more = socket.read(&mut reply[read..]).await?;
                ensure!(more > 0, "the server closed the connection");
                read += more;
            }
            latencies_us.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(p50(latencies_us))
    })
}
