//! The manager: public handle of this crate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_pgoutput::Lsn;
use forebay_reservoir::{ConnectionGuard, PostgresClient};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::config::{ManagerConfig, ManagerConfigError};
use crate::consumer::Consumer;
use crate::core::machine::{Event, ManagerEvent};
use crate::manager_tasks;
use crate::pools::PoolError;
use crate::publication::{PublicationVersions, PublishError, TableName, TablePublication};
use crate::source::{Gauges, REPLY_TIMEOUT};
use crate::status::{ManagerPhase, ManagerStatus, ManagerStep, Positions};
use crate::usage_gate::{AwakeGuard, UsageGate};
use crate::worker::{self, ManagerContext};

/// Handle of the replication connection and the pools of one database. Cheap to clone; dropping the
/// last clone shuts the manager down.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<ManagerInner>,
}

struct ManagerInner {
    context: Arc<ManagerContext>,
    status: watch::Receiver<ManagerStatus>,
    gauges: Arc<Gauges>,
    /// Dropped with the last handle; the worker then shuts down.
    _alive: oneshot::Sender<()>,
}

/// Why the manager is not ready.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The manager halted: an operator must act, or it panicked too often. It retries every 30 s.
    #[error("{why}")]
    Halted {
        /// What happened, and what to do.
        why: String,
    },
    /// The manager is shut down, or shutting down.
    #[error("the manager is shut down")]
    Stopped,
}

impl Manager {
    /// Starts to follow a database, in tasks on the current tokio runtime.
    ///
    /// # Errors
    /// Fails if the configuration is invalid. Errors of the database appear in
    /// [`status`](Self::status).
    pub fn start<C: Consumer>(config: ManagerConfig, consumer: C) -> Result<Self, ManagerConfigError> {
        config.check()?;
        let (alive, handles_dropped) = oneshot::channel();
        let (context, status, gauges) = worker::start(config, consumer, handles_dropped);
        Ok(Manager { inner: Arc::new(ManagerInner { context, status, gauges, _alive: alive }) })
    }

    /// Returns the current status.
    pub fn status(&self) -> ManagerStatus {
        self.inner.status.borrow().clone()
    }

    /// Returns the positions of the stream.
    pub fn positions(&self) -> Positions {
        self.inner.gauges.positions()
    }

    /// Returns a receiver of the status. A slow receiver gets only the latest one.
    pub fn watch(&self) -> watch::Receiver<ManagerStatus> {
        self.inner.status.clone()
    }

    /// Returns a receiver of all later events. A slow receiver misses the oldest, and gets their
    /// number.
    pub fn events(&self) -> broadcast::Receiver<ManagerEvent> {
        self.inner.context.subscribers.subscribe()
    }

    /// Waits until the status matches `wanted`.
    ///
    /// # Errors
    /// Fails if the manager halted or is shut down, unless `wanted` matches that.
    pub async fn wait_until(
        &self,
        mut wanted: impl FnMut(&ManagerStatus) -> bool,
    ) -> Result<ManagerStatus, NotReady> {
        let mut status = self.inner.status.clone();
        let is_final =
            |status: &ManagerStatus| matches!(status.step, ManagerStep::Halted | ManagerStep::Stopped);
        let found = status.wait_for(|status| wanted(status) || is_final(status)).await;
        let found = found.map_err(|_| NotReady::Stopped)?.clone();
        match found.step {
            _ if wanted(&found) => Ok(found),
            ManagerStep::Halted => Err(NotReady::Halted { why: found.trouble.unwrap_or_default() }),
            _ => Err(NotReady::Stopped),
        }
    }

    /// Waits until changes arrive and snapshots can be taken.
    ///
    /// # Errors
    /// Fails if the manager halted or is shut down.
    pub async fn ready(&self) -> Result<ManagerStatus, NotReady> {
        self.wait_until(|status| status.is_ready() && status.phase == ManagerPhase::Running).await
    }

    /// Waits until the stream has passed a WAL position: the consumer has received every
    /// transaction whose commit is before `lsn`.
    ///
    /// An idle database causes no wait: the server sends a keepalive with its position as soon as
    /// it has flushed WAL that isn't acknowledged. Without commits, it may flush
    /// `pg_current_wal_insert_lsn()` seconds later; any commit flushes it at once.
    ///
    /// # Errors
    /// Fails if the manager halted or is shut down. It waits while the connection is lost.
    pub async fn wait_until_received(&self, lsn: Lsn) -> Result<(), NotReady> {
        tokio::select! {
            biased;
            () = self.inner.gauges.position.reaches(lsn) => Ok(()),
            ended = self.wait_until(|_| false) => ended.map(drop),
        }
    }

    /// Wakes a sleeping manager, waits until it is ready, and keeps it awake while the guard
    /// exists.
    ///
    /// # Errors
    /// Fails if the manager halted or is shut down.
    pub async fn wake(&self) -> Result<AwakeGuard, NotReady> {
        let guard = loop {
            if let Some(guard) = self.usage().admit() {
                break guard;
            }
            self.send(Event::UseRequested).await?;
            self.wait_until(|status| {
                !matches!(status.step, ManagerStep::Sleeping | ManagerStep::FallingAsleep)
            })
            .await?;
        };
        self.ready().await?;
        Ok(guard)
    }

    /// Returns a guard that keeps the manager awake, without waiting; `None` if it sleeps.
    pub fn keep_awake(&self) -> Option<AwakeGuard> {
        self.usage().admit()
    }

    /// Returns the status of both pools' reservoirs together; `None` if they are closed.
    pub fn pool_status(&self) -> Option<forebay_reservoir::Status> {
        self.inner.context.pools().ok().map(|pools| pools.status())
    }

