//! Who may be ended for holding the lock.
//!
//! Invariant: nobody is ended who might still be at work. A holder is abandoned only if two checks in a row found the same
//! backend holding the lock, idle for over 30 s, while the slot was not in use. A living holder that isn't streaming yet speaks
//! every 5 s; one that is has the slot in use.

use std::time::Duration;

/// How long those who wait for the lock believe in a holder that says nothing. Instances of one slot should agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockPatience {
    /// How often somebody looks whether the holder is still there: every 10 s by default.
    pub check_every: Duration,
    /// How long a holder whose slot is not in use must have said nothing, at two checks in a row, before its backend is ended: 30 s
    /// by default. A holder that lives speaks six times as often.
    pub silent_for: Duration,
}

impl LockPatience {
    /// How often a holder that isn't streaming yet says something, so that nobody takes it for dead.
    pub(crate) fn sign_of_life(&self) -> Duration {
        self.silent_for / 6
    }
}

impl Default for LockPatience {
    fn default() -> Self {
        LockPatience { check_every: Duration::from_secs(10), silent_for: Duration::from_secs(30) }
    }
}

/// A backend of this database that holds the lock while the slot is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    /// When the backend began, in microseconds: a process id comes again, both together don't.
    pub(crate) began: i64,
    /// For how long it has been idle; `None`: it is doing something.
    pub(crate) idle: Option<Duration>,
}

/// Remembers whom the last check suspected.
#[derive(Debug)]
pub(crate) struct Breaker {
    silent_for: Duration,
    suspect: Option<(i32, i64)>,
}

impl Breaker {
    pub(crate) fn new(patience: LockPatience) -> Self {
        Breaker { silent_for: patience.silent_for, suspect: None }
    }

    /// Takes what a check found; tells whom to end.
    pub(crate) fn check(&mut self, holder: Option<&Holder>) -> Option<i32> {
        let suspect = holder
            .filter(|holder| holder.idle.is_some_and(|idle| idle > self.silent_for))
            .map(|holder| (holder.pid, holder.began));
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

    fn holder(pid: i32, began: i64, idle_secs: u64) -> Holder {
        Holder { pid, began, idle: Some(Duration::from_secs(idle_secs)) }
    }

    #[test]
    fn a_living_holder_speaks_well_before_anybody_loses_patience() {
        let patience = LockPatience::default();
        assert_eq!(
            (patience.check_every, patience.silent_for),
            (Duration::from_secs(10), Duration::from_secs(30))
        );
        assert_eq!(patience.sign_of_life(), Duration::from_secs(5));
    }

    #[test]
    fn a_holder_that_two_checks_found_silent_is_ended_once() {
        let mut breaker = Breaker::new(LockPatience::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(Some(&holder(7, 12, 41))), Some(7));
        assert_eq!(breaker.check(Some(&holder(7, 12, 51))), None);
    }

    #[test]
    fn a_slow_but_living_holder_is_left_alone() {
        let mut breaker = Breaker::new(LockPatience::default());
        for idle in [31, 4, 31, 29, 31] {
            assert_eq!(breaker.check(Some(&holder(7, 12, idle))), None);
        }
        assert_eq!(breaker.check(Some(&Holder { pid: 7, began: 12, idle: None })), None);
    }

    #[test]
    fn another_backend_with_the_same_process_id_is_not_the_one_that_was_suspected() {
        let mut breaker = Breaker::new(LockPatience::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(Some(&holder(7, 13, 31))), None);
    }

    #[test]
    fn a_slot_that_was_in_use_in_between_clears_the_suspicion() {
        let mut breaker = Breaker::new(LockPatience::default());
        assert_eq!(breaker.check(Some(&holder(7, 12, 31))), None);
        assert_eq!(breaker.check(None), None);
        assert_eq!(breaker.check(Some(&holder(7, 12, 51))), None);
    }
}
