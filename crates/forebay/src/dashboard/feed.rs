//! Server-sent events for open dashboards. One producer task serves all pages.
//!
//! Invariant: at most [`MAX_PAGES`] streams. Each event is built once for all pages, and not at all
//! while no page is open.
//! Enforced by: a stream holds a [`PageSlot`], which is released when the stream is dropped.
//! Bounds: a page that is [`MAX_BUFFERED_EVENTS`] events behind is disconnected; the browser
//! reconnects.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_stream::{Tail, Topic};
use http_body::{Body, Frame};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::sample_history::{SampleHistory, sample_json};
use crate::admin::StatusReport;

/// Maximum number of open dashboards. Each takes one of the 128 connections of the admin address.
pub(crate) const MAX_PAGES: usize = 32;
/// Number of events that a page may be behind.
const MAX_BUFFERED_EVENTS: usize = 4;
/// Interval between events.
const TICK: Duration = Duration::from_secs(1);
/// Field that sets the browser's reconnection delay, in milliseconds.
const RETRY: &str = "retry: 1000\n";

/// Sends events to all pages. The producer task ends when this is dropped.
#[derive(Debug)]
pub(crate) struct DashboardFeed {
    state: Arc<FeedState>,
    producer: JoinHandle<()>,
}

/// State that the producer and the streams share.
#[derive(Debug)]
struct FeedState {
    started: Instant,
    topic: Topic,
    history: Mutex<SampleHistory>,
    pages: AtomicUsize,
    /// Notified when a page opens, so that it gets its first event at once.
    page_opened: Notify,
}

impl DashboardFeed {
    /// Starts the producer task. Needs a tokio runtime.
    pub(crate) fn start(report: Arc<dyn StatusReport>) -> Self {
        let state = Arc::new(FeedState {
            started: Instant::now(),
            topic: Topic::new(MAX_BUFFERED_EVENTS),
            history: Mutex::default(),
            pages: AtomicUsize::new(0),
            page_opened: Notify::new(),
        });
        let producer = tokio::spawn(produce(Arc::clone(&state), report));
        DashboardFeed { state, producer }
    }

    /// Opens a stream for a page. `None`: [`MAX_PAGES`] are open.
    pub(crate) fn subscribe(&self) -> Option<EventStream> {
        let state = &self.state;
        if state.pages.fetch_add(1, Ordering::Relaxed) >= MAX_PAGES {
            state.pages.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let slot = PageSlot(Arc::clone(state));
        let tail = state.topic.subscribe();
        let samples = state.history.lock().json(state.started.elapsed());
        state.page_opened.notify_one();
        let first = Bytes::from(format!("{RETRY}event: history\ndata: {samples}\n\n"));
        Some(EventStream { first: Some(first), tail, _slot: slot })
    }
}

impl Drop for DashboardFeed {
    fn drop(&mut self) {
        self.producer.abort();
    }
}

/// Adds a sample each second, and sends an event to all pages if one is open.
async fn produce(state: Arc<FeedState>, report: Arc<dyn StatusReport>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let mut page_opened = pin!(state.page_opened.notified());
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = &mut page_opened => false,
        };
        let sample = report.sample();
        if is_tick {
            state.history.lock().add(state.started.elapsed(), sample);
        }
        if state.topic.subscribers() == 0 {
            continue;
        }
        // On a blocking thread: `dashboard_status` visits all shapes, and reads some of their
        // files.
        let reporter = Arc::clone(&report);
        let Ok(status) = spawn_blocking(move || reporter.dashboard_status()).await else { continue };
        let sample = sample_json(Duration::ZERO, &sample);
        state.topic.publish(format!("data: {{\"sample\":{sample},\"status\":{status}}}\n\n"));
    }
}

/// One of the [`MAX_PAGES`] slots. Released on drop.
#[derive(Debug)]
struct PageSlot(Arc<FeedState>);

impl Drop for PageSlot {
    fn drop(&mut self) {
        self.0.pages.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Event stream of one page: first the history, then one event each second.
#[derive(Debug)]
pub struct EventStream {
    first: Option<Bytes>,
    tail: Tail,
    _slot: PageSlot,
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        // A stream that fell behind ends, and the browser reconnects.
        Pin::new(&mut self.tail).poll_frame(cx).map(|frame| frame.and_then(Result::ok).map(Ok))
    }
}
