//! Store health: a full disk, a failed writer, and a directory that must not be served.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::error::{StoreFailure, StoreUnusable};

/// Health of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreHealth {
    is_full: AtomicBool,
    failure: Mutex<Option<StoreFailure>>,
    /// Notified when `failure` is set.
    failed: Notify,
    unusable: Mutex<Option<StoreUnusable>>,
}

impl StoreHealth {
    /// Returns whether the disk is full.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Records that the disk is full, and logs it the first time.
    pub(crate) fn mark_full(&self) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::error!("disk full: replication paused");
        }
    }

    /// Records that the disk has space, and logs it if the disk was full.
    pub(crate) fn mark_not_full(&self) {
        if self.is_full() && self.is_full.swap(false, Ordering::Relaxed) {
            tracing::info!("disk has space again: replication resumed");
        }
    }

    /// Records a fatal error of the writer.
    pub(crate) fn fail(&self, why: &str) {
        tracing::error!(why, "store failed");
        *self.failure.lock() = Some(StoreFailure(why.into()));
        self.failed.notify_waiters();
    }

    pub(crate) fn failure(&self) -> Option<StoreFailure> {
        self.failure.lock().clone()
    }

    /// Waits for a fatal error of the writer.
    pub(crate) async fn wait_for_failure(&self) -> StoreFailure {
        loop {
            let failed = self.failed.notified();
            tokio::pin!(failed);
            failed.as_mut().enable();
            if let Some(failure) = self.failure() {
                return failure;
            }
            failed.await;
        }
    }

    /// Returns why the directory must not be served.
    pub(crate) fn unusable(&self) -> Option<StoreUnusable> {
        *self.unusable.lock()
    }

    pub(crate) fn set_unusable(&self, unusable: Option<StoreUnusable>) {
        *self.unusable.lock() = unusable;
    }
}
