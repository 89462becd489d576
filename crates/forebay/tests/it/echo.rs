//! An upstream that answers each request with the nonce in its path, misbehaves by dice, and counts arrivals.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_testkit::Dice;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::wire::{Client, Head};

/// The upstream; its connections end with it.
#[derive(Debug)]
pub(crate) struct Echo {
    addr: SocketAddr,
    state: Arc<State>,
    task: AbortHandle,
}

#[derive(Debug)]
struct State {
    seed: u64,
    manners: Manners,
    open: AtomicUsize,
    arrivals: Mutex<HashMap<String, Arrival>>,
}

/// How an upstream treats its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Answers all.
    Good,
    /// Breaks off, hangs, closes: by dice.
    Bad,
}

/// What came of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrival {
    pub(crate) count: usize,
    /// May be sent again if the connection closes in silence.
    pub(crate) is_repeatable: bool,
    /// Arrived again after a byte of its response was sent.
    pub(crate) after_answer: bool,
    answered: bool,
}

impl Echo {
    pub(crate) async fn start(seed: u64, manners: Manners) -> Echo {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (open, arrivals) = (AtomicUsize::new(0), Mutex::default());
        let state = Arc::new(State { seed, manners, open, arrivals });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                socket.set_nodelay(true).unwrap();
                tokio::spawn(serve(Client::over(socket), Arc::clone(&shared)));
            }
        });
        Echo { addr, state, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Connections of the gate that are open.
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    /// Requests by nonce.
    pub(crate) fn arrivals(&self) -> HashMap<String, Arrival> {
        self.state.arrivals.lock().unwrap().clone()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut gate: Client, state: Arc<State>) {
    state.open.fetch_add(1, Ordering::SeqCst);
    while let Some(request) = gate.try_head().await {
        if !exchange(&mut gate, &request, &state).await {
            break;
        }
    }
    drop(gate);
    state.open.fetch_sub(1, Ordering::SeqCst);
}

/// Reads a request and answers it in some way; false if the connection ends with that.
async fn exchange(gate: &mut Client, request: &Head, state: &State) -> bool {
    let mut words = request.text.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let nonce = path.rsplit('/').next().unwrap().to_owned();
    let has_body =
        request.is_chunked() || request.header("content-length").is_some_and(|length| length != "0");
    let arrival = {
        let mut arrivals = state.arrivals.lock().unwrap();
        let arrival = arrivals.entry(nonce.clone()).or_default();
        arrival.count += 1;
        arrival.is_repeatable = !has_body && matches!(method, "GET" | "HEAD" | "PUT" | "DELETE");
        arrival.after_answer |= arrival.answered;
        arrival.count
    };
    if !read_body(gate, request, &nonce).await {
        return false;
    }
    let mut dice = Dice::of(state.seed, &nonce, arrival);
    let way = if state.manners == Manners::Good { 100 } else { dice.below(100) };
    if way < 8 {
        return false; // in silence
    }
    state.arrivals.lock().unwrap().get_mut(&nonce).unwrap().answered = true;
    answer(gate, method, path, &nonce, way, &mut dice).await
}

/// False if it didn't come whole. What comes must be of this request.
async fn read_body(gate: &mut Client, request: &Head, nonce: &str) -> bool {
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
    assert!(body.chunks(expected.len()).all(|part| part == expected), "a foreign body arrived for {nonce}");
    true
}

/// The nonce as the response's body, in the way that was rolled.
async fn answer(
    gate: &mut Client,
    method: &str,
    path: &str,
    nonce: &str,
    way: usize,
    dice: &mut Dice,
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
    let (said, goes_on) = match way {
        8..12 => ("HTTP/1.1 2".to_owned(), false),
        12..15 => ("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_owned(), false),
        15..19 => (format!("{whole}{}", &body[..body.len() / 2]), false),
        19..22 => (format!("{chunked}{chunk}5\r\nab"), false),
        22..25 => {
            // Silent until the gate gives up.
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
        _ if path.starts_with("/stream") || way < 60 => {
            (format!("{chunked}{chunk}{chunk}0\r\nX-Trailer: 1\r\n\r\n"), true)
        }
        _ => (format!("{whole}{body}"), true),
    };
    // At once, or in pieces.
    let piece = if dice.percent(20) { dice.between(1, 40) } else { said.len() };
    for piece in said.as_bytes().chunks(piece.max(1)) {
        if socket.write_all(piece).await.is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_micros(if piece.len() < said.len() { 200 } else { 0 })).await;
    }
    goes_on
}
