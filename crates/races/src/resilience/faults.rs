//! Experiments: each causes one fault, and reports what happens to the requests.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_sandbox::Redis;
use forebay_testkit::{Direction, Proxy};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::calls::{drop_after_polls, first_reply, ms, within};
use crate::harness::{ExperimentReport, Spread};
use crate::machine::resident_bytes;
use crate::redis::contestant::{RedisContestant, fill, keys, send_command};

/// Time after which a request counts as hanging: three times the default deadline of our client. No
/// other client has a longer one; rustis and fred have none.
const HANG_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after a fault in which a client must get a reply. Otherwise it counts as broken.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Length of a short outage, such as a restart.
const OUTAGE: Duration = Duration::from_millis(200);
/// Number of requests that are open during the fault.
const OPEN_REQUESTS: usize = 1_000;

pub(super) fn experiment<C: RedisContestant>(fault: &str) -> Result<ExperimentReport> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(async {
        match fault {
            "frozen" => frozen::<C>().await,
            "killed" => killed::<C>().await,
            "rejected" => rejected::<C>().await,
            "reconnect" => reconnect::<C>().await,
            "abandoned" => abandoned::<C>().await,
            "cancelled" => cancelled::<C>().await,
            "huge" => huge::<C>().await,
            _ => bail!("unknown fault {fault}"),
        }
    });
    // A client that hangs must not keep the process alive.
    runtime.shutdown_background();
    report
}

/// Sends 1,000 GETs to a frozen server. Reports whether each fails in time, and whether the client
/// works again afterwards.
async fn frozen<C: RedisContestant>() -> Result<ExperimentReport> {
    let (server, client, key) = start::<C>().await?;
    server.freeze();
    let started = Instant::now();
    let mut gets = JoinSet::new();
    for _ in 0..OPEN_REQUESTS {
        let (mut client, key) = (client.clone(), key.clone());
        gets.spawn(async move { client.get(&key).await.is_err().then(|| started.elapsed()) });
    }
    let failed: Vec<_> = within(HANG_TIMEOUT, gets).await?.into_iter().flatten().collect();
    server.thaw();
    let thawed = Instant::now();
    let works = first_reply(client, &key, RECOVERY_TIMEOUT).await;

    let result = match (failed.len(), works) {
        (OPEN_REQUESTS, Some(_)) => "fails-in-time",
        (OPEN_REQUESTS, None) => "fails-in-time-and-stays-broken",
        (_, Some(_)) => "hangs",
        (_, None) => "hangs-and-stays-broken",
    };
    let last = failed.into_iter().map(ms).reduce(f64::max);
    Ok(ExperimentReport::new(result)
        .with_some("last_failure_ms", last)
        .with_some("works_after_ms", works.map(|at| ms(at - thawed))))
}

/// Kills the server after it has run and saved 1,000 INCRs, and before the client has the replies.
/// Reports whether each INCR fails at once, and whether the client sent any again, which ran twice.
async fn killed<C: RedisContestant>() -> Result<ExperimentReport> {
    let server = Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start()?;
    let proxy = Proxy::start(server.addr());
    let client = C::connect(&format!("redis://{}", proxy.addr())).await?;
    proxy.stall(Direction::ToClient);
    let mut incrs = JoinSet::new();
    for key in 0..OPEN_REQUESTS {
        let mut client = client.clone();
        incrs.spawn(async move { (client.incr(&key.to_string()).await.is_ok(), Instant::now()) });
    }
    while number(&server, &["DBSIZE"])? < OPEN_REQUESTS {
        sleep(Duration::from_millis(1)).await;
    }
    server.kill();
    let died = Instant::now();
    proxy.refuse();
    proxy.cut();
    sleep(OUTAGE).await;
    server.revive()?;
    proxy.resume();
    proxy.accept();
    let ended = within(Duration::from_secs(8), incrs).await?;

    let (sent_again, hung) =
        (ended.iter().filter(|(answered, _)| *answered).count(), OPEN_REQUESTS - ended.len());
    let last_failure =
        ended.iter().filter(|(answered, _)| !answered).map(|(_, at)| ms(*at - died)).reduce(f64::max);
    let ran_twice = number(&server, &["EVAL", RAN_TWICE, "0"])?;
    let result = match (ran_twice, hung, last_failure) {
        (1.., ..) => "runs-twice",
        (0, 1.., _) => "hangs",
        (0, 0, Some(last)) if last < ms(OUTAGE) => "fails-at-once",
        (0, 0, _) => "fails-late",
    };
    Ok(ExperimentReport::new(result)
        .with_some("last_failure_ms", last_failure)
        .with("sent_again", sent_again as f64)
        .with("hung", hung as f64)
        .with("ran_twice", ran_twice as f64))
}

