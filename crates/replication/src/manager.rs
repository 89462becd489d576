//! What a program holds: the manager.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_reservoir::{ConnectionGuard, PostgresClient};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::chores;
use crate::config::{ManagerConfig, ManagerConfigError};
use crate::consumer::Consumer;
use crate::core::machine::{Event, StackEvent};
use crate::pools::PoolError;
use crate::publication::{PublicationVersions, PublishError, Published, TableName};
use crate::source::{ANSWER, Gauges};
use crate::status::{ManagerStatus, Phase, Positions, Step};
use crate::uses::{Awake, Uses};
use crate::worker::{self, Common};

/// Owns everything between this process and one Postgres. Cheap to clone; when the last is gone, it shuts down.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    common: Arc<Common>,
    status: watch::Receiver<ManagerStatus>,
    gauges: Arc<Gauges>,
    /// Its end tells the worker that nobody is left.
    _alive: oneshot::Sender<()>,
}

/// Why what was waited for won't come by itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It has given up.
    #[error("{why}")]
    Halted {
        /// What happened, and what to do.
        why: String,
    },
    /// It is shut down, or about to.
    #[error("the manager is shut down")]
    Stopped,
}

impl Manager {
    /// Begins to follow a database. Needs a tokio runtime, on which it then lives.
    ///
    /// # Errors
    /// If the configuration can't be used. What the database refuses shows in [`status`](Self::status).
    pub fn start<C: Consumer>(config: ManagerConfig, consumer: C) -> Result<Self, ManagerConfigError> {
        config.check()?;
        let (alive, gone) = oneshot::channel();
        let (common, status, gauges) = worker::start(config, consumer, gone);
        Ok(Manager { inner: Arc::new(Inner { common, status, gauges, _alive: alive }) })
    }

    /// Everything that it knows of itself.
    pub fn status(&self) -> ManagerStatus {
        self.inner.status.borrow().clone()
    }

    /// How far the stream has come.
    pub fn positions(&self) -> Positions {
        self.inner.gauges.positions()
    }

    /// Sees every change of the status, at least the last one.
    pub fn watch(&self) -> watch::Receiver<ManagerStatus> {
        self.inner.status.clone()
    }

    /// What happens to it from now on. Whoever is too slow misses some, and is told how many.
    pub fn events(&self) -> broadcast::Receiver<StackEvent> {
        self.inner.common.stack.subscribe()
    }

    /// Waits until the status is as wanted.
    ///
    /// # Errors
    /// When it has given up or is shut down, and that isn't what was wanted.
    pub async fn wait_until(
        &self,
        mut wanted: impl FnMut(&ManagerStatus) -> bool,
    ) -> Result<ManagerStatus, NotReady> {
        let mut status = self.inner.status.clone();
        let settled = |status: &ManagerStatus| matches!(status.step, Step::Halted | Step::Stopped);
        let found = status.wait_for(|status| wanted(status) || settled(status)).await;
        // The worker ends with its last word.
        let found = found.map_err(|_| NotReady::Stopped)?.clone();
        match found.step {
            _ if wanted(&found) => Ok(found),
            Step::Halted => Err(NotReady::Halted { why: found.trouble.unwrap_or_default() }),
            _ => Err(NotReady::Stopped),
        }
    }

    /// Waits until changes flow and snapshots can be taken.
    ///
    /// # Errors
    /// When it has given up or is shut down.
    pub async fn ready(&self) -> Result<ManagerStatus, NotReady> {
        self.wait_until(|status| status.is_ready() && status.phase == Phase::Running).await
    }

    /// Wakes it if it sleeps, waits until it is ready, and keeps it awake for as long as the answer lives.
    ///
    /// # Errors
    /// When it has given up or is shut down.
    pub async fn awake(&self) -> Result<Awake, NotReady> {
        let awake = loop {
            if let Some(awake) = self.uses().begin() {
                break awake;
            }
            self.tell(Event::Used).await?;
            self.wait_until(|status| !matches!(status.step, Step::Sleeping | Step::FallingAsleep)).await?;
        };
        self.ready().await?;
        Ok(awake)
    }

    /// Keeps it awake without waiting for anything, if it is.
    pub fn keep_awake(&self) -> Option<Awake> {
        self.uses().begin()
    }

    /// How the reservoir under both pools is; `None`: it isn't open.
    pub fn pool_status(&self) -> Option<forebay_reservoir::Status> {
        self.inner.common.pools().ok().map(|pools| pools.status())
    }

    /// A connection for metadata.
    ///
    /// # Errors
    /// When the pools are closed, or none comes free in time.
    pub async fn admin(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        self.inner.common.pools()?.admin().await
    }

