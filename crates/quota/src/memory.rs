//! The store in memory: for one process, and for tests.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::ledger::Ledger;
use crate::store::{Beat, Calling, Draw, Drawn, Holdings, MemberId, Pulse, Settled, Settlement, Store};

/// Keeps the counts in this process. Clones are the same store, so that several members can share it.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    ledger: Arc<Mutex<Ledger>>,
    origin: Instant,
    pressed: Arc<Notify>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::newborn()));
        MemoryStore { ledger, origin: Instant::now(), pressed: Arc::default() }
    }

    /// Loses everything, as a store does that restarts without its data: for tests of what happens then.
    pub fn lose_everything(&self) {
        *self.locked() = Ledger::default();
    }

    fn locked(&self) -> MutexGuard<'_, Ledger> {
        // Every method leaves the ledger whole, even one that panics: it changes nothing before it has decided.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl Store for MemoryStore {
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        Box::pin(async move { Ok(self.locked().beat(&beat, self.now())) })
    }

    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        Box::pin(async move {
            let mut ledger = self.locked();
            let before = ledger.pressings;
            let settled = ledger.settle(&settlement, self.now());
            if ledger.pressings > before {
                self.pressed.notify_waiters();
            }
            Ok(settled)
        })
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        Box::pin(async move {
            self.locked().leave(&member);
            Ok(())
        })
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        Box::pin(async move { Ok(self.locked().draw(&draw, self.now())) })
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        Box::pin(async move { Ok(self.locked().look(&accounts, self.now())) })
    }

    fn pressed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.pressed.notified())
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}
