//! Tables that the stream describes anew, compared with what their shapes were made of.
//!
//! Invariant: no change of a row reaches a shape whose table was another when the row was changed.
//! Kept by: Postgres describes a table in the stream before its first change after anything was done to it, and says names and types. The stream
//! waits there until the catalog, which knows the rest, was read by somebody who sees what that transaction did to the table; shapes that don't fit
//! are deleted.
//! Not here: what is done to a table whose rows don't change; see `Making::look_again`.
//! Bounds: while nobody answers, nothing is read from the server, which hears from us all the same; but not for longer than [`PATIENCE`]. A server
//! that shuts down lets nobody else in and waits for whoever streams: the stream ends then, and comes again from where it was.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_postgres::TableName;
use forebay_postgres::pgoutput::Relation;
use forebay_postgres::reservoir::PostgresClient;
use forebay_shapes::Shapes;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

use super::database::{self, DescribeError};
use super::making::{EARLY, Making, followed};

/// How long the database may say nothing: more than both pools take to say that they have no connection, and less than whoever stops a server
/// waits for that.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long until the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// How many times the stream has described a table. What was known before may be wrong then.
#[derive(Debug, Clone, Default)]
pub(crate) struct Described(Arc<State>);

#[derive(Debug, Default)]
struct State {
    times: AtomicU64,
    /// Who has connections. It has the manager, whose end the stream's own hold on it would prevent.
    making: OnceLock<Weak<Making>>,
}

impl Described {
    pub(crate) fn anew(&self) {
        self.0.times.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn times(&self) -> u64 {
        self.0.times.load(Ordering::Acquire)
    }

    pub(super) fn asks(&self, making: &Arc<Making>) {
        // It is made once.
        let _first = self.0.making.set(Arc::downgrade(making));
    }
}

/// Sees to it that shapes fit their tables, in the stream's order.
#[derive(Debug)]
pub(crate) struct Fitting {
    shapes: Shapes,
    described: Described,
    /// Which edition of a table all its shapes fit.
    editions: HashMap<u32, String>,
}

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

impl Fitting {
    pub(crate) fn new(shapes: Shapes, described: Described) -> Self {
        Fitting { shapes, described, editions: HashMap::new() }
    }

    /// A transaction has this table described. When this returns, its shapes fit the table as it is, with what the transaction did to it.
    ///
    /// # Errors
    /// When nobody says what the table is.
    pub(crate) async fn fit(&mut self, relation: &Relation<'_>, xid: Option<u32>) -> Result<(), Failure> {
        if !self.shapes.follows(relation.oid) {
            return Ok(());
        }
        let table = TableName::new(relation.namespace, relation.name);
        let mut until = Instant::now() + PATIENCE;
        loop {
            match timeout_at(until, self.try_fit(relation.oid, &table, xid)).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {
                    until = Instant::now() + PATIENCE;
                    sleep(EARLY).await;
                }
                Ok(Err(why)) if Instant::now() + PAUSE < until => {
                    warn!(%table, %why, "the stream waits: nobody says whether a table is what its shapes were made of");
                    sleep(PAUSE).await;
                }
                Ok(Err(why)) => return Err(why),
                Err(_) => {
                    return Err(format!("the database didn't say within {PATIENCE:?} what {table} is").into());
                }
            }
        }
    }

    /// `false`: what the transaction did to the table isn't visible yet.
    async fn try_fit(&mut self, oid: u32, table: &TableName, xid: Option<u32>) -> Result<bool, Failure> {
        let making =
            self.described.0.making.get().and_then(Weak::upgrade).ok_or("the server starts or ends")?;
        let client = making.connection().await?;
        let (edition, seen) = database::edition(&client, oid).await?;
        if let Some(xid) = xid.filter(|xid| !seen.sees(*xid))
            && !changes_rows_only(&client, oid, xid).await?
        {
            return Ok(false);
        }
        if edition.is_none() || self.editions.get(&oid) != edition.as_ref() {
            self.compare(&client, oid, table).await?;
        }
        Ok(true)
    }

    async fn compare(&mut self, client: &PostgresClient, oid: u32, table: &TableName) -> Result<(), Failure> {
        match database::describe_unread(client, table).await {
            Ok(now) if now.oid == oid => {
                self.shapes.refit(&followed(&now, 0));
                self.editions.insert(oid, now.edition);
            }
            Err(DescribeError::Database(error)) => return Err(error.into()),
            // It has another name by now, or is gone, or can't be followed any more.
            Ok(_) | Err(_) => self.shapes.delete_table(oid),
        }
        Ok(())
    }
}

/// Postgres writes a commit to its log, and shows it only then, or when its standbys have it. Until then the transaction has its locks, which tell
/// what it did; `false`: it may have changed the table, or has ended by now.
async fn changes_rows_only(client: &PostgresClient, oid: u32, xid: u32) -> Result<bool, Failure> {
    let is_changing = database::is_changing(client, oid, xid).await?;
    // Only of one that is still open do its locks tell anything.
    let (_, seen) = database::edition(client, oid).await?;
    Ok(!is_changing && !seen.sees(xid))
}
