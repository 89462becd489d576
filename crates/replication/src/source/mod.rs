//! The one replication connection, from its opening to its end.
//!
//! Invariant: everything that happens to it is told to the machine under its number, and it does nothing without an order but set
//! itself up. The lock is taken before anything on the server is changed, and lives and dies with the connection.

mod batch;
mod clock;
mod lock;
mod setup;
mod stream;

use std::pin::pin;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_pgoutput::{Lsn, PgTime};
use forebay_reservoir::PostgresError;
use tokio::sync::{Mutex, mpsc};

pub use self::batch::Batch;
pub use self::setup::DISPLAY_SETTINGS;
use self::setup::Server;
use crate::config::ManagerConfig;
use crate::consumer::Consumer;
use crate::core::continuity::{Bookmark, Continuity, Found, ResetReason, continuity};
use crate::core::machine::{Attempt, Event};
use crate::error::{Doing, Failure};
use crate::wire::{Rows, Wire};

/// How long the server may take to answer a question: longer, and it is taken for dead, and the next host is tried.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// What the manager may tell a connection to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    CheckLock,
    PrepareConsumer,
    StartStreaming,
    Close,
}

/// What outlives a connection, shared with the manager.
pub(crate) struct Setting<C> {
    pub(crate) config: ManagerConfig,
    pub(crate) consumer: Arc<Mutex<C>>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) gauges: Arc<Gauges>,
}

/// A server's process. A process id comes again, both together don't.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) pid: i32,
    /// When, in microseconds of the server's clock.
    pub(crate) began: i64,
}

impl Gauges {
    /// The backend of the last connection, even if that has ended: it may be there still, and hold the lock.
    pub(crate) fn last_backend(&self) -> Option<Backend> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers this connection's backend; returns the last one's.
    fn replace_backend(&self, backend: Backend) -> Option<Backend> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(backend)
    }

    fn fall_behind(&self, since: PgTime) {
        self.set_behind(Some(since));
    }

    /// Everything that has come is durable; or there is no connection, which others tell of.
    pub(crate) fn catch_up(&self) {
        self.set_behind(None);
    }

    fn set_behind(&self, since: Option<PgTime>) {
        *self.behind_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// The clocks of both machines count.
    pub(crate) fn lag(&self) -> Duration {
        let since = *self.behind_since.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = since.map_or(0, |since| clock::clock().micros_since(since));
        Duration::from_micros(micros.max(0).unsigned_abs())
    }
}

/// What the connection is and how far it has come, for whoever looks.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// The server's process, even after its connection has ended: it may still be there, and shutting down ends it. 0: there is none.
    pub(crate) backend: AtomicI32,
    pub(crate) server_version: AtomicU64,
    pub(crate) publication: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) durable: AtomicU64,
    pub(crate) transactions: AtomicU64,
    /// Log that the server keeps for the slot.
    pub(crate) retained: AtomicU64,
    last: std::sync::Mutex<Option<Backend>>,
    /// When that was committed which has come and isn't durable. It, and not the lag, so that lag grows while nothing happens.
    behind_since: std::sync::Mutex<Option<PgTime>>,
}

/// Why a connection ended.
pub(crate) enum Ended {
    /// It was told to.
    Told,
    Failed(Failure),
}

impl<T: Into<Failure>> From<T> for Ended {
    fn from(failure: T) -> Self {
        Ended::Failed(failure.into())
    }
}

/// A connection that is being set up.
pub(crate) struct Source<C> {
    attempt: Attempt,
    setting: Arc<Setting<C>>,
    orders: mpsc::Receiver<Order>,
    wire: Wire,
}

impl<C: Consumer> Source<C> {
    /// Opens a connection, sets it up, and streams until it is told to close or fails.
    pub(crate) async fn run(
        attempt: Attempt,
        recreate_slot: bool,
        setting: Arc<Setting<C>>,
        mut orders: mpsc::Receiver<Order>,
    ) -> Result<(), Ended> {
        let opening = Wire::open(&setting.config.connect);
        let wire = tokio::select! {
            opened = opening => opened.map_err(|error| why_not_open(error, &setting.config))?,
            () = told_to_close(&mut orders) => return Err(Ended::Told),
        };
        setting.gauges.backend.store(wire.backend_pid(), Ordering::Release);
        let mut source = Source { attempt, setting, orders, wire };
        match source.set_up_and_wait(recreate_slot).await {
            Ok((server, from)) => {
                let Source { setting, orders, wire, .. } = source;
                stream::run(attempt, setting, orders, wire, &server, from).await
            }
            Err(Ended::Told) => {
                source.wire.close().await;
                Err(Ended::Told)
            }
            Err(failed) => Err(failed),
        }
    }

