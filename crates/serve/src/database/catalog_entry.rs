//! A quick look at the catalog: whether tables are what their shapes were made of.
//!
//! A look costs a fraction of [`describe`](super::describe()), so that the tables of all open
//! streams can be looked at every few seconds, and each table that the replication stream describes.

use forebay_replication::pgoutput::Snapshot;
use forebay_replication::reservoir::tokio_postgres::types::{ToSql, Type};
use forebay_replication::reservoir::tokio_postgres::{self, Client, Row};
use forebay_shapes::{CatalogState, PartitionTree};

use super::describe::{CatalogError, EDITION, PARTITIONS};

/// A table in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// pg_class.oid.
    pub oid: u32,
    /// Which rows of the catalog the table is made of; see [`TableDescription::edition`](super::TableDescription::edition).
    pub edition: String,
    /// What must stay as it is for its shapes to go on.
    pub state: CatalogState,
    /// Whether it has partitions, or is one.
    pub has_relatives: bool,
}

/// Which tables to look at.
#[derive(Debug, Clone, Copy)]
pub enum TableSelection<'a> {
    /// The table of this schema and name.
    Named(&'a str, &'a str),
    /// Those of `all`, and of `partitioned` those that have partitions.
    Listed {
        /// By their oids.
        all: &'a [u32],
        /// By their oids.
        partitioned: &'a [u32],
    },
}

/// The columns of [`CatalogEntry`], for each pg_class row `c` that `TABLES` selects; one row without a table
/// if there is none, for the snapshot.
const LOOK: &str = "
SELECT pg_current_snapshot()::text AS snapshot, c.oid, EDITION AS edition, c.relfilenode,
    ARRAY(SELECT a.attnum::int4 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum) AS numbers,
    ARRAY(SELECT a.xmin::text::int8 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum) AS column_xmins,
    FACTS AS facts, PUBLICATION AS publication, c.relkind = 'p' OR c.relispartition AS has_relatives
FROM (SELECT) one LEFT JOIN pg_class c ON TABLES";

