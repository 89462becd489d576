//! From what is asked for to a shape: found, or made.
//!
//! Invariant: a shape's snapshot and its log meet without a gap and without an overlap.
//! Kept by: the table is in the publication, and writers from before that have ended, before the store begins to hold changes for the
//! shape; only then is the snapshot taken. The order is in [`ShapeFactory::fill`].
//! Bounds: `snapshots` are taken at once, and `MAX_WAITING` wait for their turn; who comes then is refused.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_replication::{
    Manager, ManagerStep, NotReady, PoolError, PublishError, TableName, TablePublication,
};
use forebay_shapes::filter::Filter;
use forebay_shapes::{
    CatalogState, CreateError, LogMode, Shape, ShapeCreation, ShapeDefinition, ShapeGone, ShapeOptions,
    Shapes, SnapshotFailure, TableSchema,
};
use http::HeaderValue;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::catalog_watch::CatalogWatch;
use super::database::{self, Builtins, DescribeError, SnapshotError, SnapshotQuery, TableSelection};
use super::granted;
use super::metrics::{self, Ended};
use super::protocol::{InvalidRequest, RequestRefusal, ShapeRequest, schema};
use super::schema_monitor::SchemaEpoch;
use super::tokens::while_valid;

/// How many shapes may wait for their snapshot.
const MAX_WAITING: usize = 1000;
/// How long what is known of a table is believed without a look at the database, unless [`SchemaEpoch`] says otherwise.
const KNOWN_FOR: Duration = Duration::from_secs(5);
/// How long the database may take to tell.
const ASKING: Duration = Duration::from_secs(10);
/// How often a table is published and looked at, until it stays as it is.
const MAX_LOOKS: usize = 4;
/// How long until tables that couldn't be published are tried again.
const REPUBLISHING: Duration = Duration::from_secs(5);
/// How long writers from before the table was published are waited for.
const WRITERS: Duration = Duration::from_secs(30);

/// How long a commit is given to become visible, before another look.
pub(super) const EARLY: Duration = Duration::from_millis(5);

/// Finds shapes, and makes them.
#[derive(Debug)]
pub(crate) struct ShapeFactory {
    pub(super) shapes: Shapes,
    pub(super) manager: Manager,
    known: Mutex<HashMap<TableName, Known>>,
    asking: Mutex<HashMap<TableName, Weak<Asking>>>,
    pub(super) described: SchemaEpoch,
    pub(super) watch: Arc<CatalogWatch>,
    /// What clauses may use of Postgres itself, by its major version.
    builtins: tokio::sync::Mutex<Option<(u32, Arc<Builtins>)>>,
    /// Tables that have no writers from before they were published as they are, nor from before
    /// this process began to write for the last time: another one may have taken in a commit that
    /// isn't visible yet.
    settled: Mutex<SettledTables>,
    /// How many snapshots are taken at once.
    turns: usize,
    snapshots: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// A table that was asked for lately.
#[derive(Debug, Clone)]
struct Known {
    /// How many times tables had been described when it was asked for.
    times: u64,
    /// As the database has it; `None`: it couldn't be asked, and this is what shapes were made of.
    described: Option<Arc<database::TableDescription>>,
    table: Arc<TableSchema>,
    at: Instant,
}

/// Tables without writers from before, as of a turn of writing.
#[derive(Debug, Default)]
struct SettledTables {
    turn: u64,
    /// By oid: the rows of the catalog that publish it; see `CatalogState::publication`.
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

/// A question to the database, and its answer for all who wait for it.
type Asking = OnceCell<Result<Known, RequestRefusal>>;

impl ShapeFactory {
    pub(crate) fn new(
        shapes: Shapes,
        manager: Manager,
        described: SchemaEpoch,
        watch: Arc<CatalogWatch>,
        snapshots: usize,
    ) -> Arc<Self> {
        let making = Arc::new(ShapeFactory {
            shapes,
            manager,
            watch,
            known: Mutex::default(),
            asking: Mutex::default(),
            described,
            builtins: tokio::sync::Mutex::default(),
            settled: Mutex::default(),
            turns: snapshots.max(1),
            snapshots: Arc::new(Semaphore::new(snapshots.max(1))),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        });
        making.described.asks(&making);
        making
    }

