//! Requests with time limits, and requests that are dropped midway.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use crate::redis::contestant::RedisContestant;

/// Time limit of one attempt.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Sends requests until one succeeds. Returns the time of its reply, or `None` if none succeeded
/// within `limit`.
pub(super) async fn first_reply<C: RedisContestant>(
    mut client: C,
    key: &str,
    limit: Duration,
) -> Option<Instant> {
    let asking = async {
        loop {
            match timeout(CALL_TIMEOUT, client.get(key)).await {
                Ok(Ok(_)) => return Instant::now(),
                Ok(Err(_)) | Err(_) => sleep(Duration::from_millis(1)).await,
            }
        }
    };
    timeout(limit, asking).await.ok()
}

/// Returns the results of the tasks that end within `limit`, and aborts the others.
pub(super) async fn within<T: 'static>(limit: Duration, mut tasks: JoinSet<T>) -> Result<Vec<T>> {
    let (deadline, mut ended) = (tokio::time::Instant::now() + limit, Vec::new());
    while let Ok(Some(task)) = timeout_at(deadline, tasks.join_next()).await {
        ended.push(task?);
    }
    Ok(ended)
}

/// Polls `call` at most `polls` times, once per poll of the task, then drops it. Returns `None` if
/// it was dropped.
pub(super) async fn drop_after_polls<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut polled) = (pin!(call), 0);
    poll_fn(|cx| {
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        polled += 1;
        if polled >= polls {
            return Poll::Ready(None);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Returns the time in milliseconds.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
