//! The lock: one instance at a time.
//!
//! It is asked for again and again, never waited for in the server: a backend that waits holds back the vacuum of the whole database.

use std::time::Duration;

use super::{Backend, Ended, Order, Source};
use crate::consumer::Consumer;
use crate::core::breaker::{Breaker, Holder};
use crate::core::machine::Event;
use crate::error::{Doing, Failure};
use crate::sql;

/// How often the lock is asked for; each wait is shortened by up to 300 ms, so that instances don't ask in step.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const JITTER_MILLIS: u64 = 300;

impl<C: Consumer> Source<C> {
    /// Waits until this connection holds the lock of the slot's name. `ghost`: the backend of our last connection, which the server may not
    /// have noticed to be dead.
    pub(super) async fn take_lock(&mut self, ghost: Option<Backend>) -> Result<(), Ended> {
        let slot = sql::literal(&self.setting.config.slot);
        let asking = format!("SELECT pg_try_advisory_lock(hashtext({slot}))");
        let (mut breaker, mut told) = (Breaker::new(self.setting.config.lock_patience), false);
        loop {
            let answer = self.ask(Doing::Locking, &asking).await?;
            if answer.first().and_then(|row| row.first()).is_some_and(|word| word.as_deref() == Some("t")) {
                return Ok(());
            }
            if !told {
                told = true;
                let why = format!("another instance holds the lock of the slot {}", self.setting.config.slot);
                tracing::info!(
                    slot = self.setting.config.slot,
                    "another instance holds the lock: waiting for it to end"
                );
                self.tell(Event::LockBusy(self.attempt, why)).await?;
                if let Some(ghost) = ghost {
                    self.end_backend(ghost, "true").await?;
                }
            }
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(Order::CheckLock) => self.check_holder(&mut breaker, &slot).await?,
                    Some(Order::Close) | None => return Err(Ended::Told),
                    Some(Order::PrepareConsumer | Order::StartStreaming) => {}
                },
                () = tokio::time::sleep(ASK_AGAIN - jitter(self.attempt ^ self.wire.backend_pid() as u64)) => {}
            }
        }
    }

    /// Ends a holder that is abandoned: see `core/breaker.rs`.
    async fn check_holder(&mut self, breaker: &mut Breaker, slot: &str) -> Result<(), Ended> {
        // Two connections may hold the number of a lock in one database; the database is a part of it.
        let asking = format!(
            "SELECT l.pid, (extract(epoch FROM a.backend_start) * 1000000)::bigint, CASE WHEN a.state = 'idle' THEN \
                 floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::bigint END \
             FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid() \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtext({slot})::bigint \
             AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = {slot} AND s.active)"
        );
        let rows = self.ask(Doing::Locking, &asking).await?;
        let holder = rows.first().and_then(|row| match row.as_slice() {
            [Some(pid), Some(began), idle] => Some(Holder {
                pid: pid.parse().ok()?,
                began: began.parse().ok()?,
                idle: idle.as_ref().and_then(|millis| millis.parse().ok()).map(Duration::from_millis),
            }),
            _ => None,
        });
        if let Some(pid) = breaker.check(holder.as_ref()) {
            let began = holder.map(|holder| holder.began).unwrap_or_default();
            // In one statement: it may have begun to speak, or to stream, since it was looked at.
            let still = format!(
                "state = 'idle' AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = {slot} AND s.active)"
            );
            self.end_backend(Backend { pid, began }, &still).await?;
        }
        Ok(())
    }

    /// Ends this very backend, if that still holds.
    async fn end_backend(&mut self, backend: Backend, still: &str) -> Result<(), Ended> {
        let Backend { pid, began } = backend;
        tracing::warn!(
            pid,
            slot = self.setting.config.slot,
            "the lock's holder is abandoned: ending its backend"
        );
        let asking = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {pid} AND {still} \
             AND (extract(epoch FROM backend_start) * 1000000)::bigint = {began}"
        );
        match self.ask(Doing::Locking, &asking).await {
            // It is somebody's whom this user may not end: a person must, and until then there is nothing to do but wait.
            Err(Ended::Failed(Failure::Server { said, .. })) => {
                tracing::warn!(pid, %said, "the backend couldn't be ended")
            }
            ended => drop(ended?),
        }
        Ok(())
    }
}

/// Between nothing and 300 ms, another for each connection and each moment.
fn jitter(salt: u64) -> Duration {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(salt);
    Duration::from_millis(hasher.finish() % JITTER_MILLIS)
}
