//! Snapshot writer: fills a new shape with the rows of its table.
//!
//! Invariant: every change of a row is in the snapshot or in the log, and never in both.
//! Enforced by: this order. First, the factory waits until the transactions that wrote before the
//! table was published have ended. Second, the store begins to hold the stream's changes for the
//! shape (`follow`). Third, the snapshot is taken. If it doesn't see a commit that the stream has
//! already delivered, it is taken again. The store drops the held changes that the snapshot sees.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_shapes::{LogMode, ShapeCreation, ShapeGone, SnapshotFailure, TableSchema};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{ShapeFactory, VISIBILITY_RETRY};
use crate::database::{self, SnapshotError, SnapshotQuery};
use crate::metrics::{self, SnapshotOutcome};

/// Maximum wait for transactions from before the table was published, and for a commit of the
/// stream to become visible.
const WRITERS_TIMEOUT: Duration = Duration::from_secs(30);

/// Tables whose earlier writers have ended, during one period in which this process writes.
#[derive(Debug, Default)]
pub(super) struct SettledTables {
    /// Number of times that this process has begun to write; see [`Shapes::turn`].
    ///
    /// [`Shapes::turn`]: forebay_shapes::Shapes::turn
    turn: u64,
    /// By oid: the catalog rows that publish the table; see [`CatalogState::publication`].
    ///
    /// [`CatalogState::publication`]: forebay_shapes::CatalogState::publication
    tables: HashMap<u32, String>,
}

impl SettledTables {
    fn contains(&self, turn: u64, table: &TableSchema) -> bool {
        let publication = table.state.as_ref().map(|state| &state.publication);
        self.turn == turn && publication.is_some() && self.tables.get(&table.oid) == publication
    }

    fn insert(&mut self, turn: u64, table: &TableSchema) {
        if self.turn < turn {
            *self = SettledTables { turn, tables: HashMap::new() };
        }
        if let Some(state) = table.state.as_ref().filter(|_| self.turn == turn) {
            self.tables.insert(table.oid, state.publication.clone());
        }
    }
}

impl ShapeFactory {
    /// Waits until transactions that may have written to the table before its publication have
    /// ended. The stream doesn't have their changes.
    ///
    /// After a restart, or if another program published the table, the time of publication is
    /// unknown. So this waits for all transactions that hold a writer's lock now.
    async fn wait_for_writers(&self, table: &TableSchema) -> Result<(), String> {
        let turn = self.shapes.turn().unwrap_or_default();
        if self.settled.lock().contains(turn, table) {
            return Ok(());
        }
        let client = self.manager.admin().await.map_err(|error| error.to_string())?;
        let waited = database::wait_for_writers(&client, table.oid, Instant::now() + WRITERS_TIMEOUT).await;
        waited.map_err(|error| error.to_string())?;
        self.settled.lock().insert(turn, table);
        Ok(())
    }

    /// Takes the snapshot of a new shape, and logs and counts the outcome.
    pub(super) async fn write_snapshot(&self, creation: ShapeCreation, table: &database::TableDescription) {
        let begun = Instant::now();
        let shape = Arc::clone(creation.shape());
        let written = self.try_write_snapshot(creation, table).await;
        let outcome = match (&written, shape.gone()) {
            (Ok(_), _) => SnapshotOutcome::Complete,
            (Err(_), Some(ShapeGone::Deleted)) => SnapshotOutcome::Gone,
            (Err(_), _) => SnapshotOutcome::Failed,
        };
        metrics::snapshot_ended(outcome, begun.elapsed());
        match written {
            Ok(rows) => {
                info!(handle = shape.handle(), table = %table.name, rows, took = ?begun.elapsed(), "shape created");
            }
            // Deletion doesn't indicate a problem with the table.
            Err(_) if matches!(outcome, SnapshotOutcome::Gone) => {
                debug!(handle = shape.handle(), table = %table.name, "shape deleted during its creation");
            }
            Err(why) => {
                warn!(handle = shape.handle(), table = %table.name, why, "shape not created");
                self.tables.lock().remove(&table.name);
            }
        }
    }

