//! Shape factory: finds the shape that a request selects, or creates it.
//!
//! Invariant: every change of a row is in a shape's snapshot or in its log, and never in both.
//! Enforced by: this order. First the table is looked up and added to the publication. Then the
//! shape is created, and the snapshot runner fills it (`snapshot_runner.rs`).
//!
//! ```text
//! ShapeFactory ─▶ TableCache ─▶ TableDescriber ─▶ CatalogScanner
//!      │              └───────▶ TablePublisher ─────▲  ▲
//!      └────────▶ SnapshotRunner ───────▲              │
//! TableComparer ─▶ TableCache, TableDescriber ─────────┘
//! ```
//!
//! Each part owns its state, and calls only the parts that its arrows lead to.
//! Lock order: no two of the mutexes here are held together, and none is held across an await,
//! except the tokio mutex in `builtins_cache.rs`.
//!
//! | topic | file |
//! |---|---|
//! | what a request selects: columns, clause, log mode | `definition.rs` |
//! | descriptions of tables: cached, shared by requests | `table_cache.rs` |
//! | descriptions of tables: read from the catalog | `table_describer.rs` |
//! | adding tables to the publication, removing them; shapes that may miss changes | `table_publisher.rs` |
//! | shapes that don't fit their table any more | `table_comparer.rs` |
//! | permits, earlier writers, the snapshot | `snapshot_runner.rs` |
//! | the snapshot's rows on disk | `snapshot_sink.rs` |
//! | functions and types for clauses that Postgres evaluates | `builtins_cache.rs` |
//! | the refusal for each error | `refusals.rs` |

mod builtins_cache;
mod definition;
mod refusals;
mod snapshot_runner;
mod snapshot_sink;
mod table_cache;
mod table_comparer;
mod table_describer;
mod table_publisher;

use std::sync::Arc;

use forebay_replication::{Manager, ManagerStep};
use forebay_shapes::filter::Filter;
use forebay_shapes::{CreateError, Shape, ShapeDefinition, Shapes};

pub(crate) use self::builtins_cache::BuiltinsCache;
use self::definition::shape_definition;
pub(crate) use self::definition::{agrees_with, schema_header, selects, table_schema};
pub(crate) use self::refusals::gone_refusal;
use self::refusals::not_writing_refusal;
pub(crate) use self::snapshot_runner::{ReadError, SnapshotRunner, VISIBILITY_RETRY};
pub(crate) use self::table_cache::TableCache;
pub(crate) use self::table_comparer::{ComparisonOutcome, TableComparer};
pub(crate) use self::table_describer::TableDescriber;
pub(crate) use self::table_publisher::{TablePublishError, TablePublisher};
use super::clause_parser::ClauseParser;
use super::clause_turns::ClauseTurns;
use super::database::TableDescription;
use super::metrics::SnapshotOutcome;
use super::protocol::{InvalidRequest, RequestRefusal, ShapeRequest};
use super::token_verifier::while_valid;

/// Finds and creates shapes.
#[derive(Debug)]
pub(crate) struct ShapeFactory {
    shapes: Shapes,
    manager: Manager,
    tables: Arc<TableCache>,
    snapshots: Arc<SnapshotRunner>,
    builtins: Arc<BuiltinsCache>,
    pub(crate) turns: ClauseTurns,
    /// Maximum number of shapes with a condition that only Postgres can evaluate; 0: such clauses
    /// are refused.
    max_postgres_clauses: usize,
}

impl ShapeFactory {
    pub(crate) fn new(
        shapes: Shapes,
        manager: Manager,
        tables: Arc<TableCache>,
        snapshots: Arc<SnapshotRunner>,
        builtins: Arc<BuiltinsCache>,
        max_postgres_clauses: usize,
    ) -> Self {
        let turns = ClauseTurns::default();
        ShapeFactory { shapes, manager, tables, snapshots, builtins, turns, max_postgres_clauses }
    }

