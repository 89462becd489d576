//! A storm: clients of random behaviour through a gate to an upstream that misbehaves, with SIGHUP all the while and SIGTERM at its end.
//!
//! Oracle: a whole answer has the nonce of its own request; a request that must not be repeated arrives at the upstream at most
//! once, any other at most twice, and none again after a byte of its answer; when the clients have left, the gate holds no permit,
//! no connection and no descriptor; SIGTERM under load ends the process in order.

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

use crate::echo::{Echo, Manners};
use crate::gate::Gate;
use crate::wire::{Client, until};

const CLIENTS: usize = 24;
/// Of one round: a gate from its start to its end.
const ROUND: Duration = Duration::from_secs(4);
/// A client and an upstream whose times are up are let go within this.
const SETTINGS: [(&str, &str); 4] = [
    ("FOREBAY_GATE_RESPONSE_TIMEOUT_MS", "400"),
    ("FOREBAY_GATE_REQUEST_IDLE_TIMEOUT_MS", "400"),
    ("FOREBAY_GATE_UPSTREAM_IDLE_TIMEOUT_MS", "600"),
    ("FOREBAY_HTTP_HEADER_TIMEOUT_MS", "1000"),
];

#[derive(Debug, Default)]
struct Counts {
    /// Requests of which the last byte was sent.
    asked: AtomicUsize,
    /// Whole answers with the nonce.
    matched: AtomicUsize,
    /// Whole answers of the gate's own.
    refused: AtomicUsize,
    /// Connections that ended before a whole answer.
    broken: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Storm {
    gate: SocketAddr,
    counts: Arc<Counts>,
    over: Arc<AtomicBool>,
}

/// One request.
#[derive(Debug)]
struct Ask {
    method: &'static str,
    path: String,
    nonce: String,
    body: String,
}

impl Ask {
    fn roll(dice: &mut Dice, client: usize, number: usize) -> Ask {
        let nonce = format!("c{client}n{number}-{:08x}", dice.roll() as u32);
        let method = dice.pick(&["GET", "GET", "HEAD", "PUT", "DELETE", "POST"]);
        let kind = dice.pick(&["plain", "plain", "stream"]);
        let repeats = if method == "POST" || (method == "PUT" && dice.percent(50)) {
            dice.between(1, 2_000)
        } else {
            0
        };
        Ask { method, path: format!("/{kind}/{nonce}"), body: nonce.repeat(repeats), nonce }
    }

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

impl Storm {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    async fn client(self, seed: u64, client: usize) {
        let mut dice = Dice::of(seed, "client", client);
        let mut number = 0;
        while !self.is_over() {
            let Ok(socket) = TcpStream::connect(self.gate).await else { return };
            match dice.below(100) {
                0..15 => self.over_http2(socket, &mut dice, client, &mut number).await,
                15..22 => rubbish(socket, &mut dice).await,
                _ => self.over_http1(socket, &mut dice, client, &mut number).await,
            }
        }
    }

