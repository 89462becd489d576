//! Memory that a crowd needed goes back to the system when the crowd has left.
//!
//! The allocator keeps what was freed, in pieces between what is still in use; without a nudge, a process that once had
//! ten thousand streams looks as if it had them still.

/// When to give memory back. Pure.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    most: u64,
}

/// Fewer than so many are not worth the walk through the heap.
const WORTH: u64 = 500;

impl Crowd {
    /// Says whether half of the most that were here have left since the last time.
    pub(crate) fn has_left(&mut self, here: u64) -> bool {
        self.most = self.most.max(here);
        let left = self.most - here >= WORTH && here <= self.most / 2;
        if left {
            self.most = here;
        }
        left
    }
}

/// Gives back what can be. Takes milliseconds for a large heap, and blocks allocations meanwhile.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it has no precondition, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_once_when_half_have_left() {
        let mut crowd = Crowd::default();
        let said: Vec<bool> =
            [0, 10, 0, 5_000, 3_000, 2_500, 2_400, 1_100, 100, 0].map(|here| crowd.has_left(here)).into();
        assert_eq!(said, [false, false, false, false, false, true, false, true, true, false]);
    }
}
