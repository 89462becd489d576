//! `MemoryStore`: a store in memory, for one process and for tests.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::ledger::StoreLedger;
use crate::store::{
    Heartbeat, HeartbeatReply, Holdings, MemberId, Settlement, SettlementReply, Store, StoreFuture,
    TokenReply, TokenRequest,
};

/// Keeps the counts in this process. Clones share their data, so that several members can use one
/// store.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    /// Consistent even after a panic under the lock: its methods decide before they write.
    ledger: Arc<Mutex<StoreLedger>>,
    origin: Instant,
    pressure_raised: Arc<Notify>,
}

impl MemoryStore {
    /// Creates an empty store that grants at once.
    pub fn new() -> Self {
        let ledger = Arc::new(Mutex::new(StoreLedger::established()));
        MemoryStore { ledger, origin: Instant::now(), pressure_raised: Arc::default() }
    }

    /// Deletes all data, like a store that restarts without persistence. For tests.
    pub fn lose_everything(&self) {
        *self.ledger.lock() = StoreLedger::default();
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
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        Box::pin(async move { Ok(self.ledger.lock().heartbeat(&heartbeat, self.now())) })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        Box::pin(async move {
            let mut ledger = self.ledger.lock();
            let before = ledger.pressure_count;
            let settled = ledger.settle(&settlement, self.now());
            if ledger.pressure_count > before {
                self.pressure_raised.notify_waiters();
            }
            Ok(settled)
        })
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.ledger.lock().leave(&member);
            Ok(())
        })
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        Box::pin(async move { Ok(self.ledger.lock().draw(&draw, self.now())) })
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        Box::pin(async move { Ok(self.ledger.lock().holdings(&accounts, self.now())) })
    }

    fn wait_for_pressure(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.pressure_raised.notified())
    }

    fn kind(&self) -> &'static str {
        "memory"
    }
}