    /// What is asked for, and the table that it is of.
    pub(crate) async fn definition(
        &self,
        request: &ShapeRequest,
    ) -> Result<(ShapeDefinition, Option<Arc<database::TableDescription>>), RequestRefusal> {
        let Some(name) = &request.table else {
            return Err(InvalidRequest::field("table", "can't be blank").into());
        };
        let known = while_valid(request.bearer.as_ref(), self.know(name)).await??;
        let definition = define(request, &known)?;
        Ok((definition, known.described))
    }

    /// The shape that is asked for. It is being made when this returns, if it wasn't there.
    pub(crate) async fn shape(
        self: &Arc<Self>,
        request: &ShapeRequest,
    ) -> Result<Arc<Shape>, RequestRefusal> {
        let (definition, described) = self.definition(request).await?;
        if let Some(shape) = self.shapes.find_same(&definition) {
            return Ok(shape);
        }
        let Some(described) = described else { return Err(self.makes_none()) };
        let Ok(turn) = Arc::clone(&self.waiting).try_acquire_owned() else {
            return Err(RequestRefusal::overloaded("snapshot", MAX_WAITING as u64, chance()));
        };
        let (shape, creation) =
            self.shapes.find_or_create(definition, micros()).map_err(|error| match error {
                CreateError::Clause(error) => RequestRefusal::from(InvalidRequest::field("where", error)),
                _ => self.makes_none(),
            })?;
        if let Some(creation) = creation {
            let making = Arc::clone(self);
            tokio::spawn(async move {
                making.fill(creation, &described).await;
                drop(turn);
            });
        }
        Ok(shape)
    }

    /// How many snapshots are being taken, and how many wait for that.
    pub(crate) fn snapshots(&self) -> (usize, usize) {
        let running = self.turns.saturating_sub(self.snapshots.available_permits());
        let all = MAX_WAITING.saturating_sub(self.waiting.available_permits());
        (running, all.saturating_sub(running))
    }

    /// Why no shape can be made or deleted while nobody writes to the store here.
    pub(super) fn makes_none(&self) -> RequestRefusal {
        match self.manager.status().step {
            ManagerStep::BackingOff
            | ManagerStep::StartReplicationClient
            | ManagerStep::ReplicationClientConnecting => RequestRefusal::DatabaseUnreachable,
            _ => waiting(),
        }
    }

    /// Looks, beside the request and not too often, whether the shape's table is still what it was: what is done to a table is in the stream
    /// only with the next change of a row, and of one that is gone there is none.
    pub(crate) fn look_again(self: &Arc<Self>, shape: &Arc<Shape>) {
        let table = &shape.definition().table;
        let name = TableName::new(&table.schema, &table.name);
        let is_fresh = |known: &Known| known.at.elapsed() < KNOWN_FOR;
        if !self.shapes.is_writing() || lock(&self.known).get(&name).is_some_and(is_fresh) {
            return;
        }
        let (making, oid) = (Arc::clone(self), table.oid);
        tokio::spawn(async move {
            let known = making.know(&name).await;
            let _compared = making.refit(oid, &name, known).await;
        });
    }

    /// Asks the database what a table is now, and deletes its shapes that don't fit. Returns whether
    /// they were compared.
    pub(super) async fn check(&self, oid: u32, name: &TableName) -> bool {
        self.described.anew();
        let times = self.described.times();
        let before = lock(&self.known).get(name).cloned();
        let known = match self.ask_once(name, before.clone()).await {
            // It was asked before.
            Ok(known) if known.times < times => self.ask_once(name, before).await,
            known => known,
        };
        self.refit(oid, name, known).await
    }

    /// Returns whether the shapes of a table were compared.
    async fn refit(&self, oid: u32, name: &TableName, known: Result<Known, RequestRefusal>) -> bool {
        match known {
            // It can't be asked right now.
            Ok(Known { described: None, .. }) => return false,
            Ok(known) if known.table.oid == oid => self.shapes.refit(&known.table),
            Ok(_) => self.shapes.delete_table(oid),
            // Whatever else is wrong with it, its shapes may go on.
            Err(RequestRefusal::Invalid(_)) => {
                if self.is_gone(name).await {
                    self.shapes.delete_table(oid);
                }
            }
            Err(_) => return false,
        }
        true
    }

    async fn is_gone(&self, name: &TableName) -> bool {
        let Ok(client) = self.manager.admin().await else { return false };
        let described = database::describe(&client, name).await;
        matches!(described, Err(DescribeError::NotFound { .. } | DescribeError::NotATable { .. }))
    }

