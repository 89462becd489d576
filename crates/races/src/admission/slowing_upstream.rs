//! Upstream that slows down beyond its capacity: with `open` streams, each takes
//! `(open / capacity)²` times as long. So its throughput falls if more streams are open.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

/// Mean work of a stream until its response head.
const HEAD: Duration = Duration::from_millis(40);
const TICK: Duration = Duration::from_millis(1);

/// Body of a stream: so many pieces of one byte, and the mean work for each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLength {
    pub(crate) pieces: usize,
    pub(crate) work: Duration,
}

/// A stream of 200 ms, its head included.
pub(crate) const SHORT: StreamLength = StreamLength { pieces: 1, work: Duration::from_millis(160) };
/// A stream of ten seconds, with a piece every 200 ms.
pub(crate) const LONG: StreamLength = StreamLength { pieces: 50, work: Duration::from_millis(200) };

/// The upstream. Dropping it closes all connections.
pub(crate) struct SlowingUpstream {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<SharedWork>>,
    _tasks: JoinSet<()>,
}

/// Work of all open streams. Each stream advances at the same rate, so one clock counts for all.
#[derive(Debug)]
struct SharedWork {
    capacity: u32,
    open: u32,
    /// Work of a stream that is open since the start, in microseconds.
    done_us: u64,
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    wakers: Vec<Option<oneshot::Sender<()>>>,
    free: Vec<usize>,
}

impl SlowingUpstream {
    pub(crate) async fn start(capacity: u32, length: StreamLength) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(SharedWork {
            capacity,
            open: 0,
            done_us: 0,
            waiting: BinaryHeap::new(),
            wakers: Vec::new(),
            free: Vec::new(),
        }));
        let mut tasks = JoinSet::new();
        tasks.spawn(advance(Arc::clone(&state)));
        let shared = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                connections.spawn(async move { drop(serve(socket, shared, length).await) });
            }
        });
        Ok(SlowingUpstream { address, state, _tasks: tasks })
    }

    /// Changes the number of streams beyond which the upstream slows down.
    pub(crate) fn set_capacity(&self, capacity: u32) {
        lock(&self.state).capacity = capacity;
    }
}

impl SharedWork {
    /// Advances all streams by the elapsed time, and wakes those whose work is done.
    fn advance(&mut self, elapsed: Duration) {
        let slowdown = (f64::from(self.open) / f64::from(self.capacity)).max(1.0).powi(2);
        self.done_us += (elapsed.as_secs_f64() * 1e6 / slowdown) as u64;
        while self.waiting.peek().is_some_and(|Reverse((at, _))| *at <= self.done_us) {
            let Some(Reverse((_, slot))) = self.waiting.pop() else { return };
            if let Some(waker) = self.wakers[slot].take() {
                let _ = waker.send(());
            }
            self.free.push(slot);
        }
    }

    /// Returns a receiver that completes after this much work.
    fn work(&mut self, work: Duration) -> oneshot::Receiver<()> {
        let (waker, done) = oneshot::channel();
        let slot = self.free.pop().unwrap_or(self.wakers.len());
        if slot == self.wakers.len() {
            self.wakers.push(None);
        }
        self.wakers[slot] = Some(waker);
        let at = self.done_us + u64::try_from(work.as_micros()).unwrap_or(u64::MAX);
        self.waiting.push(Reverse((at, slot)));
        done
    }
}

async fn advance(state: Arc<Mutex<SharedWork>>) {
    let (mut ticks, mut last) = (interval(TICK), Instant::now());
    loop {
        ticks.tick().await;
        let now = Instant::now();
        lock(&state).advance(now - last);
        last = now;
    }
}

/// Serves the streams of one connection, one after the other.
async fn serve(mut socket: TcpStream, state: Arc<Mutex<SharedWork>>, length: StreamLength) -> Result<()> {
    let mut request = Vec::new();
    loop {
        while !request.ends_with(b"\r\n\r\n") {
            if socket.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        request.clear();
        let _open = CountedStream::new(&state);
        let head = lock(&state).work(varied(HEAD));
        head.await?;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length.pieces);
        socket.write_all(head.as_bytes()).await?;
        for _ in 0..length.pieces {
            let piece = lock(&state).work(varied(length.work));
            piece.await?;
            socket.write_all(b".").await?;
        }
    }
}

/// Counts a stream as open.
struct CountedStream<'a>(&'a Mutex<SharedWork>);

impl<'a> CountedStream<'a> {
    fn new(state: &'a Mutex<SharedWork>) -> Self {
        lock(state).open += 1;
        CountedStream(state)
    }
}

impl Drop for CountedStream<'_> {
    fn drop(&mut self) {
        lock(self.0).open -= 1;
    }
}

/// Returns a random time between 60 % and 140 % of the mean.
fn varied(mean: Duration) -> Duration {
    mean.mul_f64(0.6 + 0.8 * fastrand::f64())
}

fn lock(state: &Mutex<SharedWork>) -> MutexGuard<'_, SharedWork> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
