//! Mutex and condition variable of the write queue: those of parking_lot, or in the tests of
//! `script/loom` those of loom, which runs a test under every interleaving of its threads.

#[cfg(not(all(test, forebay_loom)))]
pub(super) use parking_lot::{Condvar, Mutex};

#[cfg(all(test, forebay_loom))]
pub(super) use self::modelled::{Condvar, Mutex};

/// The part of parking_lot's interface that the queue uses, over loom's types.
#[cfg(all(test, forebay_loom))]
mod modelled {
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    use loom::sync;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    #[derive(Debug, Default)]
    pub(crate) struct Condvar(sync::Condvar);

    /// `None` only while its thread waits.
    #[derive(Debug)]
    pub(crate) struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("loom has no poisoned locks")))
        }
    }

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let waited = self.0.wait(guard.0.take().expect("the guard is held"));
            guard.0 = Some(waited.expect("loom has no poisoned locks"));
        }

        /// Times out at once: loom has no clock.
        pub(crate) fn wait_while_until<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            mut condition: impl FnMut(&mut T) -> bool,
            _: Instant,
        ) {
            let _still_waiting = condition(guard);
        }

        /// Times out at once: loom has no clock.
        pub(crate) fn wait_while_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            mut condition: impl FnMut(&mut T) -> bool,
            _: Duration,
        ) {
            let _still_waiting = condition(guard);
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("the guard is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("the guard is held")
        }
    }
}