    /// Checks out a connection for metadata.
    ///
    /// # Errors
    /// Fails if the pools are closed, or no connection becomes free within 5 s.
    pub async fn admin(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        self.inner.context.pools()?.admin().await
    }

    /// Checks out a connection for a snapshot.
    ///
    /// # Errors
    /// Fails if the pools are closed, or no connection becomes free within 5 s.
    pub async fn snapshot(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        self.inner.context.pools()?.snapshot().await
    }

    /// Adds a table to the publication, with `REPLICA IDENTITY FULL`, and tracks it until it is
    /// removed.
    ///
    /// The consumer must not await this: it may have to handle [`table_changed`] first.
    ///
    /// [`table_changed`]: Consumer::table_changed
    ///
    /// # Errors
    /// Fails if the table doesn't exist or can't be published. The error says what to do.
    pub async fn add_table(&self, table: &TableName) -> Result<TablePublication, PublishError> {
        let context = &self.inner.context;
        let pools = context.pools()?;
        let adding = context.publication.add(&pools, table, &*context.observer);
        tokio::time::timeout(REPLY_TIMEOUT, adding).await.map_err(|_| PublishError::Timeout)?
    }

    /// Sets `publish_via_partition_root = false`, so that changes of the partition `table` carry
    /// its own name. Needed after [`PublishError::PublishedViaRoot`]. Returns the versions of the
    /// publication's catalog row; `None` if the setting was `false` already.
    ///
    /// # Errors
    /// Fails if the server doesn't reply, or this role may not change the publication.
    pub async fn publish_partitions(
        &self,
        table: &TableName,
    ) -> Result<Option<PublicationVersions>, PublishError> {
        let context = &self.inner.context;
        let pools = context.pools()?;
        let changing = context.publication.publish_partitions(&pools, table);
        tokio::time::timeout(REPLY_TIMEOUT, changing).await.map_err(|_| PublishError::Timeout)?
    }

    /// Returns the tables of the publication that aren't in `needed`, with their oids and the oids
    /// of their entries in the publication. The result is empty if the publication is managed
    /// manually, and while the database has another pgoutput slot, which may read the same
    /// publication.
    ///
    /// # Errors
    /// Fails if the server doesn't reply, or refuses.
    pub async fn unneeded_tables(
        &self,
        needed: &[u32],
    ) -> Result<BTreeMap<TableName, (u32, u32)>, PublishError> {
        let context = &self.inner.context;
        let pools = context.pools()?;
        let querying = context.publication.unneeded_tables(&pools, needed);
        tokio::time::timeout(REPLY_TIMEOUT, querying).await.map_err(|_| PublishError::Timeout)?
    }

    /// Removes a table from the publication.
    ///
    /// # Errors
    /// Fails if the server doesn't reply, or refuses.
    pub async fn remove_table(&self, table: &TableName) -> Result<(), PublishError> {
        let context = &self.inner.context;
        let pools = context.pools()?;
        let removing = context.publication.remove(&pools, table);
        tokio::time::timeout(REPLY_TIMEOUT, removing).await.map_err(|_| PublishError::Timeout)?
    }

    /// Reconciles the publication with the tracked tables now, instead of within 60 s.
    ///
    /// Tables that were changed outside the manager are repaired if possible, and reported as
    /// [events](Self::events). A replaced publication recreates the slot and resets the consumer.
    ///
    /// # Errors
    /// Fails if the server doesn't reply, or a table is in use and couldn't be changed.
    pub async fn reconcile(&self) -> Result<(), PublishError> {
        manager_tasks::reconcile(&self.inner.context, &self.inner.gauges).await
    }

    /// Retries at once, without waiting for the backoff or for the 30 s of a halt. Call it after
    /// the cause was fixed. If an attempt is in progress and fails, the next one starts at once.
    ///
    /// # Errors
    /// Fails if the manager is shut down.
    pub async fn retry(&self) -> Result<(), NotReady> {
        let mut status = self.inner.status.clone();
        let position = |status: &ManagerStatus| (status.step, status.step_since);
        let before = position(&status.borrow());
        self.send(Event::Retry).await?;
        if matches!(before.0, ManagerStep::Halted | ManagerStep::BackingOff) {
            // A later `ready()` must not read the old halt.
            status.wait_for(|status| position(status) != before).await.map_err(|_| NotReady::Stopped)?;
        }
        Ok(())
    }

    /// Shuts down step by step, each step within its deadline. Returns when the manager has ended.
    pub async fn shutdown(&self) {
        self.stop(Event::Shutdown { drop_slot: false }).await;
    }

    /// Shuts down like [`shutdown`](Self::shutdown), and drops the slot and the publication. The
    /// next start resets the consumer.
    pub async fn shutdown_and_drop(&self) {
        self.stop(Event::Shutdown { drop_slot: true }).await;
    }

    /// Sends a shutdown event and waits for the end.
    async fn stop(&self, shutdown: Event) {
        // An error means that the worker has ended already.
        let _ended = self.send(shutdown).await;
        let mut status = self.inner.status.clone();
        let _ended = status.wait_for(|status| status.step == ManagerStep::Stopped).await;
    }

    async fn send(&self, event: Event) -> Result<(), NotReady> {
        self.sender().send(event).await.map_err(|_| NotReady::Stopped)
    }

    fn sender(&self) -> &mpsc::Sender<Event> {
        &self.inner.context.events
    }

    fn usage(&self) -> &Arc<UsageGate> {
        &self.inner.context.usage
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("step", &self.inner.status.borrow().step).finish_non_exhaustive()
    }
}
