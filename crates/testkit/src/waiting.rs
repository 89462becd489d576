//! Timeouts of tests.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Timeout of every wait in a test; far longer than any timeout under test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the future's output; panics with `what` after [`PATIENCE`].
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Polls until `ask` returns `wanted`; panics after [`PATIENCE`].
pub async fn eventually<T: PartialEq + Debug>(what: &str, wanted: T, mut ask: impl AsyncFnMut() -> T) {
    let begun = Instant::now();
    loop {
        let found = ask().await;
        if found == wanted {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: wanted {wanted:?}, still {found:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
