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
use forebay_reservoir::tokio_postgres::{self, Row};
use forebay_reservoir::{Guard, PostgresClient};
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

/// Who hears of tables that were changed behind our back.
pub(crate) trait TableNews: Send + Sync {
    /// `false`: it must be told again.
    fn tell<'a>(&'a self, table: &'a TableName, change: TableChange) -> Telling<'a>;
}

pub(crate) type Telling<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// The tables that are tracked.
pub(crate) struct Publication {
    name: String,
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
    membership: u32,
    /// Whether partitions' changes come under the name of the table that they are of.
    is_via_root: bool,
    is_filtered: bool,
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
        let mut busy = None;
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
                    | PublishError::VirtualColumn { .. },
                ) => Some(TableChange::Unpublished),
                // The others needn't wait for it.
                Err(error @ PublishError::Busy { .. }) => {
                    busy = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
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
        busy.map_or(Ok(None), Err)
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
        client: &Guard<PostgresClient>,
        oid: u32,
    ) -> Result<Option<&'static str>, PublishError> {
        // Generated columns are published since version 18 only; in manual mode that is for others to decide.
        let asking = "SELECT oid, pubinsert AND pubupdate AND pubdelete AND pubtruncate \
             AND ($2 OR pubviaroot AND to_jsonb(p) ->> 'pubgencols' IS DISTINCT FROM 'n') FROM pg_publication p WHERE pubname = $1";
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
        client: &Guard<PostgresClient>,
        table: &TableName,
    ) -> Result<Published, PublishError> {
        let found = self.find(client, table).await?;
        if !matches!(found.kind.as_str(), "r" | "p") || !found.is_logged {
            return Err(PublishError::NotATable { table: table.clone() });
        }
        if found.publication_owner.is_none() {
            return Err(PublishError::NoPublication);
        }
        if found.is_filtered {
            return Err(PublishError::Filtered { table: table.clone() });
        }
        if let Some(column) = found.virtual_column.clone() {
            return Err(PublishError::VirtualColumn { table: table.clone(), column });
        }
        let mut statements = Vec::new();
        if found.kind == "p" && !found.is_via_root {
            let statement = format!(
                "ALTER PUBLICATION {} SET (publish_via_partition_root = true)",
                sql::name(&self.name)
            );
            let problem = "is in partitions, whose changes the publication has under their own names";
            statements.push(self.may(&found, table, problem, statement, found.publisher())?);
        }
        if !found.is_published {
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

    async fn find(&self, client: &Guard<PostgresClient>, table: &TableName) -> Result<Found, PublishError> {
        // Where the root stands for its partitions, their own changes don't come under their own name.
        let asking = "SELECT c.oid, c.relkind::text, c.relreplident = 'f', pg_has_role(c.relowner, 'USAGE'), \
             pg_get_userbyid(c.relowner)::text, (coalesce(p.puballtables, false) \
             OR EXISTS (SELECT FROM pg_publication_namespace m WHERE m.pnpubid = p.oid AND m.pnnspid = c.relnamespace) \
             OR r.oid IS NOT NULL) AND NOT (c.relispartition AND coalesce(p.pubviaroot, false)), \
             coalesce(r.prqual IS NOT NULL OR r.prattrs IS NOT NULL, false), pg_get_userbyid(p.pubowner)::text, \
             (SELECT min(a.attname::text) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 'v'), \
             c.relpersistence = 'p', coalesce(r.oid, 0), coalesce(p.pubviaroot, false) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_publication p ON p.pubname = $3 \
             LEFT JOIN LATERAL (SELECT * FROM pg_publication_rel m WHERE m.prpubid = p.oid AND (m.prrelid = c.oid \
                 OR m.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))) ORDER BY m.prrelid <> c.oid LIMIT 1) r ON true \
             WHERE n.nspname = $1 AND c.relname = $2";
        let names: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&table.schema, Type::TEXT), (&table.name, Type::TEXT), (&self.name, Type::TEXT)];
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
        })
    }

    /// What of a table has changes without old rows: itself, or partitions, which don't have it from their parent. A parent must say that it
    /// has them, too: it is what the stream tells of.
    async fn without_full_rows(
        &self,
        client: &Guard<PostgresClient>,
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

fn is_any(error: &tokio_postgres::Error, states: &[SqlState]) -> bool {
    error.code().is_some_and(|code| states.contains(code))
}
