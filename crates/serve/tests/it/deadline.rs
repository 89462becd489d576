//! Waits with a deadline, so that a test fails instead of hanging.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Far longer than any step takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for a future. Panics at the deadline.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let answer = timeout(DEADLINE, future).await;
        answer.unwrap_or_else(|_| panic!("{caller}: {what} took longer than {DEADLINE:?}"))
    }
}

/// Waits until a condition is true. Panics at the deadline.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let begun = Instant::now();
    while !condition().await {
        assert!(begun.elapsed() < DEADLINE, "{what}: not true after {DEADLINE:?}");
        sleep(Duration::from_millis(10)).await;
    }
}
