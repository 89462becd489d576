//! HTTP/2 exchange: deadlines of one request and its response.
//!
//! Invariant: a client that accepts nothing of a response for `write_timeout`, or sends nothing of
//! an awaited body for `body_read_timeout`, loses that exchange only.
//! Enforced by: [`TrackedBytes`] counts response bytes from hyper's buffer to the socket, and the
//! exchange's task checks the deadlines after each poll ([`run`]).
//! Out of scope: HTTP/1, where a slow client blocks the socket; see `hyper_socket.rs`.
//!
//! The body and the service can't check deadlines themselves: hyper polls neither while it waits
//! for the client's window. The end of a body is held back while many bytes are unwritten, because
//! hyper forgets a stream after its end and nothing could reset it then.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::HttpServerConfig;

/// Maximum unwritten bytes at the end of a response: one frame. The connection's idle timeout
/// bounds them, and short responses need no separate frame for their end.
const MAX_UNWRITTEN_AT_END: usize = 16 * 1024;

tokio::task_local! {
    /// Exchange whose task is polled. Task-local, because hyper passes the executor an opaque
    /// future: the service adapter, which hyper calls inside it, can't get a parameter.
    static CURRENT: Arc<H2Exchange>;
}

/// One HTTP/2 request and its response, shared by its task and its bodies.
#[derive(Debug, Default)]
pub(crate) struct H2Exchange(Mutex<State>);

/// Progress of an exchange.
#[derive(Debug, Default)]
struct State {
    /// Bytes of the response that hyper holds and the socket hasn't accepted.
    unwritten: usize,
    /// Time of the last written byte, or of the first unwritten one.
    last_progress: Option<Instant>,
    /// Time since which the service waits for more of the request's body.
    awaiting_body_since: Option<Instant>,
    /// The response's end is held back until few bytes are unwritten.
    hold_end: bool,
    timed_out: bool,
    task: Option<Waker>,
}

/// Deadline that the client missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeTimeout {
    Write,
    BodyRead,
}

/// Runs an exchange to its end, or ends it at a deadline and returns which one.
pub(crate) async fn run(
    request: impl Future<Output = ()>,
    config: &HttpServerConfig,
) -> Option<ExchangeTimeout> {
    let exchange = Arc::new(H2Exchange::default());
    let mut request = pin!(CURRENT.scope(Arc::clone(&exchange), request));
    let mut timer = None;
    poll_fn(|cx| {
        exchange.set_task(cx.waker());
        if request.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let timeout = ready!(exchange.poll_timeout(config, &mut timer, cx));
        exchange.0.lock().timed_out = true;
        // The service or the body now fails, and hyper resets the stream. If hyper polls neither,
        // the drop of the request resets it.
        let _ = request.as_mut().poll(cx);
        Poll::Ready(Some(timeout))
    })
    .await
}

impl H2Exchange {
    /// Returns the exchange of the current task.
    pub(crate) fn current() -> Option<Arc<H2Exchange>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.0.lock().timed_out
    }

    /// Records whether the service waits for more of the request's body.
    pub(crate) fn set_awaiting_body(&self, waits: bool, reader: Option<&Waker>) {
        let mut state = self.0.lock();
        let since = waits.then(|| state.awaiting_body_since.unwrap_or_else(Instant::now));
        let began = state.awaiting_body_since.is_none() && waits;
        state.awaiting_body_since = since;
        let task =
            state.task.clone().filter(|task| began && !reader.is_some_and(|waker| waker.will_wake(task)));
        drop(state);
        // The body is read in another task; the exchange's task must set its timer.
        task.into_iter().for_each(Waker::wake);
    }

    /// Returns true if the response's end must wait; the task is woken when the end may be sent.
    pub(crate) fn hold_end(&self) -> bool {
        let mut state = self.0.lock();
        state.hold_end = state.exceeds_end_bound();
        state.hold_end
    }

    pub(crate) fn exceeds_end_bound(&self) -> bool {
        self.0.lock().exceeds_end_bound()
    }

    fn set_task(&self, task: &Waker) {
        let mut state = self.0.lock();
        match &mut state.task {
            Some(waker) => waker.clone_from(task),
            none => *none = Some(task.clone()),
        }
    }

    fn add_unwritten(&self, count: usize, now: Instant) {
        let mut state = self.0.lock();
        if state.unwritten == 0 {
            state.last_progress = Some(now);
        }
        state.unwritten += count;
    }

    fn remove_unwritten(&self, count: usize, now: Instant) {
        let mut state = self.0.lock();
        state.unwritten -= count;
        state.last_progress = Some(now);
        let may_end = state.hold_end && !state.exceeds_end_bound();
        state.hold_end &= !may_end;
        let task = state.task.clone().filter(|_| may_end);
        drop(state);
        task.into_iter().for_each(Waker::wake);
    }

    fn poll_timeout(
        &self,
        config: &HttpServerConfig,
        timer: &mut Option<Pin<Box<Sleep>>>,
        cx: &mut Context<'_>,
    ) -> Poll<ExchangeTimeout> {
        loop {
            let due = self.0.lock().deadline(config);
            let Some((by, timeout)) = due else {
                *timer = None;
                return Poll::Pending;
            };
            let set = timer.get_or_insert_with(|| Box::pin(sleep_until(by)));
            // An earlier timer is left alone: most deadlines are met long before.
            if set.deadline() > by || (set.is_elapsed() && set.deadline() < by) {
                set.as_mut().reset(by);
            }
            ready!(set.as_mut().poll(cx));
            if set.deadline() >= by {
                return Poll::Ready(timeout);
            }
        }
    }
}