    /// For whoever must not wait behind those who change the publication: they may wait for the stream.
    pub(super) async fn connection(&self) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
        match self.manager.admin().await {
            Ok(client) => Ok(client),
            Err(_) => self.manager.snapshot().await,
        }
    }

    /// Whether a shape is the one that is asked for.
    pub(crate) fn fits(&self, request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
        let is_same = is_of_table(request, shape);
        Ok(is_same && choose(request, &shape.definition().table)? == shape.definition().choice)
    }

    /// Returns whether a request that has a shape's handle names that shape: its table, if the
    /// request names one, and the rest of its definition, if the request says any of it.
    pub(crate) fn is_named(&self, request: &ShapeRequest, shape: &Shape) -> Result<bool, RequestRefusal> {
        match request.defines_more_than_table() {
            true => self.fits(request, shape),
            false => Ok(is_of_table(request, shape)),
        }
    }

    /// Reads rows as they are right now, beside all logs.
    pub(crate) async fn read<S: database::RowSink>(
        &self,
        query: &SnapshotQuery<'_>,
        sink: &mut S,
    ) -> Result<(), ReadError<S::Error>> {
        let Ok(_place) = self.waiting.try_acquire() else {
            let refusal = RequestRefusal::overloaded("snapshot", MAX_WAITING as u64, chance());
            return Err(ReadError::Refused(refusal));
        };
        let _turn = self.snapshots.acquire().await;
        let _awake = self.manager.wake().await.map_err(|error| ReadError::Refused(not_ready(&error)))?;
        let client = self.manager.snapshot().await;
        let mut client = client.map_err(|error| ReadError::Refused(no_connection(&error)))?;
        database::snapshot(&mut client, query, sink).await.map_err(ReadError::Failed)?;
        client.give_back_clean();
        Ok(())
    }

    /// Publishes again what shapes from before follow; those whose changes may be missing start over. Returns when that is known of all.
    pub(crate) async fn republish(&self) {
        let shapes = self.shapes.all();
        let tables = shapes.iter().map(|shape| &shape.definition().table);
        let mut tables: HashSet<_> = tables.map(|table| TableName::new(&table.schema, &table.name)).collect();
        let mut is_first = true;
        loop {
            let mut left = HashSet::new();
            for table in tables {
                match self.publish(&table).await {
                    Ok(published) => self.leave_stale(&table, Some(published)),
                    Err(PublishError::NotFound { .. } | PublishError::NotATable { .. }) => {
                        self.leave_stale(&table, None);
                    }
                    Err(error) => {
                        warn!(%table, %error, "a table that shapes follow can't be published");
                        left.insert(table);
                    }
                }
            }
            if std::mem::take(&mut is_first) {
                self.look_at_all().await;
            }
            if left.is_empty() {
                return;
            }
            tables = left;
            tokio::time::sleep(REPUBLISHING).await;
        }
    }

    /// Shapes of a table of which changes may be missing start over. `None`: there is no such table.
    pub(super) fn leave_stale(&self, name: &TableName, published: Option<TablePublication>) {
        let is_stale = |shape: &Arc<Shape>| {
            let TableSchema { schema, name: of, oid, membership, .. } = &*shape.definition().table;
            let is_whole =
                |now: TablePublication| now.was_whole && (now.oid, now.membership) == (*oid, *membership);
            (&**schema, &**of) == (&*name.schema, &*name.name) && !published.is_some_and(is_whole)
        };
        let stale: Vec<_> = self.shapes.all().into_iter().filter(is_stale).collect();
        if !stale.is_empty() {
            // Whoever asks must not begin with what was known before.
            self.described.anew();
            info!(table = %name, shapes = stale.len(), "shapes start over: changes of their table may be missing");
        }
        for shape in stale {
            self.shapes.delete(shape.handle());
        }
    }