    /// Returns the number of rows, or why there is no snapshot.
    async fn try_write_snapshot(
        &self,
        creation: ShapeCreation,
        table: &database::TableDescription,
    ) -> Result<u64, String> {
        let fail = |creation: ShapeCreation, is_refusal: bool, message: String| {
            creation.fail(SnapshotFailure { is_refusal, message: message.as_str().into() });
            Err(message)
        };
        let snapshot_permit = self.snapshot_permits.acquire().await;
        if let Some(gone) = creation.shape().gone() {
            return Err(gone.to_string());
        }
        let _awake = match self.manager.wake().await {
            Ok(awake) => awake,
            Err(error) => return fail(creation, false, error.to_string()),
        };
        let of = Arc::clone(&creation.shape().definition().table);
        if let Err(why) = self.wait_for_writers(&of).await {
            return fail(creation, false, why);
        }
        let mut client = match self.manager.snapshot().await {
            Ok(client) => client,
            Err(error) => return fail(creation, false, error.to_string()),
        };
        let definition = creation.shape().definition().clone();
        let query = SnapshotQuery {
            table,
            selected: &definition.selected(),
            clause: definition.choice.clause.as_deref(),
            analyses: false,
            // A changes-only shape needs the snapshot's visibility and the validation of its
            // clause, but no rows.
            is_empty: definition.choice.log == LogMode::ChangesOnly,
            page: None,
            timeout: None,
        };
        creation.follow();
        if self.watch.is_retired(&of).await {
            return fail(
                creation,
                false,
                "its table was just removed from the publication: try again".to_owned(),
            );
        }
        let mut sink = SnapshotWriter { creation: Some(creation), is_early: false };
        let until = Instant::now() + WRITERS_TIMEOUT;
        let outcome = loop {
            let outcome = database::snapshot(&mut client, &query, &mut sink).await;
            if !std::mem::take(&mut sink.is_early) || Instant::now() > until {
                break outcome;
            }
            // A new transaction has a newer snapshot. If the connection is lost, the next attempt
            // returns the error.
            let _ended = client.batch_execute("ROLLBACK").await;
            tokio::time::sleep(VISIBILITY_RETRY).await;
        };
        // `complete` waits until the stream has delivered the rest of its current transaction,
        // which may take long. The wait needs neither connection nor permit.
        match &outcome {
            Ok(_) => client.return_without_reset(),
            Err(_) => drop(client),
        }
        drop(snapshot_permit);
        let creation = sink.creation.take();
        match (outcome, creation) {
            (Ok(summary), Some(creation)) => match seal(creation).await {
                Ok((Ok(()), creation)) => match creation.complete().await {
                    Ok(()) => Ok(summary.rows),
                    Err(gone) => Err(gone.to_string()),
                },
                Ok((Err(error), creation)) => fail(creation, false, error.to_string()),
                Err(error) => Err(error.to_string()),
            },
            (Err(error), Some(creation)) => {
                let message = error.to_string();
                fail(creation, matches!(error, SnapshotError::Refused(_)), message)
            }
            (_, None) => Err("its snapshot was given up".to_owned()),
        }
    }
}

/// Writes a snapshot's rows to the store.
struct SnapshotWriter {
    /// `None` while a blocking task writes.
    creation: Option<ShapeCreation>,
    /// Whether the snapshot doesn't see a commit that the stream has already delivered.
    is_early: bool,
}

impl database::RowSink for SnapshotWriter {
    type Error = io::Error;

    async fn begin(&mut self, snapshot: &Snapshot, lsn: Lsn) -> io::Result<()> {
        let creation = self.creation.as_mut().ok_or_else(|| io::Error::other("its writer is gone"))?;
        self.is_early = !creation.snapshot_taken(snapshot, lsn.0);
        match self.is_early {
            true => Err(io::Error::other("a commit that the stream has isn't visible yet")),
            false => Ok(()),
        }
    }

    async fn rows(&mut self, messages: Bytes) -> io::Result<()> {
        let mut creation = self.creation.take().ok_or_else(|| io::Error::other("its writer is gone"))?;
        if let Some(gone) = creation.shape().gone() {
            return Err(io::Error::other(gone));
        }
        let (wrote, creation) = match creation.rows_block(messages.len()) {
            false => (creation.rows(messages), creation),
            true => {
                spawn_blocking(move || (creation.rows(messages), creation)).await.map_err(io::Error::other)?
            }
        };
        self.creation = Some(creation);
        wrote
    }

    /// Seals a small snapshot, so that it is complete before the waiting client is woken.
    async fn end(&mut self) -> io::Result<()> {
        match &mut self.creation {
            Some(creation) if !creation.seal_blocks() => creation.seal(),
            _ => Ok(()),
        }
    }
}

/// Seals a snapshot unless it is sealed. A large one is synced to disk in a blocking task.
async fn seal(mut creation: ShapeCreation) -> Result<(io::Result<()>, ShapeCreation), JoinError> {
    match creation.is_sealed() {
        true => Ok((Ok(()), creation)),
        false => spawn_blocking(move || (creation.seal(), creation)).await,
    }
}
