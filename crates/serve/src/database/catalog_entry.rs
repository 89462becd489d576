//! Catalog entries: the catalog rows of a table, to detect that it was altered.
//!
//! Reading an entry costs a fraction of [`describe`](super::describe()). So the entries of all
//! tables with shapes can be read every few seconds, and at each Relation message of the stream.

use forebay_replication::pgoutput::Snapshot;
use forebay_replication::reservoir::tokio_postgres::types::{ToSql, Type};
use forebay_replication::reservoir::tokio_postgres::{self, Client, Row};
use forebay_shapes::{CatalogState, PartitionTree};

use super::describe::{CatalogError, EDITION, PARTITIONS};

/// The state of a table in the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// pg_class.oid.
    pub oid: u32,
    /// Versions of the catalog rows that define the table; see
    /// [`TableDescription::edition`](super::TableDescription::edition).
    pub edition: String,
    /// The state that must not change while its shapes exist.
    pub state: CatalogState,
    /// Whether the table is partitioned or a partition.
    pub has_partition_tree: bool,
}

/// The tables whose entries are read.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum TableSelection<'a> {
    /// The table of this schema and name.
    Named(&'a str, &'a str),
    /// All tables of one list, and the partitioned tables of another.
    Listed {
        /// Oids of tables.
        all: &'a [u32],
        /// Oids of tables that are skipped unless they are partitioned.
        partitioned: &'a [u32],
    },
}

/// Selects the columns of [`CatalogEntry`] for each pg_class row `c` that matches `TABLES`. Without
/// a match, returns one row for the snapshot.
const ENTRIES_SQL: &str = "
SELECT pg_current_snapshot()::text AS snapshot, c.oid, EDITION AS edition, c.relfilenode,
    ARRAY(SELECT a.attnum::int4 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum) AS numbers,
    ARRAY(SELECT a.xmin::text::int8 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ORDER BY a.attnum) AS column_xmins,
    FACTS AS facts, PUBLICATION AS publication, c.relkind = 'p' OR c.relispartition AS has_relatives
FROM (SELECT) one LEFT JOIN pg_class c ON TABLES";

/// Selects a hash of each fact that decides how values of user-defined types are written: the label
/// of each enum value, and the attributes of each composite type. It covers the types of table `c`
/// and their component types (arrays, domains, ranges, composites).
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

/// Selects the versions of the catalog rows that publish table `c`. ALTER PUBLICATION replaces one
/// of them.
const PUBLICATION: &str = "
(SELECT concat_ws(' ', p.oid, p.xmin,
    (SELECT concat_ws(' ', 'table', r.oid, r.xmin) FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid),
    (SELECT concat_ws(' ', 'schema', m.oid, m.xmin) FROM pg_publication_namespace m
        WHERE m.pnpubid = p.oid AND m.pnnspid = c.relnamespace))
FROM pg_publication p WHERE p.pubname = $1)";

/// Reads the entries of tables, and returns the snapshot that they were read with. Dropped tables
/// are missing.
///
/// # Errors
/// Fails if the query fails.
pub async fn read_entries(
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
    let sql = ENTRIES_SQL.replace("EDITION", EDITION).replace("FACTS", FACTS);
    let sql = sql.replace("PUBLICATION", PUBLICATION).replace("PARTITIONS", PARTITIONS);
    let rows = client.query_typed(&sql.replace("TABLES", selected), &params).await?;
    let first = rows.first().ok_or(CatalogError::NoAnswer)?;
    let snapshot = first.try_get::<_, &str>("snapshot")?.parse().map_err(|_| CatalogError::NoAnswer)?;
    let entries = rows.iter().filter_map(|row| read_entry(row).transpose()).collect::<Result<_, _>>()?;
    Ok((snapshot, entries))
}

fn read_entry(row: &Row) -> Result<Option<CatalogEntry>, tokio_postgres::Error> {
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
    let has_partition_tree = row.try_get("has_relatives")?;
    Ok(Some(CatalogEntry { oid, edition: row.try_get("edition")?, state, has_partition_tree }))
}

/// Returns a current snapshot.
///
/// # Errors
/// Fails if the query fails.
pub async fn current_snapshot(client: &Client) -> Result<Snapshot, CatalogError> {
    let rows = client.query_typed("SELECT pg_current_snapshot()::text", &[]).await?;
    let snapshot = rows.first().ok_or(CatalogError::NoAnswer)?.try_get::<_, &str>(0)?;
    snapshot.parse().map_err(|_| CatalogError::NoAnswer)
}

/// Selects the ancestors and descendants of a table, on all levels. A table whose DETACH
/// CONCURRENTLY has begun isn't a partition any more.
const PARTITION_TREE_SQL: &str = "
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
/// Fails if the query fails.
pub async fn partition_tree(client: &Client, oid: u32) -> Result<PartitionTree, CatalogError> {
    let mut tree = PartitionTree::default();
    for row in client.query_typed(PARTITION_TREE_SQL, &[(&oid, Type::OID)]).await? {
        let relative: u32 = row.try_get(1)?;
        match row.try_get(0)? {
            true => tree.ancestors.push(relative),
            false => tree.descendants.push(relative),
        }
    }
    Ok(tree)
}