    /// What a table is, from the database unless it was asked lately. If it can't be asked, what shapes of it were made of.
    async fn know(&self, name: &TableName) -> Result<Known, RequestRefusal> {
        let times = self.described.times();
        let before = lock(&self.known).get(name).cloned();
        let is_current = |known: &&Known| known.times == times && known.at.elapsed() < KNOWN_FOR;
        if let Some(known) = before.as_ref().filter(is_current) {
            return Ok(known.clone());
        }
        let remembered = self.remember(name);
        let patience = if remembered.is_some() { ASKING / 5 } else { ASKING };
        let asking = async {
            match self.ask_once(name, before.clone()).await {
                // It was asked before the stream told of a change.
                Ok(known) if known.times < times => self.ask_once(name, before).await,
                answer => answer,
            }
        };
        match timeout(patience, asking).await {
            Ok(Ok(known)) => Ok(known),
            Ok(Err(refusal @ RequestRefusal::Invalid(_))) => Err(refusal),
            Ok(Err(refusal)) => remembered.ok_or(refusal),
            Err(_) => remembered.ok_or(RequestRefusal::DatabaseUnreachable),
        }
    }

    /// Has the next request for a table ask the database.
    pub(super) fn forget_known(&self, name: &TableName) {
        self.described.anew();
        lock(&self.known).remove(name);
    }

    fn remember(&self, name: &TableName) -> Option<Known> {
        let of_name =
            |table: &&Arc<TableSchema>| (&*table.schema, &*table.name) == (&*name.schema, &*name.name);
        let shapes = self.shapes.all();
        let tables = shapes.iter().map(|shape| &shape.definition().table);
        // Handles end with the time: the newest shape has the newest table.
        let newest = tables.zip(&shapes).filter(|(table, _)| of_name(table));
        let newest = newest.max_by_key(|(_, shape)| shape.handle().rsplit('-').next().map(str::to_owned));
        newest.map(|(table, _)| Known {
            times: self.described.times(),
            described: None,
            table: Arc::clone(table),
            at: Instant::now(),
        })
    }

    /// Asks once for all who want to know at the same time: a crowd would wait for the few connections that there are for it.
    async fn ask_once(&self, name: &TableName, before: Option<Known>) -> Result<Known, RequestRefusal> {
        let asking = {
            let mut all = lock(&self.asking);
            all.retain(|_, asking| asking.strong_count() > 0);
            let current = all.get(name).and_then(Weak::upgrade).filter(|asking| !asking.initialized());
            current.unwrap_or_else(|| {
                let asking = Arc::new(Asking::new());
                all.insert(name.clone(), Arc::downgrade(&asking));
                asking
            })
        };
        // Should whoever asks leave, the next in line asks.
        asking.get_or_init(|| self.ask(name, before)).await.clone()
    }

    async fn ask(&self, name: &TableName, before: Option<Known>) -> Result<Known, RequestRefusal> {
        if self.manager.status().step == ManagerStep::AcquiringLock {
            return Err(waiting());
        }
        let times = self.described.times();
        let _awake = self.manager.wake().await.map_err(|error| not_ready(&error))?;
        let (described, state) = self.describe(name).await?;
        // The publication may be another though the table isn't: whoever told of that has counted, too.
        let is_same = |known: &&Known| {
            let is_same_table = known.described.as_deref() == Some(&described);
            known.times == times && is_same_table && known.table.state.as_ref() == Some(&state)
        };
        let is_as_before = before.as_ref().filter(is_same);
        let (described, table) = match is_as_before {
            Some(known) => (described, Arc::clone(&known.table)),
            None => {
                // Also if it can't be published as it is.
                self.shapes.refit(&followed(&described, 0, Some(state.clone())));
                let (described, table) = self.publish_as_described(name, (described, state)).await?;
                // New clients, too, must not get a shape that doesn't fit any more.
                self.shapes.refit(&table);
                (described, Arc::new(table))
            }
        };
        let known = Known { times, described: Some(Arc::new(described)), table, at: Instant::now() };
        lock(&self.known).insert(name.clone(), known.clone());
        Ok(known)
    }

    /// What clauses may use of Postgres itself; it is asked once for each major version.
    pub(super) async fn builtins(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let asking = timeout(ASKING, self.ask_builtins(server_version));
        asking.await.unwrap_or(Err(RequestRefusal::DatabaseUnreachable))
    }

    async fn ask_builtins(&self, server_version: u32) -> Result<Arc<Builtins>, RequestRefusal> {
        let mut known = self.builtins.lock().await;
        if let Some((_, builtins)) = known.as_ref().filter(|(version, _)| *version == server_version) {
            return Ok(Arc::clone(builtins));
        }
        let _awake = self.manager.wake().await.map_err(|error| not_ready(&error))?;
        let client = self.manager.admin().await.map_err(|error| no_connection(&error))?;
        let asked = Builtins::ask(&client).await.map_err(|error| undescribed(&error.into()))?;
        let builtins = Arc::new(asked);
        *known = Some((server_version, Arc::clone(&builtins)));
        Ok(builtins)
    }

