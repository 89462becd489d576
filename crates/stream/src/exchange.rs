//! One HTTP/2 request with its response, as far as its client is waited for.
//!
//! Invariant: a client that takes nothing of a response for `write_timeout`, or sends nothing of a body that the service
//! waits for during `body_read_timeout`, ends that exchange and no other one.
//! Kept by: a response's bytes are counted from when hyper gets them until the socket does ([`Piece`]), and the task of the
//! exchange looks at the clock after each poll ([`run`]). Nobody inside could: while hyper waits for the client's window it
//! polls neither the body nor the service. A body's end is kept back as long as much of it is untaken, since after the end
//! hyper forgets the stream and nothing could reset it.
//! Not for HTTP/1, where the socket is blocked when the client is: see `io.rs` and `meter.rs`.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::ServeConfig;

/// So much may be untaken when a response ends: one frame. It costs no deadline of its own, since the connection's idle
/// time bounds it, and ordinary responses cost no second frame for their end.
const SMALL_TAIL: usize = 16 * 1024;

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

#[derive(Debug, Default)]
pub(crate) struct Exchange(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Bytes of the response that hyper has and the socket has not.
    untaken: usize,
    /// When some were last taken, or were the first to be taken.
    moved: Option<Instant>,
    /// Since when the service waits for more of the request's body.
    awaits_body: Option<Instant>,
    /// The response's end waits until little is untaken.
    keeps_end: bool,
    is_cut: bool,
    task: Option<Waker>,
}

/// What the client did not do in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    Taking,
    Sending,
}

/// Runs an exchange to its end, or cuts it and says why.
pub(crate) async fn run(request: impl Future<Output = ()>, config: &ServeConfig) -> Option<Late> {
    let exchange = Arc::new(Exchange::default());
    let mut request = pin!(CURRENT.scope(Arc::clone(&exchange), request));
    let mut timer = None;
    poll_fn(|cx| {
        exchange.keep(cx.waker());
        if request.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let late = ready!(exchange.poll_late(config, &mut timer, cx));
        exchange.lock().is_cut = true;
        // The service or the body now fails, and hyper resets the stream for whoever else has a part of it. If hyper asks
        // neither, the drop that follows resets it.
        let _ = request.as_mut().poll(cx);
        Poll::Ready(Some(late))
    })
    .await
}

impl Exchange {
    /// The one whose task this is.
    pub(crate) fn current() -> Option<Arc<Exchange>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// The service asked for more of the request's body and has to wait, or no longer has to.
    pub(crate) fn await_body(&self, waits: bool, asking: Option<&Waker>) {
        let mut state = self.lock();
        let since = waits.then(|| state.awaits_body.unwrap_or_else(Instant::now));
        let began = state.awaits_body.is_none() && waits;
        state.awaits_body = since;
        let task =
            state.task.clone().filter(|task| began && !asking.is_some_and(|waker| waker.will_wake(task)));
        drop(state);
        task.into_iter().for_each(Waker::wake); // asked in another task: ours must set its timer
    }

    /// Whether a response's end must be kept back for now. If so, the task is woken when it need not be any longer.
    pub(crate) fn keeps_end(&self) -> bool {
        let mut state = self.lock();
        state.keeps_end = state.has_long_tail();
        state.keeps_end
    }

    pub(crate) fn has_long_tail(&self) -> bool {
        self.lock().has_long_tail()
    }

    fn keep(&self, task: &Waker) {
        let mut state = self.lock();
        match &mut state.task {
            Some(kept) => kept.clone_from(task),
            none => *none = Some(task.clone()),
        }
    }

    fn hand(&self, count: usize, now: Instant) {
        let mut state = self.lock();
        if state.untaken == 0 {
            state.moved = Some(now);
        }
        state.untaken += count;
    }

    fn take(&self, count: usize, now: Instant) {
        let mut state = self.lock();
        state.untaken -= count;
        state.moved = Some(now);
        let may_end = state.keeps_end && !state.has_long_tail();
        state.keeps_end &= !may_end;
        let task = state.task.clone().filter(|_| may_end);
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }

    fn poll_late(
        &self,
        config: &ServeConfig,
        timer: &mut Option<Pin<Box<Sleep>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Late> {
        loop {
            let owed = self.lock().deadline(config);
            let Some((by, late)) = owed else {
                *timer = None;
                return Poll::Pending;
            };
            let set = timer.get_or_insert_with(|| Box::pin(sleep_until(by)));
            // A timer that is early is left alone: most of what is owed is paid long before.
            if set.deadline() > by || (set.is_elapsed() && set.deadline() < by) {
                set.as_mut().reset(by);
            }
            ready!(set.as_mut().poll(cx));
            if set.deadline() >= by {
                return Poll::Ready(late);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_long_tail(&self) -> bool {
        self.untaken > SMALL_TAIL
    }

    /// By when the client must do what.
    fn deadline(&self, config: &ServeConfig) -> Option<(Instant, Late)> {
        let taking =
            self.moved.filter(|_| self.untaken > 0).map(|at| (at + config.write_timeout, Late::Taking));
        let sending = self.awaits_body.map(|at| (at + config.body_read_timeout, Late::Sending));
        taking.into_iter().chain(sending).min_by_key(|(by, _)| *by)
    }
}

/// Bytes of a response on their way through hyper, which are taken as hyper writes them or drops them.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    /// None on HTTP/1.
    exchange: Option<Arc<Exchange>>,
}

impl Piece {
    pub(crate) fn new(bytes: Bytes, exchange: Option<Arc<Exchange>>) -> Piece {
        if let Some(exchange) = exchange.as_ref().filter(|_| !bytes.is_empty()) {
            exchange.hand(bytes.len(), Instant::now());
        }
        Piece { bytes, exchange }
    }

    fn taken(&self, count: usize) {
        if let Some(exchange) = self.exchange.as_ref().filter(|_| count > 0) {
            exchange.take(count, Instant::now());
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.taken(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(count);
        self.taken(count);
        bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.taken(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    const LONG: usize = SMALL_TAIL + 1;

    fn config() -> ServeConfig {
        let mut config = ServeConfig::default();
        (config.write_timeout, config.body_read_timeout) = (Duration::from_secs(30), Duration::from_secs(20));
        config
    }

    fn piece(len: usize) -> Piece {
        Piece::new(vec![0; len].into(), Exchange::current())
    }

    /// Runs an exchange and says how it ended, and when.
    async fn ran(request: impl Future<Output = ()>) -> (Option<Late>, u64) {
        let began = Instant::now();
        let late = run(request, &config()).await;
        (late, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_whose_client_owes_nothing_has_no_deadline() {
        let request = async {
            drop(piece(LONG));
            sleep(Duration::from_secs(100_000)).await;
        };
        assert_eq!(ran(request).await, (None, 100_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_late_and_the_smallest_bite_sets_the_clock_back() {
        let request = async {
            let mut piece = piece(10);
            for _ in 0..3 {
                sleep(Duration::from_secs(29)).await;
                piece.advance(1);
            }
            pending::<()>().await;
        };
        assert_eq!(ran(request).await, (Some(Late::Taking), 3 * 29 + 30));
    }

    #[tokio::test(start_paused = true)]
    async fn more_to_take_gives_no_more_time() {
        let request = async {
            let _first = piece(10);
            sleep(Duration::from_secs(29)).await;
            let _second = piece(10);
            pending::<()>().await;
        };
        assert_eq!(ran(request).await, (Some(Late::Taking), 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_another_task_waits_for_has_a_deadline_too() {
        let request = async {
            let exchange = Exchange::current().unwrap();
            let reader = tokio::spawn(async move {
                sleep(Duration::from_secs(5)).await;
                exchange.await_body(true, None);
                sleep(Duration::from_secs(10)).await;
                exchange.await_body(false, None);
                exchange.await_body(true, None);
            });
            reader.await.unwrap();
            pending::<()>().await;
        };
        assert_eq!(ran(request).await, (Some(Late::Sending), 5 + 10 + 20));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_first_counts() {
        let request = async {
            let _piece = piece(1);
            sleep(Duration::from_secs(1)).await;
            Exchange::current().unwrap().await_body(true, None);
            pending::<()>().await;
        };
        assert_eq!(ran(request).await, (Some(Late::Sending), 21));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_kept_back_until_little_is_untaken() {
        let request = async {
            let exchange = Exchange::current().unwrap();
            let mut tail = piece(LONG);
            let taker = tokio::spawn(async move {
                sleep(Duration::from_secs(7)).await;
                tail.advance(1);
                sleep(Duration::from_secs(7)).await;
            });
            poll_fn(|_cx| if exchange.keeps_end() { Poll::Pending } else { Poll::Ready(()) }).await;
            assert!(!taker.is_finished() && !exchange.has_long_tail());
        };
        assert_eq!(ran(request).await, (None, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_exchange_is_asked_once_more_so_that_it_can_fail() {
        let (failed, fails) = tokio::sync::oneshot::channel();
        let request = async {
            let _piece = piece(1);
            poll_fn(
                |_cx| if Exchange::current().unwrap().is_cut() { Poll::Ready(()) } else { Poll::Pending },
            )
            .await;
            failed.send(()).unwrap();
        };
        assert_eq!(ran(request).await, (Some(Late::Taking), 30));
        fails.await.unwrap();
    }
}
