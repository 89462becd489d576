//! Lock breaker: decides which backend may be terminated for holding the lock.
//!
//! Invariant: a live holder is never terminated. A holder counts as abandoned only if two
//! consecutive checks found the same backend, idle for longer than the silence timeout (30 s),
//! while the slot was inactive.
//! Enforced by: a live holder that isn't streaming runs a query every 5 s; one that streams has an
//! active slot.
//! Out of scope: the SQL; see `source/lock.rs`.

use std::time::Duration;

/// Timeouts for a holder of the lock that has gone silent. All instances of one slot should use the
/// same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockTimeouts {
    /// Interval between two checks of the holder. Default: 10 s.
    pub check_interval: Duration,
    /// How long a holder with an inactive slot must have been idle, at two consecutive checks,
    /// before its backend is terminated. Default: 30 s. A live holder runs a query at a sixth of
    /// this interval.
    pub silence_timeout: Duration,
}

impl LockTimeouts {
    /// Returns how often a holder that isn't streaming yet runs a query to show that it is alive.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        self.silence_timeout / 6
    }
}

impl Default for LockTimeouts {
    fn default() -> Self {
        LockTimeouts { check_interval: Duration::from_secs(10), silence_timeout: Duration::from_secs(30) }
    }
}

/// A backend of this database that holds the lock while the slot is inactive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    pub(crate) pid: i32,
    /// Start of the backend, in microseconds. Process ids are reused; the pair is unique.
    pub(crate) started_at: i64,
    /// How long the backend has been idle; `None`: it is active.
    pub(crate) idle: Option<Duration>,
}

/// Keeps the suspect of the last check.
#[derive(Debug)]
pub(crate) struct LockBreaker {
    silence_timeout: Duration,
    suspect: Option<(i32, i64)>,
}

impl LockBreaker {
    pub(crate) fn new(timeouts: LockTimeouts) -> Self {
        LockBreaker { silence_timeout: timeouts.silence_timeout, suspect: None }
    }

    /// Takes the result of a check and returns the process id to terminate, if any.
    pub(crate) fn check(&mut self, holder: Option<&LockHolder>) -> Option<i32> {
        let suspect = holder
            .filter(|holder| holder.idle.is_some_and(|idle| idle > self.silence_timeout))
            .map(|holder| (holder.pid, holder.started_at));
        let before = std::mem::replace(&mut self.suspect, suspect);
        match &self.suspect {
            Some(suspect) if before.as_ref() == Some(suspect) => {
                let pid = suspect.0;
                self.suspect = None;
                Some(pid)
            }
            Some(_) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, started_at: i64, idle_secs: u64) -> LockHolder {
        LockHolder { pid, started_at, idle: Some(Duration::from_secs(idle_secs)) }
    }

    #[test]
    fn a_live_holder_runs_a_query_six_times_within_the_silence_timeout() {
        let timeouts = LockTimeouts::default();
        assert_eq!(
            (timeouts.check_interval, timeouts.silence_timeout),
            (Duration::from_secs(10), Duration::from_secs(30))
        );
        assert_eq!(timeouts.heartbeat_interval(), Duration::from_secs(5));
    }

    #[test]
    fn a_holder_that_two_checks_found_silent_is_terminated_once() {
        let mut breaker = LockBreaker::new(LockTimeouts::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(Some(&holder(7, 12, 41))), Some(7));
        assert_eq!(breaker.check(Some(&holder(7, 12, 51))), None);
    }

    #[test]
    fn a_slow_but_live_holder_is_not_terminated() {
        let mut breaker = LockBreaker::new(LockTimeouts::default());
        for idle in [31, 4, 31, 29, 31] {
            assert_eq!(breaker.check(Some(&holder(7, 12, idle))), None);
        }
        assert_eq!(breaker.check(Some(&LockHolder { pid: 7, started_at: 12, idle: None })), None);
    }

    #[test]
    fn another_backend_with_the_same_process_id_is_not_the_one_that_was_suspected() {
        let mut breaker = LockBreaker::new(LockTimeouts::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(Some(&holder(7, 13, 31))), None);
    }

    #[test]
    fn a_slot_that_was_in_use_in_between_clears_the_suspicion() {
        let mut breaker = LockBreaker::new(LockTimeouts::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(None), None);
        assert_eq!(breaker.check(Some(&holder(7, 12, 51))), None);
    }
}
