//! The tables of the publication: added, removed, and looked after.
//!
//! Invariant: a table that is tracked is published whole, with old rows in full, or whoever asked for it hears that it isn't. In manual
//! mode nothing is changed, only checked.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use forebay_reservoir::tokio_postgres::error::SqlState;
use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::tokio_postgres::{self, Row, SimpleQueryMessage};
use forebay_reservoir::{ConnectionGuard, PostgresClient};
use serde::Serialize;

use crate::config::ManagerConfig;
use crate::error::Failure;
use crate::pools::{PoolError, Pools};
use crate::sql;

/// How long a change of a table waits for those that use it: longer, and everybody else would wait behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '2s'";

/// What the server says of a name that isn't there.
const NOT_THERE: [SqlState; 2] = [SqlState::UNDEFINED_TABLE, SqlState::INVALID_SCHEMA_NAME];

/// A table by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TableName {
    /// The schema.
    pub schema: String,
    /// The table in it.
    pub name: String,
}

impl TableName {
    /// Both as they are stored: without quotes, in their own case.
    pub fn new(schema: impl Into<String>, name: impl Into<String>) -> Self {
        TableName { schema: schema.into(), name: name.into() }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", sql::name(&self.schema), sql::name(&self.name))
    }
}

/// Why a table isn't published as it must be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// There is none of that name.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// Only tables have changes.
    #[error(
        "{table} isn't a table or a partitioned table with a log: views, foreign and unlogged tables have no changes to follow"
    )]
    NotATable {
        /// Its name.
        table: TableName,
    },
    /// It isn't in the publication, or without old rows, and we may not change that.
    #[error("{table} {problem}, and that can't be changed from here: {statement}, as {owner}")]
    NotOurs {
        /// Its name.
        table: TableName,
        /// What is wrong with it.
        problem: &'static str,
        /// What would mend it.
        statement: String,
        /// Who may.
        owner: String,
    },
    /// The publication leaves rows or columns of it out.
    #[error(
        "the publication has a row filter or a column list for {table}: changes would be missing; publish it whole"
    )]
    Filtered {
        /// Its name.
        table: TableName,
    },
    /// Postgres would refuse every update and delete of a table that is published with old rows in full and has a generated column that
    /// isn't stored, since those can't be published.
    #[error(
        "{table} has the virtual generated column {column}, and Postgres would refuse its updates and deletes if it were published with \
         old rows: make the column STORED, or use a view in its place"
    )]
    VirtualColumn {
        /// Its name.
        table: TableName,
        /// The column's.
        column: String,
    },
    /// The table is a partition, and the publication names the changes of partitions after their
    /// topmost published ancestor. [`Manager::publish_partitions`](crate::Manager::publish_partitions)
    /// changes that.
    #[error("{table} is a partition, and the publication has publish_via_partition_root = true")]
    ViaRoot {
        /// Its name.
        table: TableName,
    },
    /// The publication leaves out some kind of change. The next reconciliation mends that.
    #[error(
        "the publication leaves out a kind of change: ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, \
         truncate'), and generated columns where it can have them"
    )]
    Narrowed {
        /// The publication's name.
        publication: String,
    },
    /// There is no publication.
    #[error("the publication is gone")]
    NoPublication,
    /// Others use the table, and it couldn't be changed in time.
    #[error("{table} is in use, and couldn't be changed within 2 s: try again")]
    Busy {
        /// Its name.
        table: TableName,
    },
    /// The server, or the consumer that was to hear of a change, took too long.
    #[error("no answer within 30 s: try again")]
    NoAnswer,
    /// There is no connection.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// The server said no.
    #[error("{}", sql::words(.0))]
    Server(#[from] tokio_postgres::Error),
}

/// What became of a tracked table behind our back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TableChange {
    /// It isn't there any more, or has another name.
    Gone,
    /// It was out of the publication for a while, or published without old rows: changes may be missing. It is whole again.
    Gap,
    /// The same, and it can't be mended from here.
    Unpublished,
}

/// What a table is in the publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Published {
    /// The table.
    pub oid: u32,
    /// Its place in the publication: another one if it was taken out and put back. 0: the publication has all tables, of the database or of
    /// the schema. Whoever keeps it from one start to the next sees that changes are missing.
    pub membership: u32,
    /// Whether it was published whole already. If not, and it was followed before, changes may be missing.
    pub was_whole: bool,
}

