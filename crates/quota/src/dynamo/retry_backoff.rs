//! `RetryBackoff`: pauses between the tries of a conditional write.

use std::time::Duration;

use crate::store::StoreError;

/// About 1.5 s in all; callers have their own timeouts.
const MAX_TRIES: u32 = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Backoff between retries: random pauses that double, and a maximum number of tries.
#[derive(Debug, Default)]
pub(super) struct RetryBackoff {
    tries: u32,
}

impl RetryBackoff {
    /// Waits before the next try. Fails after the last one.
    pub(super) async fn wait(&mut self) -> Result<(), StoreError> {
        self.tries += 1;
        if self.tries >= MAX_TRIES {
            return Err(StoreError::Unexpected(format!("{MAX_TRIES} tries were cancelled by other writers")));
        }
        tokio::time::sleep(self.longest().mul_f64(fastrand::f64())).await;
        Ok(())
    }

    fn longest(&self) -> Duration {
        (FIRST_PAUSE * 2_u32.pow(self.tries.min(8))).min(MAX_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_number_of_retries_is_bounded() {
        let (mut backoff, started) = (RetryBackoff::default(), tokio::time::Instant::now());
        let mut tries = 0;
        while backoff.wait().await.is_ok() {
            tries += 1;
        }
        assert_eq!(tries, MAX_TRIES - 1);
        assert!(started.elapsed() < MAX_PAUSE * MAX_TRIES);
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let longest: Vec<_> = (1..8).map(|tries| RetryBackoff { tries }.longest().as_millis()).collect();
        assert_eq!(longest, [8, 16, 32, 64, 100, 100, 100]);
    }
}