impl State {
    fn exceeds_end_bound(&self) -> bool {
        self.unwritten > MAX_UNWRITTEN_AT_END
    }

    /// Returns the next deadline and its kind.
    fn deadline(&self, config: &HttpServerConfig) -> Option<(Instant, ExchangeTimeout)> {
        let writing = self
            .last_progress
            .filter(|_| self.unwritten > 0)
            .map(|at| (at + config.write_timeout, ExchangeTimeout::Write));
        let reading =
            self.awaiting_body_since.map(|at| (at + config.body_read_timeout, ExchangeTimeout::BodyRead));
        writing.into_iter().chain(reading).min_by_key(|(by, _)| *by)
    }
}

/// Response bytes in hyper's buffer; counted as written when hyper writes or drops them.
#[derive(Debug)]
pub(crate) struct TrackedBytes {
    bytes: Bytes,
    /// None on HTTP/1.
    exchange: Option<Arc<H2Exchange>>,
}

impl TrackedBytes {
    pub(crate) fn new(bytes: Bytes, exchange: Option<Arc<H2Exchange>>) -> TrackedBytes {
        if let Some(exchange) = exchange.as_ref().filter(|_| !bytes.is_empty()) {
            exchange.add_unwritten(bytes.len(), Instant::now());
        }
        TrackedBytes { bytes, exchange }
    }

    fn record_written(&self, count: usize) {
        if let Some(exchange) = self.exchange.as_ref().filter(|_| count > 0) {
            exchange.remove_unwritten(count, Instant::now());
        }
    }
}

impl Buf for TrackedBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.record_written(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(count);
        self.record_written(count);
        bytes
    }
}

impl Drop for TrackedBytes {
    fn drop(&mut self) {
        self.record_written(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;

    const LONG: usize = MAX_UNWRITTEN_AT_END + 1;

    fn config() -> HttpServerConfig {
        let mut config = HttpServerConfig::default();
        (config.write_timeout, config.body_read_timeout) = (Duration::from_secs(30), Duration::from_secs(20));
        config
    }

    fn bytes(len: usize) -> TrackedBytes {
        TrackedBytes::new(vec![0; len].into(), H2Exchange::current())
    }

    /// Runs an exchange; returns how it ended, and after how many seconds.
    async fn run_timed(request: impl Future<Output = ()>) -> (Option<ExchangeTimeout>, u64) {
        let began = Instant::now();
        let timeout = run(request, &config()).await;
        (timeout, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn an_exchange_that_does_not_wait_for_its_client_has_no_deadline() {
        let request = async {
            drop(bytes(LONG));
            sleep(Duration::from_secs(100_000)).await;
        };
        assert_eq!(run_timed(request).await, (None, 100_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_accepts_nothing_times_out_and_one_byte_restarts_the_timer() {
        let request = async {
            let mut piece = bytes(10);
            for _ in 0..3 {
                sleep(Duration::from_secs(29)).await;
                piece.advance(1);
            }
            pending::<()>().await;
        };
        assert_eq!(run_timed(request).await, (Some(ExchangeTimeout::Write), 3 * 29 + 30));
    }

    #[tokio::test(start_paused = true)]
    async fn further_response_bytes_do_not_extend_the_deadline() {
        let request = async {
            let _first = bytes(10);
            sleep(Duration::from_secs(29)).await;
            let _second = bytes(10);
            pending::<()>().await;
        };
        assert_eq!(run_timed(request).await, (Some(ExchangeTimeout::Write), 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_body_read_in_another_task_has_a_deadline_too() {
        let request = async {
            let exchange = H2Exchange::current().unwrap();
            let reader = tokio::spawn(async move {
                sleep(Duration::from_secs(5)).await;
                exchange.set_awaiting_body(true, None);
                sleep(Duration::from_secs(10)).await;
                exchange.set_awaiting_body(false, None);
                exchange.set_awaiting_body(true, None);
            });
            reader.await.unwrap();
            pending::<()>().await;
        };
        assert_eq!(run_timed(request).await, (Some(ExchangeTimeout::BodyRead), 5 + 10 + 20));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_deadline_applies() {
        let request = async {
            let _piece = bytes(1);
            sleep(Duration::from_secs(1)).await;
            H2Exchange::current().unwrap().set_awaiting_body(true, None);
            pending::<()>().await;
        };
        assert_eq!(run_timed(request).await, (Some(ExchangeTimeout::BodyRead), 21));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_end_is_held_back_until_few_bytes_are_unwritten() {
        let request = async {
            let exchange = H2Exchange::current().unwrap();
            let mut unwritten = bytes(LONG);
            let taker = tokio::spawn(async move {
                sleep(Duration::from_secs(7)).await;
                unwritten.advance(1);
                sleep(Duration::from_secs(7)).await;
            });
            poll_fn(|_cx| if exchange.hold_end() { Poll::Pending } else { Poll::Ready(()) }).await;
            assert!(!taker.is_finished() && !exchange.exceeds_end_bound());
        };
        assert_eq!(run_timed(request).await, (None, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timed_out_exchange_is_polled_once_more_so_that_it_can_fail() {
        let (failed, fails) = tokio::sync::oneshot::channel();
        let request =
            async {
                let _piece = bytes(1);
                poll_fn(|_cx| {
                    if H2Exchange::current().unwrap().timed_out() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                failed.send(()).unwrap();
            };
        assert_eq!(run_timed(request).await, (Some(ExchangeTimeout::Write), 30));
        fails.await.unwrap();
    }
}