    /// Publishes a table, and returns it as it is then. The publication is checked between two looks
    /// that agree on it: what shapes of the table go by has every kind of change.
    async fn publish_as_described(
        &self,
        name: &TableName,
        (mut described, mut state): (database::TableDescription, CatalogState),
    ) -> Result<(database::TableDescription, TableSchema), RequestRefusal> {
        for _ in 0..MAX_LOOKS {
            let published = self.publish(name).await.map_err(|error| unpublished(&error))?;
            self.leave_stale(name, Some(published));
            // Publishing may have changed how the stream has its old rows, and so the edition.
            let (again, after) = self.describe(name).await?;
            let is_settled = after.publication == state.publication;
            let is_same = again.fingerprint() == described.fingerprint();
            (described, state) = (again, after);
            if is_settled && is_same {
                let table = followed(&described, published.membership, Some(state));
                return Ok((described, table));
            }
        }
        Err(RequestRefusal::SnapshotFailed {
            message: "the table or its publication changes: try again".into(),
        })
    }

    /// The look comes first: should the table change in between, the next look tells.
    async fn describe(
        &self,
        name: &TableName,
    ) -> Result<(database::TableDescription, CatalogState), RequestRefusal> {
        let client = self.manager.admin().await.map_err(|error| no_connection(&error))?;
        let tables = TableSelection::Named(&name.schema, &name.name);
        let (looked, described) = tokio::join!(
            biased;
            self.look(&client, tables),
            database::describe(&client, name),
        );
        let described = described.map_err(|error| undescribed(&error))?;
        let looked = looked.map_err(|error| {
            warn!(%error, "a table can't be looked at");
            RequestRefusal::DatabaseUnreachable
        })?;
        let look = looked.looks.into_iter().find(|look| look.oid == described.oid);
        // It was replaced in between.
        let look = look.ok_or_else(|| RequestRefusal::SnapshotFailed {
            message: "the table changed: try again".into(),
        })?;
        Ok((described, look.state))
    }

    /// Adds a table to the publication. The first partition has all partitions published under their
    /// own names.
    async fn publish(&self, name: &TableName) -> Result<TablePublication, PublishError> {
        match self.manager.add_table(name).await {
            Err(PublishError::ViaRoot { .. }) => {
                self.publish_partitions(name).await?;
                self.manager.add_table(name).await
            }
            published => published,
        }
    }

    /// Whoever was writing when the table was published has to end before its first snapshot: the stream doesn't have what it wrote. When
    /// that was isn't known after a restart, nor when somebody else published it.
    async fn wait_for_writers(&self, table: &TableSchema) -> Result<(), String> {
        let turn = self.shapes.turn().unwrap_or_default();
        if lock(&self.settled).contains(turn, table) {
            return Ok(());
        }
        let client = self.manager.admin().await.map_err(|error| error.to_string())?;
        let waited = database::wait_for_writers(&client, table.oid, Instant::now() + WRITERS).await;
        waited.map_err(|error| error.to_string())?;
        lock(&self.settled).insert(turn, table);
        Ok(())
    }

    async fn fill(&self, creation: ShapeCreation, table: &database::TableDescription) {
        let begun = Instant::now();
        let shape = Arc::clone(creation.shape());
        let filled = self.try_fill(creation, table).await;
        let ended = match (&filled, shape.gone()) {
            (Ok(_), _) => Ended::Complete,
            (Err(_), Some(ShapeGone::Deleted)) => Ended::Gone,
            (Err(_), _) => Ended::Failed,
        };
        metrics::snapshot_ended(ended, begun.elapsed());
        match filled {
            Ok(rows) => {
                info!(handle = shape.handle(), table = %table.name, rows, took = ?begun.elapsed(), "a shape is made");
            }
            // It went for another, which says nothing about its table.
            Err(_) if matches!(ended, Ended::Gone) => {
                debug!(handle = shape.handle(), table = %table.name, "a shape went before it was made");
            }
            Err(why) => {
                warn!(handle = shape.handle(), table = %table.name, why, "a shape can't be made");
                lock(&self.known).remove(&table.name);
            }
        }
    }

