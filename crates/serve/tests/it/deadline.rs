//! Waits that fail the test, rather than hang.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Far beyond what anything here takes on a busy machine; reaching it is a failure.
const DEADLINE: Duration = Duration::from_secs(60);

/// Fails the test, rather than hang.
#[track_caller]
pub(crate) fn within<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let answer = timeout(DEADLINE, future).await;
        answer.unwrap_or_else(|_| panic!("{place}: {what} took longer than {DEADLINE:?}"))
    }
}

/// Asks until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < DEADLINE, "{what}: still not so after {DEADLINE:?}");
        sleep(Duration::from_millis(10)).await;
    }
}