    /// Returns the definition of the requested shape, and the description of its table. The
    /// description is `None` if the database can't be queried.
    pub(crate) async fn definition(
        &self,
        request: &ShapeRequest,
    ) -> Result<(ShapeDefinition, Option<Arc<TableDescription>>), RequestRefusal> {
        let Some(name) = &request.table else {
            return Err(InvalidRequest::field("table", "can't be blank").into());
        };
        let cached = while_valid(request.bearer.as_ref(), self.tables.get(name)).await??;
        if self.max_postgres_clauses == 0 {
            let parse = || shape_definition(request, &cached, ClauseParser::Native);
            let (definition, _) = self.in_turn(request, parse).await??;
            return Ok((definition, cached.description));
        }
        let parse = || shape_definition(request, &cached, ClauseParser::Unchecked);
        let (definition, needs_postgres) = self.in_turn(request, parse).await??;
        if needs_postgres && self.shapes.find_same(&definition).is_none() {
            let Some(table) = &cached.description else { return Err(self.creation_refusal()) };
            let loading = self.builtins.get(table.server_version);
            let builtins = &*while_valid(request.bearer.as_ref(), loading).await??;
            let parse = || shape_definition(request, &cached, ClauseParser::Checked { table, builtins });
            self.in_turn(request, parse).await??;
            self.check_postgres_clauses()?;
        }
        Ok((definition, cached.description))
    }

    /// Parses the clause of a request, in turn if it is long.
    async fn in_turn<T>(
        &self,
        request: &ShapeRequest,
        parse: impl FnOnce() -> T,
    ) -> Result<T, RequestRefusal> {
        let clause = (request.clause.as_deref(), &*request.params);
        self.turns.run(clause, request.bearer.as_ref(), parse).await
    }

    /// Fails if no further shape may have a condition that only Postgres can evaluate.
    fn check_postgres_clauses(&self) -> Result<(), RequestRefusal> {
        let needs_postgres = |shape: &&Arc<Shape>| shape.filter().is_some_and(Filter::needs_postgres);
        match self.shapes.all().iter().filter(needs_postgres).count() < self.max_postgres_clauses {
            true => Ok(()),
            false => {
                let limit = self.max_postgres_clauses as u64;
                Err(RequestRefusal::overloaded("postgres_clause", limit, random_u64()))
            }
        }
    }

    /// Returns the requested shape. If there is none, starts to create it, and returns without
    /// waiting for its snapshot.
    pub(crate) async fn shape(&self, request: &ShapeRequest) -> Result<Arc<Shape>, RequestRefusal> {
        let (definition, description) = self.definition(request).await?;
        if let Some(shape) = self.shapes.find_same(&definition) {
            return Ok(shape);
        }
        let Some(description) = description else { return Err(self.creation_refusal()) };
        let queue_permit = self.snapshots.enqueue()?;
        let create = || self.shapes.find_or_create(definition, unix_micros());
        let (shape, creation) = self.in_turn(request, create).await?.map_err(|error| match error {
            CreateError::Clause(error) => RequestRefusal::from(InvalidRequest::field("where", error)),
            _ => self.creation_refusal(),
        })?;
        if let Some(creation) = creation {
            let (snapshots, tables) = (Arc::clone(&self.snapshots), Arc::clone(&self.tables));
            tokio::spawn(async move {
                match snapshots.run(creation, &description).await {
                    // The table may have changed: the next request looks it up.
                    SnapshotOutcome::Failed => tables.forget(&description.name),
                    SnapshotOutcome::Complete | SnapshotOutcome::Gone => {}
                }
                drop(queue_permit);
            });
        }
        Ok(shape)
    }

    /// Returns why this process creates and deletes no shapes while it doesn't write to the store.
    pub(crate) fn creation_refusal(&self) -> RequestRefusal {
        match self.manager.status().step {
            ManagerStep::BackingOff
            | ManagerStep::StartReplicationClient
            | ManagerStep::ReplicationClientConnecting => RequestRefusal::DatabaseUnreachable,
            _ => not_writing_refusal(),
        }
    }
}

/// Returns the microseconds since 1970, for handles only. Handles stay unique even if the clock
/// stands still.
#[expect(clippy::disallowed_methods, reason = "a handle contains the time at which its shape was created")]
fn unix_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a random number; not for secrets.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}
