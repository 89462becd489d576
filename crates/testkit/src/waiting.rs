//! Timeouts and polling in tests.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Timeout of every wait in a test; far longer than any timeout under test.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the future's output; panics with `what` after [`TEST_TIMEOUT`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(TEST_TIMEOUT, future).await;
    outcome.unwrap_or_else(|_| panic!("not within {TEST_TIMEOUT:?}: {what}"))
}

/// Calls `query` until it returns `wanted`; panics with `what` after [`TEST_TIMEOUT`].
pub async fn eventually<T: PartialEq + Debug>(what: &str, wanted: T, mut query: impl AsyncFnMut() -> T) {
    let started_at = Instant::now();
    loop {
        let found = query().await;
        if found == wanted {
            return;
        }
        assert!(started_at.elapsed() < TEST_TIMEOUT, "{what}: wanted {wanted:?}, still {found:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
