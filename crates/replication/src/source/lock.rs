//! The advisory lock of the slot's name, which one instance at a time holds.
//!
//! The lock is polled with `pg_try_advisory_lock`. A backend that waited in `pg_advisory_lock`
//! would hold back vacuum in the whole database.

use std::time::Duration;

use super::{BackendId, ReplicationSource, SourceCommand, SourceEnd};
use crate::consumer::Consumer;
use crate::core::lock_breaker::{LockBreaker, LockHolder};
use crate::core::machine::Event;
use crate::error::{ReplicationError, SourceOperation};
use crate::sql;

/// Interval between two tries, shortened by up to 300 ms so that instances don't try at the same
/// time.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const JITTER_MILLIS: u64 = 300;

impl<C: Consumer> ReplicationSource<C> {
    /// Waits until this connection holds the lock. `previous` is the backend of this instance's
    /// last connection. It may still hold the lock if the server hasn't detected the lost client.
    pub(super) async fn take_lock(&mut self, previous: Option<BackendId>) -> Result<(), SourceEnd> {
        let slot = sql::literal(&self.context.config.slot);
        let query = format!("SELECT pg_try_advisory_lock(hashtext({slot}))");
        let (mut breaker, mut is_reported) = (LockBreaker::new(self.context.config.lock_timeouts), false);
        loop {
            let rows = self.query(SourceOperation::AcquireLock, &query).await?;
            if rows.first().and_then(|row| row.first()).is_some_and(|value| value.as_deref() == Some("t")) {
                return Ok(());
            }
            if !is_reported {
                is_reported = true;
                let why = format!("another instance holds the lock of the slot {}", self.context.config.slot);
                tracing::info!(
                    slot = self.context.config.slot,
                    "waiting for the lock: another instance holds it"
                );
                self.notify(Event::LockBusy(self.attempt, why)).await?;
                if let Some(previous) = previous {
                    self.terminate_backend(previous, "true").await?;
                }
            }
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(SourceCommand::CheckLock) => self.check_holder(&mut breaker, &slot).await?,
                    Some(SourceCommand::Close) | None => return Err(SourceEnd::Closed),
                    Some(SourceCommand::PrepareConsumer | SourceCommand::StartStreaming) => {}
                },
                () = tokio::time::sleep(RETRY_INTERVAL - jitter()) => {}
            }
        }
    }

    /// Terminates an abandoned holder; see `core/lock_breaker.rs`.
    async fn check_holder(&mut self, breaker: &mut LockBreaker, slot: &str) -> Result<(), SourceEnd> {
        // Advisory locks are per database: a holder in another database is not a holder of this
        // lock.
        let query = format!(
            "SELECT l.pid, (extract(epoch FROM a.backend_start) * 1000000)::bigint, CASE WHEN a.state = 'idle' THEN \
                 floor(extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::bigint END \
             FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid <> pg_backend_pid() \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtext({slot})::bigint \
             AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = {slot} AND s.active)"
        );
        let rows = self.query(SourceOperation::AcquireLock, &query).await?;
        let holder = rows.first().and_then(|row| match row.as_slice() {
            [Some(pid), Some(started_at), idle] => Some(LockHolder {
                pid: pid.parse().ok()?,
                started_at: started_at.parse().ok()?,
                idle: idle.as_ref().and_then(|millis| millis.parse().ok()).map(Duration::from_millis),
            }),
            _ => None,
        });
        if let Some(pid) = breaker.check(holder.as_ref()) {
            let started_at = holder.map(|holder| holder.started_at).unwrap_or_default();
            // Checked again in the same statement: the holder may have run a query or started to
            // stream.
            let condition = format!(
                "state = 'idle' AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = {slot} AND s.active)"
            );
            self.terminate_backend(BackendId { pid, started_at }, &condition).await?;
        }
        Ok(())
    }

    /// Terminates a backend if `condition`, an SQL expression on pg_stat_activity, holds.
    async fn terminate_backend(&mut self, backend: BackendId, condition: &str) -> Result<(), SourceEnd> {
        let BackendId { pid, started_at } = backend;
        tracing::warn!(
            pid,
            slot = self.context.config.slot,
            "lock holder abandoned: terminating its backend"
        );
        let query = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {pid} AND {condition} \
             AND (extract(epoch FROM backend_start) * 1000000)::bigint = {started_at}"
        );
        match self.query(SourceOperation::AcquireLock, &query).await {
            // This user may not terminate the backend, so an operator must. Polling continues
            // until then.
            Err(SourceEnd::Failed(ReplicationError::Server { error, .. })) => {
                tracing::warn!(pid, %error, "lock holder not terminated")
            }
            result => drop(result?),
        }
        Ok(())
    }
}

/// Returns a random duration below 300 ms.
fn jitter() -> Duration {
    Duration::from_millis(fastrand::u64(..JITTER_MILLIS))
}
