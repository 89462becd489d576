//! The consumer: the part of your program that stores the changes.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_pgoutput::Lsn;

use crate::core::continuity::{Bookmark, ResetReason, Timeline};
use crate::core::machine::RecoveryAction;
use crate::publication::{TableChange, TableName};
use crate::source::MessageBatch;

/// Receives every committed transaction exactly once, in commit order, and reports its durable
/// position.
///
/// The manager makes one call at a time. A call must not block its thread: the same runtime keeps
/// the connection alive. It may await for any time, and nothing is read from the server meanwhile.
/// When the connection is lost, the manager may drop a call at an await point; the call's work must
/// then be either undone or durable.
pub trait Consumer: Send + 'static {
    /// Returns the durable position from the consumer's store; `None`: the store is empty.
    ///
    /// Called at each setup, while this instance holds the lock. No other instance writes the store
    /// from here until [`stop`](Self::stop). Changes received earlier that aren't included must not
    /// become durable later: the server sends them again.
    fn bookmark(&mut self) -> impl Future<Output = Result<Option<Bookmark>, ConsumerError>> + Send;

    /// Discards the store's contents, because the stream can't continue from them. When this
    /// returns, `begin` is the durable bookmark.
    fn reset(
        &mut self,
        reason: ResetReason,
        begin: Bookmark,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// Records a new timeline after a promotion. The history before it is the same.
    fn record_timeline(
        &mut self,
        timeline: Timeline,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// Called when a stream starts. It sends everything after the [`bookmark`](Self::bookmark),
    /// also changes that were received before. Report each newly durable position to `durable`, at
    /// any time and from any thread.
    fn start(&mut self, durable: DurablePosition);

    /// Receives messages: reads `batch` to its end. A transaction may span several batches, and a
    /// batch may hold several transactions.
    fn receive(
        &mut self,
        batch: &mut MessageBatch<'_>,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// Records the position `lsn`, and then reports it to the [`DurablePosition`]. Called when no
    /// change is pending. Without it, an idle database would retain WAL that other databases write.
    fn advance(&mut self, lsn: Lsn) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// Called when a tracked table was changed outside the manager. If this fails, the call is
    /// repeated.
    fn table_changed(
        &mut self,
        table: &TableName,
        change: TableChange,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send {
        let _unused = (table, change);
        async { Ok(()) }
    }

    /// Stops writing before it returns. Called when the connection, and the lock with it, is lost
    /// or about to be released. May be called twice for one connection.
    fn stop(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Saves state that makes the next start fast. Called during shutdown.
    fn checkpoint(&mut self) -> impl Future<Output = Result<(), ConsumerError>> + Send;
}

/// The consumer's durable position, which the manager acknowledges to the server. Cheap to clone.
///
/// Each position must be the end of a transaction or an argument of [`advance`](Consumer::advance).
#[derive(Clone)]
pub struct DurablePosition(Arc<AtomicU64>);

impl DurablePosition {
    pub(crate) fn new(lsn: Lsn) -> Self {
        DurablePosition(Arc::new(AtomicU64::new(lsn.0)))
    }

    /// Reports that all changes up to `lsn` are durable. A lower position than before is ignored.
    pub fn advance(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// Returns the last reported position.
    pub fn get(&self) -> Lsn {
        Lsn(self.0.load(Ordering::Acquire))
    }
}

impl fmt::Debug for DurablePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DurablePosition").field(&self.get()).finish()
    }
}

/// Why a consumer failed, and how the manager recovers. The text reaches the log and must not
/// contain values of rows.
#[derive(Debug)]
pub struct ConsumerError {
    action: RecoveryAction,
    source: Box<dyn Error + Send + Sync>,
}

impl ConsumerError {
    /// Creates an error that needs an operator. See [`RecoveryAction::Halt`].
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { action: RecoveryAction::Halt, source: source.into() }
    }

    /// Creates an error of an unusable stream: the manager recreates the slot and resets the
    /// consumer.
    pub fn start_over(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { action: RecoveryAction::RecreateSlot, source: source.into() }
    }

    /// Creates an error that may be temporary: the manager retries.
    pub fn retry(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { action: RecoveryAction::Retry, source: source.into() }
    }

    /// Returns what the manager does about the failure.
    pub fn action(&self) -> RecoveryAction {
        self.action
    }
}

impl fmt::Display for ConsumerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for ConsumerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