    /// A connection for a snapshot.
    ///
    /// # Errors
    /// When the pools are closed, or none comes free within 5 s.
    pub async fn snapshot(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        self.inner.common.pools()?.snapshot().await
    }

    /// Sees to it that the table's changes come, with old rows in full, from now on and until it is removed. Not to be
    /// awaited by the consumer itself, which may have to hear of a change first.
    ///
    /// # Errors
    /// When there is no such table, or it can't be published; says what to do.
    pub async fn add_table(&self, table: &TableName) -> Result<Published, PublishError> {
        let common = &self.inner.common;
        let pools = common.pools()?;
        let adding = common.publication.add(&pools, table, &*common.news);
        tokio::time::timeout(ANSWER, adding).await.map_err(|_| PublishError::NoAnswer)?
    }

    /// Has the changes of partitions come under their own names, and no longer under that of their
    /// topmost published ancestor, for the sake of this one: what [`PublishError::ViaRoot`] asks
    /// for. Returns how the
    /// publication's row in the catalog changed; `None`: nothing had to be changed.
    ///
    /// # Errors
    /// When the server can't be asked, or the publication is not ours to change.
    pub async fn publish_partitions(
        &self,
        table: &TableName,
    ) -> Result<Option<PublicationVersions>, PublishError> {
        let common = &self.inner.common;
        let pools = common.pools()?;
        let changing = common.publication.publish_partitions(&pools, table);
        tokio::time::timeout(ANSWER, changing).await.map_err(|_| PublishError::NoAnswer)?
    }

    /// Returns the tables of the publication that aren't needed, with their oids and the oids of
    /// their entries in the publication. None if the publication is kept by hand, nor while the
    /// database has another slot for pgoutput, which may read the same publication.
    ///
    /// # Errors
    /// When the server can't be asked.
    pub async fn tables_without(
        &self,
        needed: &[u32],
    ) -> Result<BTreeMap<TableName, (u32, u32)>, PublishError> {
        let common = &self.inner.common;
        let pools = common.pools()?;
        let asking = common.publication.tables_without(&pools, needed);
        tokio::time::timeout(ANSWER, asking).await.map_err(|_| PublishError::NoAnswer)?
    }

    /// Takes a table out of the publication.
    ///
    /// # Errors
    /// When the server can't be asked.
    pub async fn remove_table(&self, table: &TableName) -> Result<(), PublishError> {
        let common = &self.inner.common;
        let pools = common.pools()?;
        let removing = common.publication.remove(&pools, table);
        tokio::time::timeout(ANSWER, removing).await.map_err(|_| PublishError::NoAnswer)?
    }

    /// Compares the publication with what it should be now, and not within the next 60 s; returns when that is done. Tables that
    /// were changed behind our back are mended where that can be and told as [events](Self::events); a publication that was
    /// replaced has everything start over.
    ///
    /// # Errors
    /// When the server can't be asked, or a table is in use and couldn't be changed.
    pub async fn reconcile(&self) -> Result<(), PublishError> {
        chores::reconcile(&self.inner.common, &self.inner.gauges).await
    }

    /// Tries again at once, after somebody has mended what it gave up on.
    ///
    /// # Errors
    /// When it is shut down.
    pub async fn retry(&self) -> Result<(), NotReady> {
        let mut status = self.inner.status.clone();
        let place = |status: &ManagerStatus| (status.step, status.step_since);
        let before = place(&status.borrow());
        self.tell(Event::Retry).await?;
        if matches!(before.0, Step::Halted | Step::BackingOff) {
            // Whoever waits for it to be ready from here on must not be told of what it gave up on before.
            status.wait_for(|status| place(status) != before).await.map_err(|_| NotReady::Stopped)?;
        }
        Ok(())
    }

    /// Shuts down in good order, each step within its deadline, and waits for the end.
    pub async fn shutdown(&self) {
        self.stop(false).await;
    }

    /// The same, and drops the slot and the publication: the server keeps nothing for us any more, and the next start is a first one.
    pub async fn shutdown_and_drop(&self) {
        self.stop(true).await;
    }

    async fn stop(&self, drop_slot: bool) {
        // Either it is told, or it has ended before.
        let _ended = self.tell(Event::Shutdown { drop_slot }).await;
        let mut status = self.inner.status.clone();
        let _ended = status.wait_for(|status| status.step == Step::Stopped).await;
    }

    async fn tell(&self, event: Event) -> Result<(), NotReady> {
        self.events_in().send(event).await.map_err(|_| NotReady::Stopped)
    }

    fn events_in(&self) -> &mpsc::Sender<Event> {
        &self.inner.common.events
    }

    fn uses(&self) -> &Arc<Uses> {
        &self.inner.common.uses
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("step", &self.inner.status.borrow().step).finish_non_exhaustive()
    }
}
