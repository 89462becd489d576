//! What pages are told each second, by server-sent events: one producer for all of them.
//!
//! Invariant: at most [`MAX_PAGES`] streams; what is told is made once for all of them, and not at all while nobody looks.
//! Kept by: a seat is taken before a stream begins and given back when it is dropped.
//! Bounds: a page that is [`KEPT`] events behind is cut off, and comes back by itself.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::{Tail, Topic};
use http_body::{Body, Frame};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::history::{self, History};
use crate::admin::Report;

/// Operators are few, and each page is a connection of 128.
pub(crate) const MAX_PAGES: usize = 32;
const KEPT: usize = 4;
const TICK: Duration = Duration::from_secs(1);
/// How long a browser waits before it comes again.
const RETRY: &str = "retry: 1000\n";

/// Tells pages. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    shared: Arc<Shared>,
    producer: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    begun: Instant,
    topic: Topic,
    history: Mutex<History>,
    pages: AtomicUsize,
    came: Notify,
}

impl Live {
    /// Needs a tokio runtime.
    pub(crate) fn start(report: Arc<dyn Report>) -> Self {
        let shared = Arc::new(Shared {
            begun: Instant::now(),
            topic: Topic::new(KEPT),
            history: Mutex::default(),
            pages: AtomicUsize::new(0),
            came: Notify::new(),
        });
        let producer = tokio::spawn(produce(Arc::clone(&shared), report));
        Live { shared, producer }
    }

    /// Another page's stream; `None`: there are as many as there may be.
    pub(crate) fn open(&self) -> Option<Events> {
        let shared = &self.shared;
        if shared.pages.fetch_add(1, Ordering::Relaxed) >= MAX_PAGES {
            shared.pages.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let seat = Seat(Arc::clone(shared));
        let tail = shared.topic.subscribe();
        let samples = shared.history().json(shared.begun.elapsed());
        shared.came.notify_one();
        let first = Bytes::from(format!("{RETRY}event: history\ndata: {samples}\n\n"));
        Some(Events { first: Some(first), tail, _seat: seat })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.producer.abort();
    }
}

impl Shared {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn produce(shared: Arc<Shared>, report: Arc<dyn Report>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut came = pin!(shared.came.notified());
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = &mut came => false,
        };
        let sample = report.sample();
        if is_tick {
            shared.history().add(shared.begun.elapsed(), sample);
        }
        if shared.topic.subscribers() == 0 {
            continue;
        }
        // There may be many shapes to look through, and some of their files are read.
        let looking = Arc::clone(&report);
        let Ok(status) = spawn_blocking(move || looking.glance()).await else { continue };
        let sample = history::json(Duration::ZERO, &sample);
        shared.topic.publish(format!("data: {{\"sample\":{sample},\"status\":{status}}}\n\n"));
    }
}

/// A place among the pages.
#[derive(Debug)]
struct Seat(Arc<Shared>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One page's stream: what was measured before, then what comes.
#[derive(Debug)]
pub struct Events {
    first: Option<Bytes>,
    tail: Tail,
    _seat: Seat,
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        // One that fell behind ends, and its page comes again.
        Pin::new(&mut self.tail).poll_frame(cx).map(|frame| frame.and_then(Result::ok).map(Ok))
    }
}
