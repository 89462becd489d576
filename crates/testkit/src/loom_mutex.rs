//! `loom`'s mutex for tests of hand-made waiting.

use loom::sync::{Mutex, MutexGuard};

/// `loom`'s mutex with the methods of `parking_lot`'s.
#[derive(Debug, Default)]
pub struct LoomMutex<T>(Mutex<T>);

impl<T> LoomMutex<T> {
    /// Returns an unlocked mutex.
    pub fn new(value: T) -> LoomMutex<T> {
        LoomMutex(Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("loom's locks are not poisoned")
    }

    /// Returns the lock, or `None` if another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    /// Returns the value. No other thread can have the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("loom's locks are not poisoned")
    }
}
