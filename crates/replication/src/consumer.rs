//! Who takes the changes.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_pgoutput::Lsn;

use crate::core::continuity::{Bookmark, ResetReason, Timeline};
use crate::core::machine::Verdict;
use crate::publication::{TableChange, TableName};
use crate::source::Batch;

/// Takes every committed transaction once, in the order of the commits, and says what of it is durable.
///
/// One call is made at a time. None may block its thread: the connection is kept alive by the same runtime, though a call may
/// await for as long as it likes, and nothing more is read from the server meanwhile. A call may be dropped where it awaits, when the
/// connection is lost: what it had begun must then be as if it had not been, or be durable.
pub trait Consumer: Send + 'static {
    /// What it has, from its durable store; `None`: nothing. Asked each time that the connection is set up, under the lock: from now on, and
    /// until [`stop`](Self::stop), nobody else writes what it writes. What was handed over before and isn't in the answer must not become
    /// durable later: it comes again.
    fn bookmark(&mut self) -> impl Future<Output = Result<Option<Bookmark>, ConsumerError>> + Send;

    /// Starts over: what it has isn't what the database has. When this returns, the new bookmark is durable: `begin`, with
    /// everything before it gone.
    fn reset(
        &mut self,
        reason: ResetReason,
        begin: Bookmark,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// The same history goes on under a new timeline (a promotion): from now on this is the one to remember.
    fn adopt(&mut self, timeline: Timeline) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// A stream begins: everything after what [`bookmark`](Self::bookmark) said comes, whether or not it was handed over before. Whenever more
    /// has become durable, at any time and from any thread, `durable` is to hear of it.
    fn start(&mut self, durable: Durable);

    /// Takes what has come: reads `batch` to its end. A transaction may be spread over several, and one may hold many.
    fn receive(&mut self, batch: &mut Batch<'_>) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// Nothing is pending, and nothing concerns this consumer up to `lsn`: once that is recorded, `durable` is to hear of it. An
    /// idle database needs this, or its server keeps the log of its neighbours for ever.
    fn advance(&mut self, lsn: Lsn) -> impl Future<Output = Result<(), ConsumerError>> + Send;

    /// A table that is followed was changed behind our back: see [`TableChange`]. If this fails it is told again.
    fn table_changed(
        &mut self,
        table: &TableName,
        change: TableChange,
    ) -> impl Future<Output = Result<(), ConsumerError>> + Send {
        let _of_no_interest = (table, change);
        async { Ok(()) }
    }

    /// The connection is gone, or about to be, and the lock with it: writing ends before this returns. Called after every end,
    /// and perhaps twice.
    fn stop(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Saves what makes the next start quick. Asked while shutting down.
    fn checkpoint(&mut self) -> impl Future<Output = Result<(), ConsumerError>> + Send;
}

/// Where a consumer says what is durable: each position is the end of a transaction, or one that
/// [`advance`](Consumer::advance) named. Cheap to clone.
#[derive(Clone)]
pub struct Durable(Arc<AtomicU64>);

impl Durable {
    pub(crate) fn new(lsn: Lsn) -> Self {
        Durable(Arc::new(AtomicU64::new(lsn.0)))
    }

    /// Everything up to `lsn` is durable. One that is lower than the last changes nothing.
    pub fn advance(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.0, Ordering::AcqRel);
    }

    /// The last that was said.
    pub fn get(&self) -> Lsn {
        Lsn(self.0.load(Ordering::Acquire))
    }
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Durable").field(&self.get()).finish()
    }
}

/// Why a consumer can't go on, and what to do about it. Its words reach the log: they must not hold a row's values.
#[derive(Debug)]
pub struct ConsumerError {
    verdict: Verdict,
    source: Box<dyn Error + Send + Sync>,
}

impl ConsumerError {
    /// Only a person can mend it.
    pub fn fatal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { verdict: Verdict::Fatal, source: source.into() }
    }

    /// The stream is of no use to it: slot and consumer start over.
    pub fn start_over(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { verdict: Verdict::DropSlot, source: source.into() }
    }

    /// It may work the next time.
    pub fn retry(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConsumerError { verdict: Verdict::Retry, source: source.into() }
    }

    /// What is done about it.
    pub fn verdict(&self) -> Verdict {
        self.verdict
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
