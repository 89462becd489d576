//! Global allocator that measures the memory of the current thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, which counts the bytes that the current thread holds.
///
/// A test binary that measures memory declares it, with `#[global_allocator]`, and calls
/// [`PeakAllocator::peak_of`].
#[derive(Debug)]
pub struct PeakAllocator;

impl PeakAllocator {
    /// Runs `work`. Returns its result, and the most bytes that it held at a time; 0: it allocated
    /// nothing.
    pub fn peak_of<T>(&self, work: impl FnOnce() -> T) -> (T, usize) {
        let before = HELD.get();
        PEAK.set(before);
        let done = work();
        (done, (PEAK.get() - before) as usize)
    }
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is passed to the system's allocator unchanged. Counting uses two thread-local
// cells that need no allocation.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The allocator may keep the old block until the new one is filled.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