    async fn set_up_and_wait(&mut self, recreate_slot: bool) -> Result<(Server, Lsn), Ended> {
        self.tell(Event::Connected(self.attempt)).await?;
        let server = self.ask_around().await?;
        self.setting.gauges.server_version.store(server.version.into(), Ordering::Relaxed);
        let ghost = self.setting.gauges.replace_backend(server.backend);
        self.take_lock(ghost).await?;
        self.tell(Event::LockTaken(self.attempt)).await?;
        let found = self.configure(&server, recreate_slot).await?;
        self.setting.gauges.publication.store(found.publication.into(), Ordering::Release);
        self.tell(Event::Configured(self.attempt)).await?;
        self.wait_for(Order::PrepareConsumer).await?;
        let (from, reset) = match self.prepare_consumer(&found).await? {
            Ok(prepared) => prepared,
            Err(failure) => {
                self.tell(Event::ConsumerFailed(self.attempt, failure.into())).await?;
                return Err(Ended::Told);
            }
        };
        self.tell(Event::ConsumerReady(self.attempt, reset)).await?;
        self.wait_for(Order::StartStreaming).await?;
        Ok((server, from))
    }

    /// Shows signs of life while the consumer is asked what it has, and perhaps starts over: that may take its time.
    async fn prepare_consumer(
        &mut self,
        found: &Found,
    ) -> Result<Result<(Lsn, Option<ResetReason>), Failure>, Ended> {
        let setting = self.setting.clone();
        let mut preparing = pin!(Self::prepare(&setting.consumer, found));
        loop {
            tokio::select! {
                biased;
                prepared = &mut preparing => return Ok(prepared),
                () = tokio::time::sleep(self.sign_of_life()) => drop(self.ask(Doing::Waiting, "SELECT 1").await?),
            }
        }
    }

    /// Whether what the consumer has goes on here; if not, it starts over.
    async fn prepare(consumer: &Mutex<C>, found: &Found) -> Result<(Lsn, Option<ResetReason>), Failure> {
        let mut consumer = consumer.lock().await;
        let bookmark = consumer.bookmark().await?;
        match continuity(bookmark.as_ref(), found) {
            Continuity::Continues { from } => {
                if bookmark.is_some_and(|bookmark| bookmark.timeline != found.timeline) {
                    tracing::info!(
                        timeline = found.timeline.timeline_id,
                        "a promotion: the same history goes on"
                    );
                    consumer.adopt(found.timeline).await?;
                }
                Ok((from, None))
            }
            Continuity::Reset { reason, from } => {
                let begin =
                    Bookmark { timeline: found.timeline, publication: found.publication, durable: from };
                match reason {
                    ResetReason::First => tracing::info!(%from, "the consumer begins"),
                    _ => tracing::warn!(reason = reason.as_str(), %from, "the consumer starts over"),
                }
                consumer.reset(reason, begin).await?;
                Ok((from, Some(reason)))
            }
        }
    }

    /// Shows signs of life until the order comes.
    async fn wait_for(&mut self, wanted: Order) -> Result<(), Ended> {
        let sign_of_life = self.sign_of_life();
        loop {
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) if order == wanted => return Ok(()),
                    Some(Order::Close) | None => return Err(Ended::Told),
                    Some(Order::CheckLock | Order::PrepareConsumer | Order::StartStreaming) => {}
                },
                // Not by `ask`, which would take the order that is waited for as one that is out of date.
                () = tokio::time::sleep(sign_of_life) => {
                    let spoken = tokio::time::timeout(ANSWER, self.wire.query("SELECT 1")).await;
                    let spoken = spoken.map_err(|_| Failure::NoAnswer { doing: Doing::Waiting, after: ANSWER })?;
                    drop(spoken.map_err(|error| Failure::wire(Doing::Waiting, error))?);
                }
            }
        }
    }

    fn sign_of_life(&self) -> Duration {
        self.setting.config.lock_patience.sign_of_life()
    }

    /// Asks, and expects an answer soon.
    async fn ask(&mut self, doing: Doing, sql: &str) -> Result<Rows, Ended> {
        match tokio::time::timeout(ANSWER, self.ask_patiently(doing, sql)).await {
            Ok(answered) => answered,
            Err(_) => Err(Failure::NoAnswer { doing, after: ANSWER }.into()),
        }
    }

    /// Asks what may take as long as other people's transactions.
    async fn ask_patiently(&mut self, doing: Doing, sql: &str) -> Result<Rows, Ended> {
        tokio::select! {
            rows = self.wire.query(sql) => Ok(rows.map_err(|error| Failure::wire(doing, error))?),
            () = told_to_close(&mut self.orders) => Err(Ended::Told),
        }
    }

    async fn tell(&self, event: Event) -> Result<(), Ended> {
        // Without a manager there is nobody to stream for.
        self.setting.events.send(event).await.map_err(|_| Ended::Told)
    }
}

/// Resolves when the connection is to be closed; other orders that come meanwhile are out of date.
async fn told_to_close(orders: &mut mpsc::Receiver<Order>) {
    while let Some(order) = orders.recv().await {
        if order == Order::Close {
            return;
        }
    }
}

/// The right to replicate is asked for while connecting.
fn why_not_open(error: PostgresError, config: &ManagerConfig) -> Failure {
    match error {
        PostgresError::Server { error: said, .. } if said.code() == "42501" => {
            Failure::NoReplicationRight { user: config.connect.user().to_owned(), said }
        }
        error => Failure::Connect(error),
    }
}
