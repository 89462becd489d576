//! Counts heap allocations of the whole process.
//!
//! While counting is off, it adds only one relaxed load to an allocation, so timed races are hardly
//! affected.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Runs `work`. Returns its result, and the number of allocations and reallocations that the
/// process made meanwhile.
pub(crate) fn during<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = COUNT.load(Relaxed);
    ENABLED.store(true, Relaxed);
    let done = work();
    ENABLED.store(false, Relaxed);
    (done, COUNT.load(Relaxed) - before)
}

/// Allocator that counts allocations and passes every call to `System`.
struct CountingAllocator;

fn count() {
    if ENABLED.load(Relaxed) {
        COUNT.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is passed to `System` unchanged. Counting uses only atomics and never
// allocates.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, and `System` has the same one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `block` was allocated by `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; `block` was allocated by `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn allocations_of_the_work_are_counted() {
        let (boxes, counted) = super::during(|| (0..100).map(Box::new).collect::<Vec<_>>());
        assert!(counted >= 101, "{counted} counted for {} boxes and their vector", boxes.len());
    }
}
