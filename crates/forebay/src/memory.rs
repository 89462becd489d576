//! Returns freed memory to the system.
//!
//! glibc's allocator keeps freed blocks that lie between blocks in use. So a process that once had
//! ten thousand streams would keep the memory of all of them. It keeps more if several threads
//! allocate large blocks in turn.
//!
//! Measured with `script/soak`, where shapes are created and deleted all the time: 460 MB after six
//! minutes with glibc's defaults, 65 MB after three minutes with these settings.

/// Decides when to trim the heap: when half of the connections have closed, and once more when
/// their number has stopped falling. Pure.
#[derive(Debug, Default)]
pub(crate) struct TrimPolicy {
    /// Largest number of open connections since the last trim.
    peak: u64,
    /// Number of open connections at the last call.
    last: u64,
    /// Whether the last trim was made while connections were closing. More memory may have been
    /// freed since.
    trimmed_while_falling: bool,
    /// Whether the number has stopped falling since that trim.
    has_settled: bool,
    /// Calls until the next trim may be made.
    pause: u32,
}

/// Minimum number of calls between two trims: a load that rises and falls every second would
/// otherwise block the allocations of every second.
const PAUSE: u32 = 10;

/// Minimum number of closed connections before the heap is trimmed.
const MIN_CLOSED: u64 = 500;

impl TrimPolicy {
    /// Takes the current number of open connections, and the largest number since the last call.
    /// Returns whether to trim the heap. Called about once a second.
    pub(crate) fn should_trim(&mut self, open: u64, peak: u64) -> bool {
        self.peak = self.peak.max(open).max(peak);
        let halved = self.peak - open >= MIN_CLOSED && open <= self.peak / 2;
        let settles = self.trimmed_while_falling && open >= self.last;
        (self.last, self.has_settled) = (open, self.has_settled || settles);
        let trims = (halved || self.has_settled) && self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        if trims {
            self.pause = PAUSE - 1;
            self.peak = open;
            (self.trimmed_while_falling, self.has_settled) = (halved, false);
        }
        trims
    }
}

/// Limits the memory that the allocator caches. Call it before the program starts threads. Does
/// nothing if the environment configures the allocator.
pub fn tune_allocator() {
    let configures_allocator = |name: &str| name.starts_with("MALLOC_") || name == "GLIBC_TUNABLES";
    if !std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(configures_allocator)) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        glibc::tune_allocator();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::num::NonZero;

    /// Size in bytes from which a block is returned to the system as soon as it is freed.
    const LARGE_BYTES: i32 = 256 * 1024;
    /// Free bytes that a heap may keep at its end.
    const TRIM_THRESHOLD_BYTES: i32 = 1024 * 1024;
    /// Maximum number of heaps that threads share. glibc's default is eight for each CPU.
    const MAX_HEAPS: usize = 4;

    pub(super) fn tune_allocator() {
        let heaps = std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_HEAPS);
        for (parameter, value) in [
            (libc::M_ARENA_MAX, heaps as i32),
            (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
            (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
        ] {
            // SAFETY: mallopt has no precondition, and rejects invalid values.
            unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// Returns free memory to the system. Takes milliseconds for a large heap, and blocks allocations
/// meanwhile.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim has no precondition, and touches no block in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_trimmed_when_half_have_closed_and_once_more_when_the_number_settles() {
        let open = [0, 10, 0, 5_000, 3_000, 2_500, 450, 100].into_iter().chain([0; 40]);
        assert_eq!(trims(open.map(|open| (open, open))), [5, 15, 25], "at 2,500, later, and when settled");
    }

    #[test]
    fn connections_that_open_and_close_between_two_samples_are_noticed() {
        let samples = [(0, 0), (0, 5_000), (0, 0), (0, 0), (0, 400), (600, 600), (600, 900)];
        let samples = samples.into_iter().chain([(600, 600); 40]);
        assert_eq!(trims(samples), [1, 11], "when all have closed, and when settled");
    }

    #[test]
    fn a_load_that_rises_and_falls_every_second_does_not_trim_every_second() {
        assert_eq!(trims([(0, 5_000); 100]).len(), 10);
        let swings = (0..100).map(|at| if at % 2 == 0 { (5_000, 5_000) } else { (0, 5_000) });
        let trims = trims(swings);
        assert!(trims.windows(2).all(|two| two[1] - two[0] >= 10), "{trims:?}");
    }

    /// Returns at which samples the heap is trimmed.
    fn trims(samples: impl IntoIterator<Item = (u64, u64)>) -> Vec<usize> {
        let mut trim_policy = TrimPolicy::default();
        let trims = samples.into_iter().enumerate();
        trims.filter(|(_, (open, peak))| trim_policy.should_trim(*open, *peak)).map(|(at, _)| at).collect()
    }
}
