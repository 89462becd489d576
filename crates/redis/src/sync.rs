//! Locks, atomics, counted references and thread-locals of the code that `loom` checks: those of
//! `parking_lot` and the standard library, or of `loom` in its tests.
//!
//! `script/loom` builds the tests with `--cfg forebay_loom`. `loom` runs a test with every order of
//! operations, so it must see them; `parking_lot` doesn't know it. The cfg isn't `loom`, because
//! tokio has no network under that one.

#[cfg(not(all(test, forebay_loom)))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

#[cfg(all(test, forebay_loom))]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(all(test, forebay_loom)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(all(test, forebay_loom))]
pub(crate) use self::checked::{LoomMutex as Mutex, MutexGuard};

#[cfg(all(test, forebay_loom))]
mod checked {
    pub(crate) use loom::sync::MutexGuard;

    /// `loom`'s mutex with the methods of `parking_lot`'s.
    #[derive(Debug, Default)]
    pub(crate) struct LoomMutex<T>(loom::sync::Mutex<T>);

    impl<T> LoomMutex<T> {
        pub(crate) fn new(value: T) -> LoomMutex<T> {
            LoomMutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom's locks are not poisoned")
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect("loom's locks are not poisoned")
        }
    }
}