    async fn try_fill(
        &self,
        creation: ShapeCreation,
        table: &database::TableDescription,
    ) -> Result<u64, String> {
        let fail = |creation: ShapeCreation, is_refusal: bool, message: String| {
            creation.fail(SnapshotFailure { is_refusal, message: message.as_str().into() });
            Err(message)
        };
        let turn = self.snapshots.acquire().await;
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
            // Which transactions it has seen is of interest, and whether the clause is one.
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
        let mut sink = Filling { creation: Some(creation), is_early: false };
        let until = Instant::now() + WRITERS;
        let outcome = loop {
            let outcome = database::snapshot(&mut client, &query, &mut sink).await;
            if !std::mem::take(&mut sink.is_early) || Instant::now() > until {
                break outcome;
            }
            // Another transaction, which sees more. If the connection is lost, that is what the next attempt says.
            let _ended = client.batch_execute("ROLLBACK").await;
            tokio::time::sleep(EARLY).await;
        };
        // What is left to wait for is the stream, for as long as the transaction that it is in may take.
        match &outcome {
            Ok(_) => client.give_back_clean(),
            Err(_) => drop(client),
        }
        drop(turn);
        let creation = sink.creation.take();
        match (outcome, creation) {
            (Ok(summary), Some(creation)) => match sealed(creation).await {
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

/// Why rows can't be read.
#[derive(Debug)]
pub(crate) enum ReadError<E: std::error::Error + 'static> {
    /// There is no connection.
    Refused(RequestRefusal),
    Failed(SnapshotError<E>),
}

/// Where a snapshot's rows go. The creation is away while it writes.
struct Filling {
    creation: Option<ShapeCreation>,
    /// The snapshot doesn't see what the stream has brought already.
    is_early: bool,
}

impl database::RowSink for Filling {
    type Error = io::Error;

    async fn begun(&mut self, snapshot: &Snapshot, lsn: Lsn) -> io::Result<()> {
        let creation = self.creation.as_mut().ok_or_else(|| io::Error::other("its writer is gone"))?;
        self.is_early = !creation.begun(snapshot, lsn.0);
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

    /// A small one is complete before the client that waits for it is woken.
    async fn ended(&mut self) -> io::Result<()> {
        match &mut self.creation {
            Some(creation) if !creation.seal_blocks() => creation.seal(),
            _ => Ok(()),
        }
    }
}

/// All of it is there, on the disk if it is large.
async fn sealed(mut creation: ShapeCreation) -> Result<(io::Result<()>, ShapeCreation), JoinError> {
    match creation.is_sealed() {
        true => Ok((Ok(()), creation)),
        false => spawn_blocking(move || (creation.seal(), creation)).await,
    }
}

fn define(request: &ShapeRequest, known: &Known) -> Result<ShapeDefinition, RequestRefusal> {
    // First: whoever may not see a column doesn't learn whether there is one.
    granted::find(request, &known.table)?;
    for (field, names) in [("columns", &request.columns), ("queryable_columns", &request.queryable_columns)] {
        if let (Some(names), Some(described)) = (names, &known.described) {
            described
                .choose(names)
                .map_err(|error| RequestRefusal::from(InvalidRequest::field(field, error)))?;
        }
    }
    Ok(ShapeDefinition { table: Arc::clone(&known.table), choice: choose(request, &known.table)? })
}

/// What is asked for of a table, and of that only what is granted.
fn choose(request: &ShapeRequest, table: &TableSchema) -> Result<ShapeOptions, RequestRefusal> {
    let grant = granted::find(request, table)?;
    let wrong = |error| RequestRefusal::from(InvalidRequest::field("where", error));
    let params: Vec<&str> = request.params.iter().map(String::as_str).collect();
    let types = granted::visible(grant, table);
    let parse = |clause: &str| Filter::parse(clause, &params, &types);
    let own = request.clause.as_deref().map(parse).transpose().map_err(wrong)?;
    let own = own.map(|filter| filter.canonical().to_owned());
    let clause = match (granted::clause(grant, table)?, own) {
        (Some(granted), Some(own)) => {
            Some(granted::filter_within(&granted, &own, &table.types).map_err(wrong)?)
        }
        (granted, own) => granted.or(own),
    };
    let all = granted::columns(grant, table);
    let chosen = request.columns.as_ref().or(request.queryable_columns.as_ref()).or(all.as_ref());
    let columns = chosen.map(|names| {
        let of_table = table.types.columns.iter().map(|column| &column.name);
        of_table.filter(|name| names.contains(name)).cloned().collect()
    });
    Ok(ShapeOptions { clause, columns, replica: request.replica, log: request.log })
}

/// A table, as its shapes depend on it and as their clients are told of it.
pub(super) fn followed(
    described: &database::TableDescription,
    membership: u32,
    state: Option<CatalogState>,
) -> TableSchema {
    // `{"name":{…}}` of each column, without what is around it.
    let note = |index: usize| {
        let header = schema::header(&described.shown(&[index]));
        header.to_str().unwrap_or_default().trim_start_matches('{').to_owned()
    };
    let strip = |note: String| note.strip_suffix('}').map(str::to_owned).unwrap_or(note);
    TableSchema {
        oid: described.oid,
        schema: described.name.schema.clone(),
        name: described.name.name.clone(),
        types: described.schema(),
        membership,
        stream_types: described.columns.iter().map(|column| column.stream_type).collect(),
        key: described.key(),
        numbers: described.columns.iter().map(|column| column.number).collect(),
        key_is_deferrable: described.key_is_deferrable,
        lineage: described.lineage.clone(),
        state,
        notes: described.all().into_iter().map(note).map(strip).collect(),
    }
}

/// Whether a request names a shape's table, or none.
fn is_of_table(request: &ShapeRequest, shape: &Shape) -> bool {
    let table = &shape.definition().table;
    let is_same = |name: &TableName| (&*name.schema, &*name.name) == (&*table.schema, &*table.name);
    request.table.as_ref().is_none_or(is_same)
}

/// What clients are told of a shape's columns.
pub(crate) fn schema_header(shape: &Shape) -> HeaderValue {
    let definition = shape.definition();
    let notes = definition.selected().into_iter().filter_map(|index| definition.table.notes.get(index));
    let columns: Vec<_> = notes.map(String::as_str).collect();
    HeaderValue::try_from(format!("{{{}}}", columns.join(","))).unwrap_or(HeaderValue::from_static("{}"))
}

/// Another instance makes shapes, or nobody does yet.
fn waiting() -> RequestRefusal {
    RequestRefusal::NotReady {
        message: "this instance makes and deletes no shapes right now: another one does, or will soon".into(),
    }
}

/// Why a shape that is gone can't be served, if it isn't simply another one now.
pub(crate) fn failed(gone: &ShapeGone) -> Option<RequestRefusal> {
    match gone {
        ShapeGone::Deleted => None,
        ShapeGone::Failed(failure) if failure.is_refusal => {
            Some(InvalidRequest::field("where", &failure.message).into())
        }
        ShapeGone::Failed(failure) => {
            Some(RequestRefusal::SnapshotFailed { message: failure.message.to_string().into() })
        }
    }
}

fn not_ready(error: &NotReady) -> RequestRefusal {
    match error {
        NotReady::Halted { .. } => RequestRefusal::DatabaseUnreachable,
        _ => waiting(),
    }
}

fn no_connection(error: &PoolError) -> RequestRefusal {
    warn!(%error, "no connection for a shape's table");
    RequestRefusal::DatabaseUnreachable
}

fn undescribed(error: &DescribeError) -> RequestRefusal {
    match error {
        DescribeError::Database(_) => {
            warn!(%error, "a table can't be described");
            RequestRefusal::DatabaseUnreachable
        }
        error => InvalidRequest::field("table", error).into(),
    }
}

fn unpublished(error: &PublishError) -> RequestRefusal {
    warn!(%error, "a table can't be published");
    match error {
        PublishError::Pool(_) | PublishError::Timeout => RequestRefusal::DatabaseUnreachable,
        // Without a code the connection was lost; 57 is a server that shuts down. Neither is the request's fault.
        PublishError::Server(error) if error.code().is_none_or(|code| code.code().starts_with("57")) => {
            RequestRefusal::DatabaseUnreachable
        }
        // Both are soon over: the reconciliation widens a publication again.
        PublishError::Busy { .. } | PublishError::Narrowed { .. } => {
            RequestRefusal::SnapshotFailed { message: error.to_string().into() }
        }
        error => InvalidRequest::field("table", error).into(),
    }
}

/// Since 1970; only for names, which differ even where the clock doesn't.
#[expect(clippy::disallowed_methods, reason = "a handle tells when its shape was made")]
fn micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Any number.
pub(crate) fn chance() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