/// A hash for each fact by which values of user-defined types are written: the label of each enum
/// value, and the attributes of each composite type, of the types of table `c` and all types that
/// those are made of (arrays, domains, ranges, composites).
const FACTS: &str = "
CASE WHEN EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384) THEN
ARRAY(WITH RECURSIVE types AS (
    SELECT a.atttypid AS oid FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
    UNION SELECT part.oid FROM types JOIN pg_type t ON t.oid = types.oid CROSS JOIN LATERAL (
        SELECT t.typelem AS oid UNION ALL SELECT t.typbasetype
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) part WHERE part.oid >= 16384
) SELECT hashtextextended(concat_ws(' ', 'enum', e.oid, e.enumlabel), 0) FROM types JOIN pg_enum e ON e.enumtypid = types.oid
UNION SELECT hashtextextended(concat_ws(' ', 'composite', t.oid, (
    SELECT string_agg(concat_ws(' ', a.attnum, a.attisdropped, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0
)), 0) FROM types JOIN pg_type t ON t.oid = types.oid WHERE t.typrelid <> 0
ORDER BY 1) ELSE '{}'::int8[] END";

/// The rows of the catalog that publish table `c`. ALTER PUBLICATION replaces one of them.
const PUBLICATION: &str = "
(SELECT concat_ws(' ', p.oid, p.xmin,
    (SELECT concat_ws(' ', 'table', r.oid, r.xmin) FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid),
    (SELECT concat_ws(' ', 'schema', m.oid, m.xmin) FROM pg_publication_namespace m
        WHERE m.pnpubid = p.oid AND m.pnnspid = c.relnamespace))
FROM pg_publication p WHERE p.pubname = $1)";

/// Looks at tables, as the returned snapshot sees them. Tables that are gone are missing.
///
/// # Errors
/// When the database can't be asked.
pub async fn look(
    client: &Client,
    publication: &str,
    tables: TableSelection<'_>,
) -> Result<(Snapshot, Vec<CatalogEntry>), CatalogError> {
    type Param<'a> = (&'a (dyn ToSql + Sync), Type);
    let name: Param<'_> = (&publication, Type::TEXT);
    let (selected, params): (_, [Param<'_>; 3]) = match &tables {
        TableSelection::Named(schema, table) => (
            "c.relname = $3 AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $2)",
            [name, (schema, Type::TEXT), (table, Type::TEXT)],
        ),
        TableSelection::Listed { all, partitioned } => (
            "c.oid = ANY($2) OR c.oid = ANY($3) AND c.relkind = 'p'",
            [name, (all, Type::OID_ARRAY), (partitioned, Type::OID_ARRAY)],
        ),
    };
    let asking = LOOK.replace("EDITION", EDITION).replace("FACTS", FACTS);
    let asking = asking.replace("PUBLICATION", PUBLICATION).replace("PARTITIONS", PARTITIONS);
    let rows = client.query_typed(&asking.replace("TABLES", selected), &params).await?;
    let first = rows.first().ok_or(CatalogError::NoAnswer)?;
    let snapshot = first.try_get::<_, &str>("snapshot")?.parse().map_err(|_| CatalogError::NoAnswer)?;
    let looks = rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<_, _>>()?;
    Ok((snapshot, looks))
}

fn read(row: &Row) -> Result<Option<CatalogEntry>, tokio_postgres::Error> {
    let Some(oid) = row.try_get::<_, Option<u32>>("oid")? else { return Ok(None) };
    let xid = |xid: i64| u32::try_from(xid).unwrap_or_default();
    let numbers: Vec<i32> = row.try_get("numbers")?;
    let xmins: Vec<i64> = row.try_get("column_xmins")?;
    let state = CatalogState {
        filenode: row.try_get("relfilenode")?,
        columns: numbers.into_iter().zip(xmins.into_iter().map(xid)).collect(),
        facts: row.try_get("facts")?,
        publication: row.try_get::<_, Option<String>>("publication")?.unwrap_or_default(),
    };
    let has_relatives = row.try_get("has_relatives")?;
    Ok(Some(CatalogEntry { oid, edition: row.try_get("edition")?, state, has_relatives }))
}

/// Returns a current snapshot.
///
/// # Errors
/// When the database can't be asked.
pub async fn current_snapshot(client: &Client) -> Result<Snapshot, CatalogError> {
    let rows = client.query_typed("SELECT pg_current_snapshot()::text", &[]).await?;
    let snapshot = rows.first().ok_or(CatalogError::NoAnswer)?.try_get::<_, &str>(0)?;
    snapshot.parse().map_err(|_| CatalogError::NoAnswer)
}

/// What a table is a partition of, and what its partitions are, on all levels. One whose DETACH …
/// CONCURRENTLY has begun is no partition any more.
const RELATIVES: &str = "
WITH RECURSIVE up AS (
    SELECT i.inhparent AS oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
    WHERE i.inhrelid = $1 AND NOT i.inhdetachpending
    UNION SELECT i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.oid JOIN pg_class c ON c.oid = up.oid AND c.relispartition
    WHERE NOT i.inhdetachpending
), down AS (
    SELECT i.inhrelid AS oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
    WHERE i.inhparent = $1 AND NOT i.inhdetachpending
    UNION SELECT i.inhrelid FROM down JOIN pg_inherits i ON i.inhparent = down.oid JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
    WHERE NOT i.inhdetachpending
)
SELECT true, up.oid FROM up UNION ALL SELECT false, down.oid FROM down";

/// Returns the ancestors and descendants of a partition or a partitioned table.
///
/// # Errors
/// When the database can't be asked.
pub async fn relatives(client: &Client, oid: u32) -> Result<PartitionTree, CatalogError> {
    let mut relatives = PartitionTree::default();
    for row in client.query_typed(RELATIVES, &[(&oid, Type::OID)]).await? {
        let relative: u32 = row.try_get(1)?;
        match row.try_get(0)? {
            true => relatives.ancestors.push(relative),
            false => relatives.descendants.push(relative),
        }
    }
    Ok(relatives)
}
