//! Counts heap allocations, for every contestant alike.
//!
//! While nobody counts, an allocation costs one relaxed load more, so that the timed races are not disturbed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Runs `work` and counts the allocations (growing ones included) of the whole process meanwhile.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNT.load(Relaxed);
    ENABLED.store(true, Relaxed);
    let done = work();
    ENABLED.store(false, Relaxed);
    (done, COUNT.load(Relaxed) - before)
}

struct CountingAllocator;

fn count() {
    if ENABLED.load(Relaxed) {
        COUNT.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is passed on to `System` unchanged; counting touches atomics only and never allocates.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise to us is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `block` came from `System`, as all blocks do.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; `block` came from `System`, as all blocks do.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_allocated_meanwhile_is_counted() {
        let (boxes, counted) = super::during(|| (0..100).map(Box::new).collect::<Vec<_>>());
        assert!(counted >= 101, "{counted} counted for {} boxes and their vector", boxes.len());
    }
}
