//! Random load: clients with random behaviour, an upstream that fails at random, SIGHUP throughout,
//! and SIGTERM at the end.
//!
//! Invariant: a complete response has the nonce of its own request.
//! Invariant: a request that must not be repeated arrives at the upstream at most once, any other
//! request at most twice.
//! Invariant: no request arrives again after the upstream has sent a byte of its response.
//! Invariant: once the clients have disconnected, the gate holds no permit, connection or
//! descriptor.
//! Invariant: SIGTERM under load ends the process with success.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_testkit::{Dice, seed};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::echo_upstream::{EchoUpstream, UpstreamBehavior};
use crate::forebay_process::ForebayProcess;
use crate::wire::{HttpConnection, until};

const CLIENTS: usize = 24;
/// Duration of one round, from the start of a gate to its end.
const ROUND: Duration = Duration::from_secs(4);
/// Short timeouts: stalled clients and upstreams are closed within a round.
const SETTINGS: [(&str, &str); 4] = [
    ("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "400"),
    ("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "400"),
    ("FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS", "600"),
    ("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "1000"),
];

/// Counts over all clients of a round.
#[derive(Debug, Default)]
struct RequestCounts {
    /// Requests whose last byte was sent.
    sent: AtomicUsize,
    /// Complete responses with the nonce of their request.
    matched: AtomicUsize,
    /// Complete responses that the gate created itself.
    refused: AtomicUsize,
    /// Connections that ended before a complete response.
    broken: AtomicUsize,
}

/// Clients that send requests until `over` is set.
#[derive(Debug, Clone)]
struct RandomClients {
    gate: SocketAddr,
    counts: Arc<RequestCounts>,
    over: Arc<AtomicBool>,
}

/// Request with a unique nonce.
#[derive(Debug)]
struct RandomRequest {
    method: &'static str,
    path: String,
    nonce: String,
    body: String,
}

impl RandomRequest {
    /// Returns a random request.
    fn roll(dice: &mut Dice, client: usize, number: usize) -> RandomRequest {
        let nonce = format!("c{client}n{number}-{:08x}", dice.roll() as u32);
        let method = dice.pick(&["GET", "GET", "HEAD", "PUT", "DELETE", "POST"]);
        let kind = dice.pick(&["plain", "plain", "stream"]);
        let repeats = if method == "POST" || (method == "PUT" && dice.percent(50)) {
            dice.between(1, 2_000)
        } else {
            0
        };
        RandomRequest { method, path: format!("/{kind}/{nonce}"), body: nonce.repeat(repeats), nonce }
    }

    /// Returns the head, and whether the body is chunked.
    fn head(&self, dice: &mut Dice) -> (String, bool) {
        let is_chunked = !self.body.is_empty() && dice.percent(40);
        let framing = match (self.body.len(), is_chunked) {
            (0, _) => String::new(),
            (_, true) => "Transfer-Encoding: chunked\r\n".to_owned(),
            (length, false) => format!("Content-Length: {length}\r\n"),
        };
        (format!("{} {} HTTP/1.1\r\nHost: a\r\n{framing}\r\n", self.method, self.path), is_chunked)
    }

    fn text(&self, dice: &mut Dice) -> String {
        let (head, is_chunked) = self.head(dice);
        match is_chunked {
            true => format!("{head}{:x}\r\n{}\r\n0\r\n\r\n", self.body.len(), self.body),
            false => format!("{head}{}", self.body),
        }
    }
}

impl RandomClients {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Runs one client, connection after connection.
    async fn client(self, seed: u64, client: usize) {
        let mut dice = Dice::of(seed, "client", client);
        let mut number = 0;
        while !self.is_over() {
            let Ok(socket) = TcpStream::connect(self.gate).await else { return };
            match dice.below(100) {
                0..15 => self.over_http2(socket, &mut dice, client, &mut number).await,
                15..22 => send_invalid_request(socket, &mut dice).await,
                _ => self.over_http1(socket, &mut dice, client, &mut number).await,
            }
        }
    }

    /// Sends a few requests on one connection, one after another or pipelined.
    async fn over_http1(&self, socket: TcpStream, dice: &mut Dice, client: usize, number: &mut usize) {
        socket.set_nodelay(true).unwrap();
        let mut connection = HttpConnection::over(socket);
        for _ in 0..dice.between(1, 5) {
            let pipelined = if dice.percent(15) { 3 } else { 1 };
            let requests: Vec<RandomRequest> = (0..pipelined).map(|_| next(dice, client, number)).collect();
            let text: String = requests.iter().map(|request| request.text(dice)).collect();
            // The whole text, or a part of it; in one write, or in pieces.
            let leaves_at = if dice.percent(8) { dice.below(text.len()) } else { text.len() };
            let piece = if dice.percent(15) { dice.between(1, 200) } else { text.len() };
            // At most 60 pieces. A client that sent only a part disconnects. Otherwise, if the part
            // ends inside the next head, it would wait for the idle timeout of a minute.
            let sent = leaves_at.min(60 * piece);
            for piece in text.as_bytes()[..sent].chunks(piece) {
                if connection.socket.write_all(piece).await.is_err() {
                    self.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                tokio::task::yield_now().await;
            }
            if sent < text.len() || dice.percent(8) {
                return; // disconnects without reading the response
            }
            self.counts.sent.fetch_add(requests.len(), Ordering::Relaxed);
            for request in &requests {
                if dice.percent(5) {
                    sleep(Duration::from_millis(dice.below(20) as u64)).await;
                }
                if !self.read_response(&mut connection, request, dice.percent(4)).await {
                    return;
                }
            }
        }
    }

    /// Reads a response. Returns true if the connection stays open after it.
    async fn read_response(
        &self,
        connection: &mut HttpConnection,
        request: &RandomRequest,
        cancels: bool,
    ) -> bool {
        let Some(head) = connection.try_head().await else {
            self.counts.broken.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if cancels {
            return false;
        }
        let body = match head.header("content-length") {
            _ if request.method == "HEAD" => Some(Vec::new()),
            Some(length) => {
                let length = length.parse().unwrap();
                Some(connection.take(length).await).filter(|body| body.len() == length)
            }
            None if head.is_chunked() => read_chunked_body(connection).await,
            None => Some(Vec::new()),
        };
        let Some(body) = body else {
            self.counts.broken.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        self.check_response(request, head.status, head.header("x-nonce"), &body);
        head.header("connection") != Some("close") && !head.is_chunked()
    }

    /// Fails if a complete response doesn't belong to its request.
    fn check_response(&self, request: &RandomRequest, status: u16, nonce: Option<&str>, body: &[u8]) {
        if status == 200 {
            assert_eq!(nonce, Some(request.nonce.as_str()), "the response of another request");
            let is_own = body.chunks(request.nonce.len()).all(|part| part == request.nonce.as_bytes());
            assert!(is_own, "{:?} for {request:?}", String::from_utf8_lossy(body));
            self.counts.matched.fetch_add(1, Ordering::Relaxed);
        } else {
            assert!(
                matches!(status, 400 | 408 | 502..=504),
                "{status} for {} {}",
                request.method,
                request.path
            );
            assert_eq!(nonce, None, "a refusal with a header of the upstream");
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends concurrent requests, and cancels some of them.
    async fn over_http2(&self, socket: TcpStream, dice: &mut Dice, client: usize, number: &mut usize) {
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let Ok((sender, driver)) = builder.handshake::<_, Full<Bytes>>(TokioIo::new(socket)).await else {
            return;
        };
        let driver = tokio::spawn(driver);
        let mut requests = JoinSet::new();
        for _ in 0..dice.between(1, 8) {
            let (request, cancels, clients) = (next(dice, client, number), dice.percent(20), self.clone());
            let mut sender = sender.clone();
            let pause = Duration::from_millis(dice.below(10) as u64);
            requests.spawn(async move {
                let uri = format!("http://a{}", request.path);
                let builder = Request::builder().method(request.method).uri(uri);
                let http_request = builder.body(Full::new(Bytes::from(request.body.clone()))).unwrap();
                clients.counts.sent.fetch_add(1, Ordering::Relaxed);
                let response = sender.send_request(http_request);
                let response = if cancels {
                    match tokio::time::timeout(pause, response).await {
                        Ok(response) => response,
                        Err(_) => return, // dropping the future resets the stream
                    }
                } else {
                    response.await
                };
                let Ok(response) = response else {
                    clients.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let (parts, body) = response.into_parts();
                let Ok(body) = body.collect().await else {
                    clients.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let nonce = parts.headers.get("x-nonce").map(|nonce| nonce.to_str().unwrap());
                clients.check_response(&request, parts.status.as_u16(), nonce, &body.to_bytes());
            });
        }
        while let Some(finished) = requests.join_next().await {
            finished.unwrap();
        }
        drop(sender);
        let _ = driver.await.unwrap();
    }
}

fn next(dice: &mut Dice, client: usize, number: &mut usize) -> RandomRequest {
    *number += 1;
    RandomRequest::roll(dice, client, *number)
}

/// Reads a chunked body. Returns `None` if it is truncated.
async fn read_chunked_body(connection: &mut HttpConnection) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let chunk = connection.chunk().await?;
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend(chunk);
    }
}

/// Sends something that is no complete request, and disconnects.
async fn send_invalid_request(mut socket: TcpStream, dice: &mut Dice) {
    let text = dice.pick(&[
        "",
        "G",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "\x16\x03\x01",
    ]);
    let _ = socket.write_all(text.as_bytes()).await;
    sleep(Duration::from_millis(dice.below(5) as u64)).await;
}

/// Returns the number of open sockets of a process.
fn sockets_of(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    })
    .count()
}

/// Runs one gate: load, a check that nothing is left open, load again, and SIGTERM under load.
async fn round(seed: u64) {
    let origin = EchoUpstream::start(seed, UpstreamBehavior::FailsAtRandom).await;
    let mut gate =
        ForebayProcess::start_gate_with(&origin.url(), &["--stream-route", "* /stream/**"], &SETTINGS);
    let sockets = sockets_of(gate.pid());
    let counts = Arc::new(RequestCounts::default());
    let start_clients = |seed: u64| {
        let behavior = RandomClients { gate: gate.addr, counts: Arc::clone(&counts), over: Arc::default() };
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(behavior.clone().client(seed, client));
        }
        (clients, behavior.over)
    };
    let send_sighup_until = async |gate: &ForebayProcess, until: Instant| {
        while Instant::now() < until {
            sleep(Duration::from_millis(250)).await;
            gate.signal(Signal::HUP);
        }
    };
    let (clients, over) = start_clients(seed);
    send_sighup_until(&gate, Instant::now() + ROUND * 3 / 4).await;
    over.store(true, Ordering::SeqCst);
    clients.join_all().await;
    gate.wait_until_empty().await;
    until("no connection is open", async || {
        let status = gate.status().await;
        status["http"]["open_connections"] == 0
            && status["gate"]["plain_requests"] == 0
            && status["gate"]["upstream_connections"]["open"] == 0
    })
    .await;
    until("the upstream's connections are closed", async || origin.open() == 0).await;
    until("all sockets are closed", async || sockets_of(gate.pid()) <= sockets).await;

    let (clients, over) = start_clients(seed ^ 1);
    send_sighup_until(&gate, Instant::now() + ROUND / 4).await;
    gate.signal(Signal::TERM);
    let status = gate.end().await;
    assert!(status.success(), "{status}");
    assert_eq!(gate.wait_for_log("gate stopped")["cut"], 0);
    over.store(true, Ordering::SeqCst);
    clients.join_all().await;

    let arrivals = origin.arrivals();
    for (nonce, arrival) in &arrivals {
        let most = if arrival.is_repeatable { 2 } else { 1 };
        assert!(arrival.count <= most, "{nonce}: {arrival:?}");
        assert!(!arrival.after_response, "{nonce}: {arrival:?}");
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (sent, matched) = (count(&counts.sent), count(&counts.matched));
    assert!(matched > 100, "{matched} of {sent} requests got their response: {counts:?}");
    let twice = arrivals.values().filter(|arrival| arrival.count == 2).count();
    eprintln!(
        "seed {seed}: {sent} requests, {matched} responses with their nonce, {} refusals, {} truncated; {} arrived, \
         {twice} of them twice",
        count(&counts.refused),
        count(&counts.broken),
        arrivals.len(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_load_mixes_up_no_responses_and_leaks_nothing() {
    round(seed()).await;
}

/// To run it: `FOREBAY_SECONDS=600 FOREBAY_SEED=7 cargo nextest run -p forebay --test it
/// --run-ignored only random_load::`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FOREBAY_SECONDS seconds, 120 by default"]
async fn a_long_random_load_mixes_up_no_responses_and_leaks_nothing() {
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(120, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = seed();
    while Instant::now() < until {
        round(seed).await;
        seed += 1;
    }
}