/// How pg_publication's row changed: its xmin before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicationVersions {
    /// Before the change.
    pub before: u32,
    /// After it.
    pub after: u32,
}

/// Who hears of tables that were changed behind our back.
pub(crate) trait TableNews: Send + Sync {
    /// `false`: it must be told again.
    fn tell<'a>(&'a self, table: &'a TableName, change: TableChange) -> Telling<'a>;
}

pub(crate) type Telling<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// The tables that are tracked.
pub(crate) struct Publication {
    name: String,
    /// The slot that reads it.
    slot: String,
    is_manual: bool,
    tracked: Mutex<BTreeMap<TableName, Tracked>>,
    /// One change of the catalog at a time.
    turn: tokio::sync::Mutex<()>,
}

/// A table that somebody follows.
#[derive(Debug, Clone, Copy)]
struct Tracked {
    oid: u32,
    membership: u32,
    /// It had to be mended, and nobody was told: whoever did it may have been lost on the way.
    has_gap: bool,
}

/// A table as the catalog has it.
struct Found {
    oid: u32,
    kind: String,
    has_full_rows: bool,
    is_ours: bool,
    owner: String,
    is_logged: bool,
    is_published: bool,
    /// The oid of the table's own row in pg_publication_rel; 0 if there is none.
    membership: u32,
    is_partition: bool,
    /// `publish_via_partition_root`: changes of partitions come under the name of the topmost
    /// published ancestor.
    is_via_root: bool,
    /// Whether the publication has an ancestor of the table.
    has_published_ancestor: bool,
    is_filtered: bool,
    /// Whether the publication has inserts, updates, deletes and truncates.
    has_all_changes: bool,
    /// `server_version_num`.
    server_version: u32,
    /// Whose the publication is; `None`: there is none.
    publication_owner: Option<String>,
    virtual_column: Option<String>,
}

impl Found {
    /// Who may publish it: whoever owns both.
    fn publisher(&self) -> String {
        match &self.publication_owner {
            Some(other) if *other != self.owner => {
                format!("a superuser, or a member of both {} and {other}", self.owner)
            }
            Some(_) | None => self.owner.clone(),
        }
    }
}

impl Publication {
    pub(crate) fn new(config: &ManagerConfig) -> Self {
        Publication {
            name: config.publication.clone(),
            slot: config.slot.clone(),
            is_manual: config.manual_publication,
            tracked: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Sees to it that a table is published whole. Whoever follows it already may have to hear of a change.
    pub(crate) async fn add(
        &self,
        pools: &Pools,
        table: &TableName,
        news: &dyn TableNews,
    ) -> Result<Published, PublishError> {
        let _turn = self.turn.lock().await;
        let client = pools.admin().await?;
        let published = self.make_whole(&client, table).await?;
        let Published { oid, membership, .. } = published;
        let before = self.tracked().get(table).copied();
        let change = match before {
            Some(before) if before.oid != oid => Some(TableChange::Gone),
            Some(before) if before.has_gap || before.membership != membership => Some(TableChange::Gap),
            Some(_) | None => None,
        };
        let has_gap = match change {
            Some(change) => !news.tell(table, change).await,
            None => false,
        };
        self.tracked().insert(table.clone(), Tracked { oid, membership, has_gap });
        Ok(published)
    }

    /// Takes a table out. If that fails, it is still followed.
    pub(crate) async fn remove(&self, pools: &Pools, table: &TableName) -> Result<(), PublishError> {
        let _turn = self.turn.lock().await;
        if !self.is_manual {
            let client = pools.admin().await?;
            let statement = format!(
                "{LOCK_TIMEOUT}; ALTER PUBLICATION {} DROP TABLE ONLY {table}",
                sql::name(&self.name)
            );
            match client.batch_execute(&statement).await {
                // It isn't in there, or isn't there at all.
                Err(error) if is_any(&error, &NOT_THERE) || is_any(&error, &[SqlState::UNDEFINED_OBJECT]) => {
                }
                Err(error) if is_any(&error, &[SqlState::LOCK_NOT_AVAILABLE]) => {
                    return Err(PublishError::Busy { table: table.clone() });
                }
                done => done?,
            }
        }
        self.tracked().remove(table);
        Ok(())
    }

    /// Returns the tables of the publication, with their oids and the oids of their entries, but for
    /// those that are needed and those that this user couldn't add again. None in manual mode, nor
    /// while the database has another slot for pgoutput: it may read the same publication.
    pub(crate) async fn tables_without(
        &self,
        pools: &Pools,
        needed: &[u32],
    ) -> Result<BTreeMap<TableName, (u32, u32)>, PublishError> {
        if self.is_manual {
            return Ok(BTreeMap::new());
        }
        let client = pools.admin().await?;
        let asking = "SELECT n.nspname::text, c.relname::text, c.oid, r.oid FROM pg_publication p \
             JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON c.oid = r.prrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE p.pubname = $1 AND c.oid <> ALL ($2) AND pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (SELECT FROM pg_replication_slots s \
                 WHERE s.plugin = 'pgoutput' AND s.database = current_database() AND s.slot_name <> $3)";
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&self.name, Type::TEXT), (&needed, Type::OID_ARRAY), (&self.slot, Type::TEXT)];
        let rows = client.query_typed(asking, &params).await?;
        let table = |row: &Row| {
            let name = TableName::new(row.get::<_, String>(0), row.get::<_, String>(1));
            (name, (row.get(2), row.get(3)))
        };
        Ok(rows.iter().map(table).collect())
    }