/// Script that counts the keys with a value above 1.
const RAN_TWICE: &str = "local n = 0 for _, key in ipairs(redis.call('KEYS', '*')) do \
     if tonumber(redis.call('GET', key)) > 1 then n = n + 1 end end return n";

/// Sends a command over a plain socket, not with a contestant. Returns its integer reply.
fn number(server: &Redis, command: &[&str]) -> Result<usize> {
    let reply = send_command(&mut TcpStream::connect(server.addr())?, command)?;
    let number = reply.strip_prefix(':').and_then(|number| number.trim_end().parse().ok());
    number.with_context(|| format!("{} returned {reply:?}", command[0]))
}

/// Sends GETs while the server is down. Reports how soon each is rejected.
async fn rejected<C: RedisContestant>() -> Result<ExperimentReport> {
    let (server, mut client, key) = start::<C>().await?;
    server.kill();
    sleep(OUTAGE).await;
    let mut rejections_us = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        match timeout(Duration::from_secs(2), client.get(&key)).await {
            Ok(Ok(_)) => bail!("a killed server replied"),
            Ok(Err(_)) => rejections_us.push(started.elapsed().as_secs_f64() * 1e6),
            Err(_) => return Ok(ExperimentReport::new("waits").with("rejected", rejections_us.len() as f64)),
        }
        sleep(Duration::from_millis(10)).await;
    }
    let Spread { median, max, .. } = Spread::of(rejections_us);
    Ok(ExperimentReport::new("rejects").with("median_us", median).with("max_us", max))
}

/// Reports the time from the moment when a server listens again, after a short outage, to the first
/// reply.
async fn reconnect<C: RedisContestant>() -> Result<ExperimentReport> {
    let (server, client, key) = start::<C>().await?;
    let mut waits_ms = Vec::new();
    for _ in 0..3 {
        server.kill();
        let (asking, key) = (client.clone(), key.clone());
        let answer = tokio::spawn(async move { first_reply(asking, &key, OUTAGE + RECOVERY_TIMEOUT).await });
        sleep(OUTAGE).await;
        let address = server.addr();
        let listening = std::thread::spawn(move || {
            while TcpStream::connect(address).is_err() {
                std::thread::sleep(Duration::from_micros(200));
            }
            Instant::now()
        });
        server.revive()?;
        let back = listening.join().expect("waiting for a port does not panic");
        match answer.await? {
            Some(at) => waits_ms.push(ms(at.saturating_duration_since(back))),
            None => return Ok(ExperimentReport::new("never").with("reconnected", waits_ms.len() as f64)),
        }
    }
    let Spread { median, max, .. } = Spread::of(waits_ms);
    Ok(ExperimentReport::new("reconnects").with("median_ms", median).with("max_ms", max))
}

