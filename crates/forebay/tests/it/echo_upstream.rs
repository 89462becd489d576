//! Upstream that responds to each request with the nonce of its path, fails at random, and counts
//! arrivals.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_testkit::TestRng;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::wire::{HttpConnection, HttpHead};

/// The upstream. Dropping it stops the listener.
#[derive(Debug)]
pub(crate) struct EchoUpstream {
    addr: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug)]
struct State {
    seed: u64,
    behavior: UpstreamBehavior,
    open: AtomicUsize,
    arrivals: Mutex<HashMap<String, ArrivalRecord>>,
}

/// How the upstream treats requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamBehavior {
    /// Responds to every request.
    AnswersAll,
    /// Truncates responses, stalls or closes the connection, at random.
    FailsAtRandom,
}

/// Arrivals of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArrivalRecord {
    /// Number of arrivals.
    pub(crate) count: usize,
    /// True if the gate may send it again after the connection closed without a response byte.
    pub(crate) is_repeatable: bool,
    /// True if it arrived again after a byte of its response was sent.
    pub(crate) after_response: bool,
    /// True once a byte of its response was sent.
    answered: bool,
}

impl EchoUpstream {
    pub(crate) async fn start(seed: u64, behavior: UpstreamBehavior) -> EchoUpstream {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, arrivals) = (AtomicUsize::new(0), Mutex::default());
        let state = Arc::new(State { seed, behavior, open, arrivals });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                socket.set_nodelay(true).unwrap();
                tokio::spawn(serve(HttpConnection::over(socket), Arc::clone(&shared)));
            }
        });
        EchoUpstream { addr, state, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of open connections from the gate.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// Returns the arrivals by nonce.
    pub(crate) fn arrivals(&self) -> HashMap<String, ArrivalRecord> {
        self.state.arrivals.lock().clone()
    }
}

impl Drop for EchoUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut gate: HttpConnection, state: Arc<State>) {
    state.open.fetch_add(1, Ordering::SeqCst);
    while let Some(request) = gate.try_head().await {
        if !exchange(&mut gate, &request, &state).await {
            break;
        }
    }
    drop(gate);
    state.open.fetch_sub(1, Ordering::SeqCst);
}

/// Reads a request and responds to it. Returns false if the connection ends.
async fn exchange(gate: &mut HttpConnection, request: &HttpHead, state: &State) -> bool {
    let mut words = request.text.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let nonce = path.rsplit('/').next().unwrap().to_owned();
    let has_body =
        request.is_chunked() || request.header("content-length").is_some_and(|length| length != "0");
    let arrival = {
        let mut arrivals = state.arrivals.lock();
        let arrival = arrivals.entry(nonce.clone()).or_default();
        arrival.count += 1;
        arrival.is_repeatable = !has_body && matches!(method, "GET" | "HEAD" | "PUT" | "DELETE");
        arrival.after_response |= arrival.answered;
        arrival.count
    };
    if !read_body(gate, request, &nonce).await {
        return false;
    }
    let mut rng = TestRng::of(state.seed, &nonce, arrival);
    let variant = if state.behavior == UpstreamBehavior::AnswersAll { 100 } else { rng.below(100) };
    if variant < 8 {
        return false; // without a response byte
    }
    state.arrivals.lock().get_mut(&nonce).unwrap().answered = true;
    send_response(gate, method, path, &nonce, variant, &mut rng).await
}

/// Reads the body. Returns false if it is truncated. Fails if it belongs to another request.
async fn read_body(gate: &mut HttpConnection, request: &HttpHead, nonce: &str) -> bool {
    let body = if request.is_chunked() {
        let mut body = Vec::new();
        loop {
            match gate.chunk().await {
                Some(chunk) if chunk.is_empty() => break body,
                Some(chunk) => body.extend(chunk),
                None => return false,
            }
        }
    } else if let Some(length) = request.header("content-length") {
        let length = length.parse().unwrap();
        let body = gate.take(length).await;
        if body.len() < length {
            return false;
        }
        body
    } else {
        return true;
    };
    let expected = nonce.as_bytes();
    assert!(
        body.chunks(expected.len()).all(|part| part == expected),
        "the body of another request arrived for {nonce}"
    );
    true
}

/// Sends the nonce as the body, complete or broken, as `variant` (0 to 100) selects. Returns false
/// if the connection ends.
async fn send_response(
    gate: &mut HttpConnection,
    method: &str,
    path: &str,
    nonce: &str,
    variant: usize,
    rng: &mut TestRng,
) -> bool {
    let socket = &mut gate.socket;
    let is_head = method == "HEAD";
    let length = nonce.len();
    let whole = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: {length}\r\n\r\n");
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let body = if is_head { "" } else { nonce };
    let chunk = format!("{length:x}\r\n{nonce}\r\n");
    let (bytes, stays_open) = match variant {
        8..12 => ("HTTP/1.1 2".to_owned(), false),
        12..15 => ("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_owned(), false),
        15..19 => (format!("{whole}{}", &body[..body.len() / 2]), false),
        19..22 => (format!("{chunked}{chunk}5\r\nab"), false),
        22..25 => {
            // Silent until the gate closes the connection.
            let mut rest = [0; 16];
            let _ = tokio::io::AsyncReadExt::read(socket, &mut rest).await;
            return false;
        }
        25..28 => {
            let _ = socket.write_all(whole.as_bytes()).await;
            socket.set_zero_linger().unwrap();
            return false;
        }
        28..34 => (format!("HTTP/1.1 100 Continue\r\n\r\n{whole}{body}"), true),
        34..40 => (format!("{whole}{body}").replace("X-Nonce", "Connection: close\r\nX-Nonce"), false),
        _ if is_head => (whole, true),
        _ if path.starts_with("/stream") || variant < 60 => {
            (format!("{chunked}{chunk}{chunk}0\r\nX-Trailer: 1\r\n\r\n"), true)
        }
        _ => (format!("{whole}{body}"), true),
    };
    // In one write, or in pieces.
    let piece = if rng.percent(20) { rng.between(1, 40) } else { bytes.len() };
    for piece in bytes.as_bytes().chunks(piece.max(1)) {
        if socket.write_all(piece).await.is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_micros(if piece.len() < bytes.len() { 200 } else { 0 })).await;
    }
    stays_open
}