    /// Compares what is with what should be, mends it, and tells of each table at once. `oid`: the publication that the slot was made
    /// with. One that is another, or not there, can't be mended: that is the failure.
    pub(crate) async fn reconcile(
        &self,
        pools: &Pools,
        oid: u32,
        news: &dyn TableNews,
    ) -> Result<Option<Failure>, PublishError> {
        let _turn = self.turn.lock().await;
        let client = pools.admin().await?;
        if let Some(what) = self.what_is_wrong(&client, oid).await? {
            return Ok(Some(Failure::PublicationLost { name: self.name.clone(), what }));
        }
        let tracked: Vec<_> =
            self.tracked().iter().map(|(table, tracked)| (table.clone(), *tracked)).collect();
        let mut failed = None;
        for (table, before) in tracked {
            let change = match self.make_whole(&client, &table).await {
                Ok(now) if now.oid != before.oid => Some(TableChange::Gone),
                Ok(now) => self.gap(&table, now.membership).then_some(TableChange::Gap),
                Err(PublishError::NotFound { .. } | PublishError::NotATable { .. }) => {
                    Some(TableChange::Gone)
                }
                Err(
                    PublishError::NotOurs { .. }
                    | PublishError::Filtered { .. }
                    | PublishError::VirtualColumn { .. }
                    | PublishError::ViaRoot { .. }
                    | PublishError::Narrowed { .. },
                ) => Some(TableChange::Unpublished),
                Err(error) if client.is_closed() => return Err(error),
                // The other tables don't wait for it: it is looked at again with the next reconciliation.
                Err(error) => {
                    tracing::warn!(%table, %error, "table not reconciled");
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let Some(change) = change else { continue };
            tracing::warn!(%table, ?change, "a table that is followed was changed");
            if news.tell(&table, change).await {
                match change {
                    TableChange::Gone => _ = self.tracked().remove(&table),
                    TableChange::Gap => self.forget_gap(&table),
                    TableChange::Unpublished => {}
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Whether a table had to be mended, or was out of the publication, since the last time that somebody was told so.
    fn gap(&self, table: &TableName, membership: u32) -> bool {
        self.tracked().get_mut(table).is_some_and(|tracked| {
            tracked.has_gap |= std::mem::replace(&mut tracked.membership, membership) != membership;
            tracked.has_gap
        })
    }

    fn forget_gap(&self, table: &TableName) {
        self.tracked().get_mut(table).into_iter().for_each(|tracked| tracked.has_gap = false);
    }

    async fn what_is_wrong(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        oid: u32,
    ) -> Result<Option<&'static str>, PublishError> {
        // Generated columns are published since version 18 only; in manual mode that is for others to decide.
        let asking = "SELECT oid, pubinsert AND pubupdate AND pubdelete AND pubtruncate \
             AND ($2 OR to_jsonb(p) ->> 'pubgencols' IS DISTINCT FROM 'n') FROM pg_publication p WHERE pubname = $1";
        let rows =
            client.query_typed(asking, &[(&self.name, Type::TEXT), (&self.is_manual, Type::BOOL)]).await?;
        Ok(match rows.first() {
            None => Some("dropped"),
            Some(row) if row.get::<_, u32>(0) != oid => Some("replaced"),
            Some(row) if !row.get::<_, bool>(1) => Some("narrowed"),
            Some(_) => None,
        })
    }

    /// One that had to be mended, and is tracked, is marked first.
    async fn make_whole(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
    ) -> Result<Published, PublishError> {
        let found = self.find(client, table).await?;
        if !matches!(found.kind.as_str(), "r" | "p") || !found.is_logged {
            return Err(PublishError::NotATable { table: table.clone() });
        }
        if found.publication_owner.is_none() {
            return Err(PublishError::NoPublication);
        }
        if !found.has_all_changes {
            return Err(PublishError::Narrowed { publication: self.name.clone() });
        }
        if found.is_filtered {
            return Err(PublishError::Filtered { table: table.clone() });
        }
        if let Some(column) = found.virtual_column.clone() {
            return Err(PublishError::VirtualColumn { table: table.clone(), column });
        }
        self.check_partition(&found, table)?;
        let mut statements = Vec::new();
        if !found.is_published {
            statements.extend(writer_lock(table, &found));
            let statement = format!("ALTER PUBLICATION {} ADD TABLE ONLY {table}", sql::name(&self.name));
            statements.push(self.may(
                &found,
                table,
                "isn't in the publication",
                statement,
                found.publisher(),
            )?);
        }
        for part in self.without_full_rows(client, table, &found).await? {
            let statement = format!("ALTER TABLE ONLY {part} REPLICA IDENTITY FULL");
            let problem = "has changes without old rows (its replica identity isn't full)";
            statements.push(self.may(&found, table, problem, statement, found.owner.clone())?);
        }
        if statements.is_empty() {
            return Ok(Published { oid: found.oid, membership: found.membership, was_whole: true });
        }
        // Even if the answer is lost, the change may have been made, and the next look would find nothing wrong.
        if let Some(tracked) = self.tracked().get_mut(table) {
            tracked.has_gap = true;
        }
        // One message of several statements is one transaction.
        let script = format!("{LOCK_TIMEOUT}; {}", statements.join("; "));
        match client.batch_execute(&script).await {
            Ok(()) => {
                let now = self.find(client, table).await?;
                Ok(Published { oid: now.oid, membership: now.membership, was_whole: false })
            }
            Err(error) if is_any(&error, &[SqlState::LOCK_NOT_AVAILABLE]) => {
                Err(PublishError::Busy { table: table.clone() })
            }
            Err(error) if is_any(&error, &NOT_THERE) => Err(PublishError::NotFound { table: table.clone() }),
            Err(error) if is_any(&error, &[SqlState::INSUFFICIENT_PRIVILEGE]) => Err(PublishError::NotOurs {
                table: table.clone(),
                problem: "can't be published by this user",
                statement: statements.join("; "),
                owner: found.owner,
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if the changes of a partition come, or may come, under the name of an ancestor.
    fn check_partition(&self, found: &Found, table: &TableName) -> Result<(), PublishError> {
        if !found.is_partition || !found.is_via_root {
            return Ok(());
        }
        match self.is_manual {
            false => Err(PublishError::ViaRoot { table: table.clone() }),
            // Without a published ancestor, its changes come under its own name.
            true if !found.has_published_ancestor => Ok(()),
            true => Err(PublishError::NotOurs {
                table: table.clone(),
                problem: "is a partition, whose changes the publication has under the name of its ancestor",
                statement: without_via_root(&self.name),
                owner: found.publication_owner.clone().unwrap_or_default(),
            }),
        }
    }

    /// Has the changes of partitions come under their own names from now on
    /// (`publish_via_partition_root = false`). Returns how pg_publication's row changed; `None`: it
    /// was so already.
    pub(crate) async fn publish_partitions(
        &self,
        pools: &Pools,
        table: &TableName,
    ) -> Result<Option<PublicationVersions>, PublishError> {
        let _turn = self.turn.lock().await;
        let client = pools.admin().await?;
        let name = sql::literal(&self.name);
        let asking = "SELECT p.pubviaroot, current_setting('server_version_num')::int, \
             ARRAY(SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_publication_rel m \
                 JOIN pg_class c ON c.oid = m.prrelid AND c.relkind = 'p' JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE m.prpubid = p.oid ORDER BY c.oid) \
             FROM pg_publication p WHERE p.pubname = $1";
        let rows = client.query_typed(asking, &[(&self.name, Type::TEXT)]).await?;
        let row = rows.first().ok_or(PublishError::NoPublication)?;
        if !row.get::<_, bool>(0) {
            return Ok(None);
        }
        let mut statements = vec![LOCK_TIMEOUT.to_owned()];
        if decodes_with_stale_catalog(row.get::<_, i32>(1).cast_unsigned()) {
            let lock = |table: String| format!("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE");
            statements.extend(row.get::<_, Vec<String>>(2).into_iter().map(lock));
        }
        let version = format!("SELECT xmin::text FROM pg_publication WHERE pubname ={name}");
        statements.extend([version.clone(), without_via_root(&self.name), version]);
        // One message of several statements is one transaction.
        let altered = client.simple_query(&statements.join("; ")).await;
        let answers = altered.map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => PublishError::Busy { table: table.clone() },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => PublishError::NotOurs {
                table: table.clone(),
                problem: "is a partition, whose changes the publication has under the name of its ancestor",
                statement: without_via_root(&self.name),
                owner: "the owner of the publication and its tables".to_owned(),
            },
            _ => error.into(),
        })?;
        let version = |answer: &SimpleQueryMessage| match answer {
            SimpleQueryMessage::Row(row) => row.get(0).and_then(|xmin| xmin.parse().ok()),
            _ => None,
        };
        let mut versions = answers.iter().filter_map(version);
        match (versions.next(), versions.next()) {
            (Some(before), Some(after)) => Ok(Some(PublicationVersions { before, after })),
            _ => Err(PublishError::NoPublication),
        }
    }

    /// The statement, if it is ours to make.
    fn may(
        &self,
        found: &Found,
        table: &TableName,
        problem: &'static str,
        statement: String,
        owner: String,
    ) -> Result<String, PublishError> {
        match self.is_manual || !found.is_ours {
            true => Err(PublishError::NotOurs { table: table.clone(), problem, statement, owner }),
            false => Ok(statement),
        }
    }

    async fn find(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
    ) -> Result<Found, PublishError> {
        // With publish_via_partition_root, filters of partitions have no effect; without it, those
        // of the root have none.
        let asking = "SELECT c.oid, c.relkind::text, c.relreplident = 'f', pg_has_role(c.relowner, 'USAGE'), \
             pg_get_userbyid(c.relowner)::text, coalesce(p.puballtables, false) OR r.oid IS NOT NULL \
             OR EXISTS (SELECT FROM pg_publication_namespace m WHERE m.pnpubid = p.oid AND m.pnnspid = c.relnamespace), \
             coalesce(r.prqual IS NOT NULL OR r.prattrs IS NOT NULL, false) OR c.relkind = 'p' AND NOT coalesce(p.pubviaroot, true) \
                 AND EXISTS (SELECT FROM pg_publication_rel m WHERE m.prpubid = p.oid AND (m.prqual IS NOT NULL OR m.prattrs IS NOT NULL) \
                     AND m.prrelid IN (SELECT relid FROM pg_partition_tree(c.oid))), \
             pg_get_userbyid(p.pubowner)::text, \
             (SELECT min(a.attname::text) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v'), \
             c.relpersistence = 'p', coalesce(r.oid, 0), coalesce(p.pubviaroot, false), c.relispartition, \
             c.relispartition AND (coalesce(p.puballtables, false) OR EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a \
                 JOIN pg_class o ON o.oid = a.relid WHERE o.oid <> c.oid \
                 AND (EXISTS (SELECT FROM pg_publication_rel m WHERE m.prpubid = p.oid AND m.prrelid = o.oid) \
                     OR EXISTS (SELECT FROM pg_publication_namespace m WHERE m.pnpubid = p.oid AND m.pnnspid = o.relnamespace)))), \
             current_setting('server_version_num')::int, \
             coalesce(p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate \
                 AND ($4 OR to_jsonb(p) ->> 'pubgencols' IS DISTINCT FROM 'n'), true) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_publication p ON p.pubname = $3 \
             LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid \
             WHERE n.nspname = $1 AND c.relname = $2";
        let names: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 4] = [
            (&table.schema, Type::TEXT),
            (&table.name, Type::TEXT),
            (&self.name, Type::TEXT),
            (&self.is_manual, Type::BOOL),
        ];
        let rows = client.query_typed(asking, &names).await?;
        let row = rows.first().ok_or_else(|| PublishError::NotFound { table: table.clone() })?;
        Ok(Found {
            oid: row.get(0),
            kind: row.get(1),
            has_full_rows: row.get(2),
            is_ours: row.get(3),
            owner: row.get(4),
            is_published: row.get(5),
            is_filtered: row.get(6),
            publication_owner: row.get(7),
            virtual_column: row.get(8),
            is_logged: row.get(9),
            membership: row.get(10),
            is_via_root: row.get(11),
            is_partition: row.get(12),
            has_published_ancestor: row.get(13),
            server_version: row.get::<_, i32>(14).cast_unsigned(),
            has_all_changes: row.get(15),
        })
    }

    /// What of a table has changes without old rows: itself, or partitions, which don't have it from their parent. A parent must say that it
    /// has them, too: it is what the stream tells of.
    async fn without_full_rows(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
        found: &Found,
    ) -> Result<Vec<TableName>, PublishError> {
        if found.kind == "r" {
            return Ok(if found.has_full_rows { vec![] } else { vec![table.clone()] });
        }
        let asking = "SELECT n.nspname::text, c.relname::text FROM pg_partition_tree($1) t JOIN pg_class c ON c.oid = t.relid \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (t.isleaf AND c.relkind = 'r' OR c.oid = $1) AND c.relreplident <> 'f'";
        let rows = client.query_typed(asking, &[(&found.oid, Type::OID)]).await?;
        let name = |row: &Row| TableName::new(row.get::<_, String>(0), row.get::<_, String>(1));
        Ok(rows.iter().map(name).collect())
    }

    fn tracked(&self) -> std::sync::MutexGuard<'_, BTreeMap<TableName, Tracked>> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the lock that keeps writers away while a table is added to the publication, where the
/// server needs it.
///
/// REPLICA IDENTITY FULL, in the same transaction, takes a stronger lock; but a table may have it
/// already.
fn writer_lock(table: &TableName, found: &Found) -> Option<String> {
    let only = if found.kind == "p" { "" } else { "ONLY " };
    decodes_with_stale_catalog(found.server_version)
        .then(|| format!("LOCK TABLE {only}{table} IN SHARE ROW EXCLUSIVE MODE"))
}

/// Returns whether this version of Postgres (`server_version_num`) decodes a transaction that was
/// open while ALTER PUBLICATION committed, and later ones, with the catalog from before: changes of
/// a table that was just added would be missing. Mended in 15.13, 16.9 and 17.5 by the release notes
/// ("DDL operations that don't take a strong lock"). A lock that waits for writers avoids it.
pub fn decodes_with_stale_catalog(server_version: u32) -> bool {
    match server_version / 10_000 {
        ..15 => true,
        15 => server_version < 150_013,
        16 => server_version < 160_009,
        17 => server_version < 170_005,
        18.. => false,
    }
}

fn without_via_root(publication: &str) -> String {
    format!("ALTER PUBLICATION {} SET (publish_via_partition_root = false)", sql::name(publication))
}

fn is_any(error: &tokio_postgres::Error, states: &[SqlState]) -> bool {
    error.code().is_some_and(|code| states.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minors_before_the_mend_take_a_lock_that_waits_for_writers() {
        for version in [150_000, 150_012, 160_008, 170_004, 140_018] {
            assert!(decodes_with_stale_catalog(version), "{version}");
        }
        for version in [150_013, 150_018, 160_009, 170_005, 180_000, 190_001] {
            assert!(!decodes_with_stale_catalog(version), "{version}");
        }
        let found = |kind: &str, server_version| Found {
            oid: 1,
            kind: kind.to_owned(),
            has_full_rows: true,
            is_ours: true,
            owner: String::new(),
            is_logged: true,
            is_published: false,
            membership: 0,
            is_partition: false,
            is_via_root: true,
            has_published_ancestor: false,
            is_filtered: false,
            has_all_changes: true,
            server_version,
            publication_owner: None,
            virtual_column: None,
        };
        let lock = |kind, version| writer_lock(&TableName::new("public", "t"), &found(kind, version));
        let expected = r#"LOCK TABLE ONLY "public"."t" IN SHARE ROW EXCLUSIVE MODE"#;
        assert_eq!(lock("r", 150_012).as_deref(), Some(expected));
        // With all its partitions.
        assert_eq!(lock("p", 150_012), Some(expected.replace("ONLY ", "")));
        assert_eq!(lock("r", 150_018), None);
    }
}