/// Sends 200,000 GETs to a frozen server, and drops each after one poll. Reports by how much the
/// memory of the process grew.
async fn abandoned<C: RedisContestant>() -> Result<ExperimentReport> {
    let (server, mut client, key) = start::<C>().await?;
    server.freeze();
    let (before, mut refused) = (resident_bytes()?, 0_u64);
    for _ in 0..200_000 {
        refused += u64::from(drop_after_polls(1, client.get(&key)).await.is_some());
        yield_now().await;
    }
    let grew = resident_bytes()?.saturating_sub(before);
    server.thaw();
    let thawed = Instant::now();
    let works = first_reply(client, &key, RECOVERY_TIMEOUT).await;
    Ok(ExperimentReport::new(if works.is_some() { "works-after" } else { "stays-broken" })
        .with("grew_mib", grew as f64 / f64::from(1 << 20))
        .with("refused", refused as f64)
        .with_some("works_after_ms", works.map(|at| ms(at - thawed))))
}

/// Sends 100,000 GETs, and drops a third of them after a few polls. Reports whether any other GET
/// gets a wrong reply.
async fn cancelled<C: RedisContestant>() -> Result<ExperimentReport> {
    const TASKS: u64 = 64;
    const REQUESTS: u64 = 100_000;
    let (server, client, _) = start::<C>().await?;
    let mut socket = TcpStream::connect(server.addr())?;
    for key in keys() {
        ensure!(send_command(&mut socket, &["SET", &key, &key])? == "+OK\r\n", "SET {key} failed");
    }
    let mut tasks = JoinSet::new();
    for seed in 0..TASKS {
        let (mut client, keys, mut random) = (client.clone(), keys(), fastrand::Rng::with_seed(seed));
        tasks.spawn(async move {
            let (mut wrong, mut failed, mut dropped) = (0_u64, 0_u64, 0_u64);
            for _ in 0..REQUESTS.div_ceil(TASKS) {
                let key = &keys[random.usize(..keys.len())];
                let polls = if random.u32(..3) == 0 { 1 + random.u32(..8) } else { u32::MAX };
                let answer = match polls {
                    u32::MAX => Some(client.get(key).await),
                    polls => drop_after_polls(polls, client.get(key)).await,
                };
                match answer {
                    Some(Ok(value)) => wrong += u64::from(value != *key),
                    Some(Err(_)) => failed += 1,
                    None => dropped += 1,
                }
            }
            [wrong, failed, dropped]
        });
    }
    let ended = within(HANG_TIMEOUT, tasks).await?;
    let sum = |index: usize| ended.iter().map(|counts| counts[index]).sum::<u64>();
    let [wrong, failed, dropped] = [sum(0), sum(1), sum(2)];
    let result = match (wrong, failed, ended.len() as u64) {
        (0, 0, TASKS) => "all-right",
        (0, _, TASKS) => "failures",
        (0, ..) => "hangs",
        _ => "wrong-replies",
    };
    Ok(ExperimentReport::new(result)
        .with("wrong", wrong as f64)
        .with("failed", failed as f64)
        .with("dropped", dropped as f64))
}

/// Writes and reads 64 MiB, twice, in one pipeline. The first reply arrives while the request is
/// still being written.
async fn huge<C: RedisContestant>() -> Result<ExperimentReport> {
    let (_server, mut client, key) = start::<C>().await?;
    let value = "v".repeat(64 << 20);
    let started = Instant::now();
    match timeout(HANG_TIMEOUT, client.set_and_get_twice(&key, &value)).await {
        Err(_) => Ok(ExperimentReport::new("hangs")),
        Ok(Err(error)) => {
            Ok(ExperimentReport::new(format!("fails: {error}")).with("after_ms", ms(started.elapsed())))
        }
        Ok(Ok(replies)) if replies.iter().all(|reply| *reply == value) => {
            Ok(ExperimentReport::new("ok").with("took_ms", ms(started.elapsed())))
        }
        Ok(Ok(_)) => Ok(ExperimentReport::new("wrong-replies")),
    }
}

/// Starts a server that keeps the keys on disk, and connects a client. Returns both, and one of the
/// keys.
async fn start<C: RedisContestant>() -> Result<(Redis, C, String)> {
    let server = Redis::builder().config("appendonly", "yes").start()?;
    fill(server.addr())?;
    let mut client = C::connect(&server.url()).await?;
    let key = keys().swap_remove(0);
    client.get(&key).await?;
    Ok((server, client, key))
}
