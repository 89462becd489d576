//! Memory that isn't needed any more goes back to the system.
//!
//! The allocator keeps what was freed, in pieces between what is still in use; without a nudge, a process that once had
//! ten thousand streams looks as if it had them still. And it keeps more the more threads allocate large pieces in turn: with its own settings,
//! a server whose shapes come and go had 460 MB after six minutes (`script/soak`), and with these 65 after three.

/// When to give memory back: when half of a crowd has left, and once more when the rest has come to rest. Pure.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    most: u64,
    last: u64,
    /// Memory went back, and more may have been freed since.
    stirred: bool,
}

/// Fewer than so many are not worth the walk through the heap.
const WORTH: u64 = 500;

impl Crowd {
    /// Told every now and then how many are here, says whether to give memory back.
    pub(crate) fn has_left(&mut self, here: u64) -> bool {
        self.most = self.most.max(here);
        let half = self.most - here >= WORTH && here <= self.most / 2;
        let rest = self.stirred && here >= self.last;
        self.last = here;
        if half || rest {
            self.most = here;
            self.stirred = half;
        }
        half || rest
    }
}

/// Has the allocator keep less. For the start of a program, before it has threads; what whoever runs it says to the allocator holds.
pub fn be_frugal() {
    let is_told = |name: &str| name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES";
    if !std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(is_told)) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::be_frugal();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::num::NonZero;

    /// Pieces from this size on go back to the system as soon as they are freed.
    const LARGE_BYTES: i32 = 256 * 1024;
    /// What the end of a heap may keep.
    const SLACK_BYTES: i32 = 1024 * 1024;
    /// Heaps that threads share; the allocator's own choice is eight for each CPU.
    const MOST_HEAPS: usize = 4;

    pub(super) fn be_frugal() {
        let heaps = std::thread::available_parallelism().map_or(1, NonZero::get).min(MOST_HEAPS);
        for (what, value) in [
            (libc::M_ARENA_MAX, heaps as i32),
            (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
            (libc::M_TRIM_THRESHOLD, SLACK_BYTES),
        ] {
            // SAFETY: it has no precondition, and refuses values that it can't take.
            unsafe { libc::mallopt(what, value) };
        }
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
    fn memory_goes_back_when_half_have_left_and_once_more_when_it_is_quiet() {
        let mut crowd = Crowd::default();
        let told = [0, 10, 0, 5_000, 3_000, 2_500, 450, 100, 0, 0, 0, 400, 0];
        let said: Vec<u64> = told
            .iter()
            .enumerate()
            .filter(|(_, here)| crowd.has_left(**here))
            .map(|(at, _)| at as u64)
            .collect();
        assert_eq!(said, [5, 6, 9], "at 2,500, at 450, and at rest");
    }
}
