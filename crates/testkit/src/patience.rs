//! Waiting for what must come, and for as long as no honest machine needs.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// When a test stops to believe in it. Well beyond every deadline in a test.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the future gives; a panic that names it if that takes too long.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let outcome = tokio::time::timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Asks until the answer is the one that is wanted: for what gives no sign when it happens.
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
