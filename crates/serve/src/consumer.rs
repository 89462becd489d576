//! Shapes consumer: passes the replication stream to the store, and reports durable positions.
//!
//! Invariant: before a change of a row is stored, its table was compared with the catalog.
//! Enforced by: [`SchemaMonitor`], at each Relation message, and once per batch before the first
//! change of a partition.

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, MessageBatch, ResetReason, TableChange, TableName,
    Timeline,
};
use forebay_shapes::{CreateError, Follower, Shapes, StorePosition};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::schema_monitor::{SchemaEpoch, SchemaMonitor};

/// The manager's consumer: the store of shapes.
pub(crate) struct ShapesConsumer {
    shapes: Shapes,
    follower: Follower,
    schema_epoch: SchemaEpoch,
    schema_monitor: SchemaMonitor,
    /// The transaction that is being received.
    xid: Option<u32>,
}

/// Where the store's changes come from; the store keeps it as JSON next to its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoreOrigin {
    timeline: Timeline,
    /// pg_publication.oid.
    publication: u32,
}

impl ShapesConsumer {
    pub(crate) fn new(shapes: Shapes, schema_epoch: SchemaEpoch, schema_monitor: SchemaMonitor) -> Self {
        let follower = shapes.follower();
        ShapesConsumer { shapes, follower, schema_epoch, schema_monitor, xid: None }
    }
}

impl Consumer for ShapesConsumer {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        let shapes = self.shapes.clone();
        let begun = spawn_blocking(move || shapes.begin_writing()).await.map_err(ConsumerError::retry)?;
        let position = begun.map_err(|error| match error.unusable() {
            Some(_) => ConsumerError::fatal(error),
            None => ConsumerError::retry(error),
        })?;
        let Some(StorePosition { origin, lsn }) = position else { return Ok(None) };
        let StoreOrigin { timeline, publication } =
            serde_json::from_str(&origin).map_err(ConsumerError::fatal)?;
        Ok(Some(Bookmark { timeline, publication, durable: Lsn(lsn) }))
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        let shapes = self.shapes.all().len();
        match reason {
            ResetReason::First => info!("store initialized"),
            _ => warn!(
                ?reason,
                shapes, "all shapes deleted: the stream doesn't continue from the store's position"
            ),
        }
        let Bookmark { timeline, publication, durable } = begin;
        let origin = to_json(&StoreOrigin { timeline, publication });
        self.shapes.reset(origin, durable.0).await.map_err(store_ended)
    }

    async fn record_timeline(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        let Some(StorePosition { origin, .. }) = self.shapes.position() else { return Ok(()) };
        let origin: StoreOrigin = serde_json::from_str(&origin).map_err(ConsumerError::fatal)?;
        self.shapes.adopt(to_json(&StoreOrigin { timeline, ..origin })).await.map_err(store_ended)
    }

    fn start(&mut self, durable: DurablePosition) {
        self.follower.restart();
        self.schema_monitor.restart();
        self.shapes.on_durable(move |lsn| durable.advance(Lsn(lsn)));
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        // One comparison is enough for the batch: schema changes from before it are visible by now.
        let mut is_compared = false;
        while let Some(message) = batch.next() {
            let changed = match &message {
                PgOutputMessage::Insert(insert) => Some(insert.relation),
                PgOutputMessage::Update(update) => Some(update.relation),
                PgOutputMessage::Delete(delete) => Some(delete.relation),
                _ => None,
            };
            if !is_compared && changed.is_some_and(|oid| self.follower.has_ancestors(oid)) {
                self.schema_monitor.compare_partitioned().await.map_err(ConsumerError::retry)?;
                is_compared = true;
            }
            match &message {
                PgOutputMessage::Begin(begin) => self.xid = Some(begin.xid),
                PgOutputMessage::Relation(relation) => {
                    // Before shapes are deleted: requests that start over must not use cached
                    // tables.
                    self.schema_epoch.advance();
                    let tree = self.schema_monitor.compare_relation(relation, self.xid).await;
                    self.follower.set_partition_tree(relation.oid, tree.map_err(ConsumerError::retry)?);
                }
                _ => {}
            }
            self.follower.apply(&message).map_err(ConsumerError::retry)?;
        }
        self.shapes.wait_for_room().await;
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.shapes.advance(lsn.0);
        Ok(())
    }

    async fn table_changed(&mut self, table: &TableName, change: TableChange) -> Result<(), ConsumerError> {
        warn!(%table, ?change, "shapes of a table deleted: the table or its publication was changed");
        self.schema_epoch.advance();
        for shape in self.shapes.all() {
            let of = &shape.definition().table;
            if (&*of.schema, &*of.name) == (&*table.schema, &*table.name) {
                self.shapes.delete(shape.handle());
            }
        }
        Ok(())
    }

    async fn stop(&mut self) {
        let shapes = self.shapes.clone();
        // The result is ignored: the task fails only if it panics.
        let _ended = spawn_blocking(move || shapes.end_writing()).await;
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        self.shapes.checkpoint().await.map_err(store_ended)
    }
}

fn to_json(origin: &StoreOrigin) -> String {
    serde_json::to_string(origin).expect("an origin is plain data")
}

fn store_ended(error: CreateError) -> ConsumerError {
    ConsumerError::retry(error)
}