    /// A few requests on one connection, one after another or in one write.
    async fn over_http1(&self, socket: TcpStream, dice: &mut Dice, client: usize, number: &mut usize) {
        socket.set_nodelay(true).unwrap();
        let mut connection = Client::over(socket);
        for _ in 0..dice.between(1, 5) {
            let pipelined = if dice.percent(15) { 3 } else { 1 };
            let asks: Vec<Ask> = (0..pipelined).map(|_| next(dice, client, number)).collect();
            let text: String = asks.iter().map(|ask| ask.text(dice)).collect();
            // The whole text, or a part and then the end; at once, or in pieces.
            let leaves_at = if dice.percent(8) { dice.below(text.len()) } else { text.len() };
            let piece = if dice.percent(15) { dice.between(1, 200) } else { text.len() };
            // At most 60 pieces. A client whose requests are cut leaves: the start of a next head that
            // arrived with the request before it has only the idle timeout of a minute.
            let sent = leaves_at.min(60 * piece);
            for piece in text.as_bytes()[..sent].chunks(piece) {
                if connection.socket.write_all(piece).await.is_err() {
                    self.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                tokio::task::yield_now().await;
            }
            if sent < text.len() || dice.percent(8) {
                return; // without waiting for an answer
            }
            self.counts.asked.fetch_add(asks.len(), Ordering::Relaxed);
            for ask in &asks {
                if dice.percent(5) {
                    sleep(Duration::from_millis(dice.below(20) as u64)).await;
                }
                if !self.reads(&mut connection, ask, dice.percent(4)).await {
                    return;
                }
            }
        }
    }

    /// Whether the connection goes on after the answer.
    async fn reads(&self, connection: &mut Client, ask: &Ask, leaves: bool) -> bool {
        let Some(head) = connection.try_head().await else {
            self.counts.broken.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if leaves {
            return false;
        }
        let body = match head.header("content-length") {
            _ if ask.method == "HEAD" => Some(Vec::new()),
            Some(length) => {
                let length = length.parse().unwrap();
                Some(connection.take(length).await).filter(|body| body.len() == length)
            }
            None if head.is_chunked() => chunks(connection).await,
            None => Some(Vec::new()),
        };
        let Some(body) = body else {
            self.counts.broken.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        self.judge(ask, head.status, head.header("x-nonce"), &body);
        head.header("connection") != Some("close") && !head.is_chunked()
    }

    /// The oracle for one whole answer.
    fn judge(&self, ask: &Ask, status: u16, nonce: Option<&str>, body: &[u8]) {
        if status == 200 {
            assert_eq!(nonce, Some(ask.nonce.as_str()), "the answer of another");
            let is_own = body.chunks(ask.nonce.len()).all(|part| part == ask.nonce.as_bytes());
            assert!(is_own, "{:?} for {ask:?}", String::from_utf8_lossy(body));
            self.counts.matched.fetch_add(1, Ordering::Relaxed);
        } else {
            assert!(matches!(status, 400 | 408 | 502..=504), "{status} for {} {}", ask.method, ask.path);
            assert_eq!(nonce, None, "a refusal with an upstream's header");
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Several requests at once, some of which are dropped.
    async fn over_http2(&self, socket: TcpStream, dice: &mut Dice, client: usize, number: &mut usize) {
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let Ok((sender, driver)) = builder.handshake::<_, Full<Bytes>>(TokioIo::new(socket)).await else {
            return;
        };
        let driver = tokio::spawn(driver);
        let mut requests = JoinSet::new();
        for _ in 0..dice.between(1, 8) {
            let (ask, leaves, storm) = (next(dice, client, number), dice.percent(20), self.clone());
            let mut sender = sender.clone();
            let pause = Duration::from_millis(dice.below(10) as u64);
            requests.spawn(async move {
                let uri = format!("http://a{}", ask.path);
                let request = Request::builder().method(ask.method).uri(uri);
                let request = request.body(Full::new(Bytes::from(ask.body.clone()))).unwrap();
                storm.counts.asked.fetch_add(1, Ordering::Relaxed);
                let response = sender.send_request(request);
                let response = if leaves {
                    match tokio::time::timeout(pause, response).await {
                        Ok(response) => response,
                        Err(_) => return, // resets the stream
                    }
                } else {
                    response.await
                };
                let Ok(response) = response else {
                    storm.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let (parts, body) = response.into_parts();
                let Ok(body) = body.collect().await else {
                    storm.counts.broken.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let nonce = parts.headers.get("x-nonce").map(|nonce| nonce.to_str().unwrap());
                storm.judge(&ask, parts.status.as_u16(), nonce, &body.to_bytes());
            });
        }
        while let Some(request) = requests.join_next().await {
            request.unwrap();
        }
        drop(sender);
        let _ = driver.await.unwrap();
    }
}

fn next(dice: &mut Dice, client: usize, number: &mut usize) -> Ask {
    *number += 1;
    Ask::roll(dice, client, *number)
}

/// A chunked body, if it is whole.
async fn chunks(connection: &mut Client) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let chunk = connection.chunk().await?;
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend(chunk);
    }
}

/// Something that is no request, or not a whole one; then the end.
async fn rubbish(mut socket: TcpStream, dice: &mut Dice) {
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

fn sockets_of(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    open.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    })
    .count()
}

/// One gate from its start to its end; the storm stops for a check in the midst, and SIGTERM comes while it goes on.
async fn round(seed: u64) {
    let origin = Echo::start(seed, Manners::Bad).await;
    let mut gate = Gate::start_with(&origin.url(), &["--stream-route", "* /stream/**"], &SETTINGS);
    let sockets = sockets_of(gate.pid());
    let counts = Arc::new(Counts::default());
    let rage = |seed: u64| {
        let storm = Storm { gate: gate.addr, counts: Arc::clone(&counts), over: Arc::default() };
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            clients.spawn(storm.clone().client(seed, client));
        }
        (clients, storm.over)
    };
    let hang_up = async |gate: &Gate, until: Instant| {
        while Instant::now() < until {
            sleep(Duration::from_millis(250)).await;
            gate.signal(Signal::HUP);
        }
    };
    let (clients, over) = rage(seed);
    hang_up(&gate, Instant::now() + ROUND * 3 / 4).await;
    over.store(true, Ordering::SeqCst);
    clients.join_all().await;
    gate.empty().await;
    until("nothing is open", async || {
        let status = gate.status().await;
        status["http"]["open_connections"] == 0
            && status["gate"]["plain_requests"] == 0
            && status["gate"]["upstream_connections"]["open"] == 0
    })
    .await;
    until("the upstream's connections are closed", async || origin.open() == 0).await;
    until("all sockets are closed", async || sockets_of(gate.pid()) <= sockets).await;

    let (clients, over) = rage(seed ^ 1);
    hang_up(&gate, Instant::now() + ROUND / 4).await;
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
        assert!(!arrival.after_answer, "{nonce}: {arrival:?}");
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (asked, matched) = (count(&counts.asked), count(&counts.matched));
    assert!(matched > 100, "{matched} of {asked} requests were answered: {counts:?}");
    let twice = arrivals.values().filter(|arrival| arrival.count == 2).count();
    eprintln!(
        "seed {seed}: {asked} requests, {matched} answers with their nonce, {} refusals, {} broken off; {} arrived, {twice} of \
         them twice",
        count(&counts.refused),
        count(&counts.broken),
        arrivals.len(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_leaves_nothing_behind_and_mixes_nothing_up() {
    round(seed()).await;
}

/// `FOREBAY_SECONDS=600 FOREBAY_SEED=7 cargo nextest run -p forebay --test it --run-ignored only storm::`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FOREBAY_SECONDS, 120 unless told"]
async fn a_long_storm_leaves_nothing_behind_and_mixes_nothing_up() {
    let seconds = std::env::var("FOREBAY_SECONDS").map_or(120, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = seed();
    while Instant::now() < until {
        round(seed).await;
        seed += 1;
    }
}
