//! Between the manager and the shapes: takes the stream in, and says what is durable.

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

/// The shapes, as the manager sees them.
pub(crate) struct ShapesConsumer {
    shapes: Shapes,
    follower: Follower,
    described: SchemaEpoch,
    fitting: SchemaMonitor,
    /// The transaction that comes.
    xid: Option<u32>,
}

/// What the store keeps of what it follows, beside how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    timeline: Timeline,
    publication: u32,
}

impl ShapesConsumer {
    pub(crate) fn new(shapes: Shapes, described: SchemaEpoch) -> Self {
        let follower = shapes.follower();
        let fitting = SchemaMonitor::new(shapes.clone(), described.clone());
        ShapesConsumer { shapes, follower, described, fitting, xid: None }
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
        let Origin { timeline, publication } = serde_json::from_str(&origin).map_err(ConsumerError::fatal)?;
        Ok(Some(Bookmark { timeline, publication, durable: Lsn(lsn) }))
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        let shapes = self.shapes.all().len();
        match reason {
            ResetReason::First => info!("the store begins"),
            _ => warn!(?reason, shapes, "all shapes start over: the database isn't what they were made of"),
        }
        let Bookmark { timeline, publication, durable } = begin;
        let origin = words(&Origin { timeline, publication });
        self.shapes.reset(origin, durable.0).await.map_err(ended)
    }

    async fn adopt(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        let Some(StorePosition { origin, .. }) = self.shapes.position() else { return Ok(()) };
        let origin: Origin = serde_json::from_str(&origin).map_err(ConsumerError::fatal)?;
        self.shapes.adopt(words(&Origin { timeline, ..origin })).await.map_err(ended)
    }

    fn start(&mut self, durable: DurablePosition) {
        self.follower.restart();
        self.fitting.restart();
        self.shapes.on_durable(move |lsn| durable.advance(Lsn(lsn)));
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        // Once for all that has come: what was done to a table before that is visible by now.
        let mut is_compared = false;
        while let Some(message) = batch.next() {
            let changed = match &message {
                PgOutputMessage::Insert(insert) => Some(insert.relation),
                PgOutputMessage::Update(update) => Some(update.relation),
                PgOutputMessage::Delete(delete) => Some(delete.relation),
                _ => None,
            };
            if !is_compared && changed.is_some_and(|oid| self.follower.has_ancestors(oid)) {
                self.fitting.fit_partitioned().await.map_err(ConsumerError::retry)?;
                is_compared = true;
            }
            match &message {
                PgOutputMessage::Begin(begin) => self.xid = Some(begin.xid),
                PgOutputMessage::Relation(relation) => {
                    // First: whoever starts over because of it must not begin with what was known before.
                    self.described.anew();
                    let fit = self.fitting.fit(relation, self.xid).await;
                    self.follower.set_partition_tree(relation.oid, fit.map_err(ConsumerError::retry)?);
                }
                _ => {}
            }
            self.follower.take(&message).map_err(ConsumerError::retry)?;
        }
        self.shapes.room().await;
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.shapes.advance(lsn.0);
        Ok(())
    }

    async fn table_changed(&mut self, table: &TableName, change: TableChange) -> Result<(), ConsumerError> {
        warn!(%table, ?change, "the shapes of a table start over: it was changed behind our back");
        self.described.anew();
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
        // It can only fail by a panic, and then it doesn't write any more either.
        let _ended = spawn_blocking(move || shapes.end_writing()).await;
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        self.shapes.checkpoint().await.map_err(ended)
    }
}

fn words(origin: &Origin) -> String {
    serde_json::to_string(origin).expect("an origin is plain data")
}

fn ended(error: CreateError) -> ConsumerError {
    ConsumerError::retry(error)
}
