//! Locks, atomics and counted references of the code that `loom` checks: those of `parking_lot` and
//! the standard library, or of `loom` in its tests.
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
pub(crate) use forebay_testkit::LoomMutex as Mutex;
#[cfg(all(test, forebay_loom))]
pub(crate) use loom::sync::MutexGuard;
