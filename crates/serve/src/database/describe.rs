//! Describe: reads a table's description from the catalog with one query.
//!
//! Invariant: the role can follow a described table. The table is logged, the role may read it, and
//! no policy hides rows.

use forebay_replication::TableName;
use forebay_replication::reservoir::tokio_postgres::types::Type;
use forebay_replication::reservoir::tokio_postgres::{self, Client, Row};
use forebay_shapes::filter::{ColumnType, TypeDetails, TypeKind, UserType};

use super::collation::Locale;
use super::table_description::{
    ColumnDescription, DisplayType, ElementType, ReplicaIdentity, TableDescription,
};
use super::{quote_identifier, server_message};

/// First major version that publishes stored generated columns.
const FIRST_WITH_GENERATED_COLUMNS: u32 = 18;

/// First oid of objects that don't come with Postgres (FirstNormalObjectId).
const FIRST_NORMAL_OID: u32 = 16384;

/// Selects a row for each column, with the table's facts in each; a table without columns has one
/// row. Catalog columns that not all versions have are read through JSON.
const DESCRIBE_SQL: &str = "
SELECT EDITION AS edition, LINEAGE AS lineage, c.oid, c.relkind::text, c.relpersistence::text, c.oid < 16384 AS is_system, c.relreplident::text,
    has_schema_privilege(n.oid, 'USAGE') AS may_enter, has_table_privilege(c.oid, 'SELECT') AS may_read,
    row_security_active(c.oid) AS is_restricted, current_user::text AS role,
    current_setting('server_version_num')::int4 / 10000 AS server_version,
    coalesce(d.facts ->> 'datlocprovider', 'c') AS database_provider, d.facts ->> 'datcollate' AS database_collate,
    d.facts ->> 'datctype' AS database_ctype, coalesce(d.facts ->> 'datlocale', d.facts ->> 'daticulocale') AS database_locale,
    a.attnum::int4, a.attname::text, a.atttypid, a.atttypmod, a.attndims::int4, a.attnotnull, a.attgenerated::text,
    (array_position(i.indkey::int2[], a.attnum))::int4 AS key_index, i.indnkeyatts::int4 AS key_length,
    NOT coalesce(i.indimmediate, true) AS key_is_deferrable,
    e.oid IS NOT NULL AS is_array, coalesce(e.oid, t.oid) AS type_oid, coalesce(e.typname, t.typname)::text AS type_name,
    b.oid AS base_oid, b.typname::text AS base_name, b.typtype::text AS base_kind, b.typmod AS base_modifier,
    bn.nspname::text AS element_schema, coalesce(be.typname, b.typname)::text AS element_name,
    coalesce(be.oid, b.oid) AS element_oid, coalesce(be.typtype, b.typtype)::text AS element_kind,
    coalesce(be.typtype, b.typtype) = 'e' AND EXISTS (
        SELECT FROM pg_cast k JOIN pg_type x ON x.oid = coalesce(be.oid, b.oid)
        WHERE k.castfunc >= 16384 AND (k.castsource IN (x.oid, x.typarray) OR k.casttarget IN (x.oid, x.typarray))
    ) AS element_has_casts,
    CASE coalesce(be.typtype, b.typtype) WHEN 'e' THEN
        ARRAY(SELECT v.enumlabel::text FROM pg_enum v WHERE v.enumtypid = coalesce(be.oid, b.oid) ORDER BY v.enumsortorder)
    END AS enum_labels,
    coalesce(be.typname, b.typname) = 'citext' AND EXISTS (
        SELECT FROM pg_depend p JOIN pg_extension x ON x.oid = p.refobjid
        WHERE p.classid = 'pg_type'::regclass AND p.objid = coalesce(be.oid, b.oid) AND p.deptype = 'e'
            AND p.refclassid = 'pg_extension'::regclass AND x.extname = 'citext'
    ) AS is_citext,
    (
        WITH RECURSIVE base AS (
            SELECT be.typtype, be.typbasetype, be.typarray WHERE be.typtype = 'd'
            UNION ALL SELECT x.typtype, x.typbasetype, x.typarray FROM base JOIN pg_type x ON x.oid = base.typbasetype
            WHERE base.typtype = 'd'
        ) SELECT typarray FROM base WHERE typtype IN ('b', 'r') AND typarray <> 0
    ) AS base_array,
    l.facts ->> 'collprovider' AS provider, l.facts ->> 'collcollate' AS collate, l.facts ->> 'collctype' AS ctype,
    coalesce(l.facts ->> 'colllocale', l.facts ->> 'colliculocale') AS locale,
    (l.facts ->> 'collisdeterministic')::bool AS is_deterministic
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN (SELECT to_jsonb(d) AS facts FROM pg_database d WHERE d.datname = current_database()) d
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND i.indisvalid
LEFT JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.typarray = t.oid
LEFT JOIN LATERAL (
    WITH RECURSIVE base AS (
        SELECT t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace, a.atttypmod AS typmod, t.typtypmod
        UNION ALL SELECT t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace, base.typtypmod, t.typtypmod
        FROM base JOIN pg_type t ON t.oid = base.typbasetype WHERE base.typtype = 'd'
    ) SELECT * FROM base WHERE typtype <> 'd'
) b ON true
LEFT JOIN pg_type be ON be.typarray = b.oid
LEFT JOIN pg_namespace bn ON bn.oid = coalesce(be.typnamespace, b.typnamespace)
LEFT JOIN LATERAL (
    SELECT to_jsonb(l) AS facts FROM pg_collation l WHERE l.oid = a.attcollation AND l.collname <> 'default'
) l ON true
WHERE n.nspname = $1 AND c.relname = $2
ORDER BY a.attnum";

/// Selects the edition of table `c`: the versions of the catalog rows that define it. These are its
/// own row and those of its columns, their types, its primary key and its partitions.
///
/// Every ALTER replaces one of them. Reading the edition takes a tenth of the time of [`describe`].
/// Planning is most of that; a join or an aggregate would double it.
pub(super) const EDITION: &str = "
concat_ws(' ', c.oid, c.xmin,
    ARRAY(SELECT concat_ws(' ', a.attnum, a.xmin, (SELECT t.xmin FROM pg_type t WHERE t.oid = a.atttypid))
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum),
    (SELECT i.xmin FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indisvalid),
    PARTITIONS)";

/// Selects the lineage of table `c`, which differs between tables that otherwise look the same.
///
/// It has the primary key's constraint: a key that was dropped and added again is a new constraint,
/// and in between, rows may have shared a key. It has the partitions: attaching or detaching one
/// adds or removes rows without changes in the stream.
const LINEAGE: &str = "
concat_ws(' ', (SELECT k.oid FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'p'), PARTITIONS)";

/// Selects a hash of the partitions of table `c`: their oids, the versions of their attachments,
/// and their files, which TRUNCATE replaces. NULL without partitions.
pub(super) const PARTITIONS: &str = "
(WITH RECURSIVE tree AS (
    SELECT i.inhrelid, i.xmin AS since FROM pg_inherits i WHERE i.inhparent = c.oid AND c.relkind = 'p'
    UNION ALL SELECT i.inhrelid, i.xmin FROM tree JOIN pg_inherits i ON i.inhparent = tree.inhrelid
) SELECT hashtextextended(string_agg(concat_ws(' ', p.oid, p.relfilenode, tree.since), ',' ORDER BY p.oid), 0)
FROM tree JOIN pg_class p ON p.oid = tree.inhrelid)";

/// Why the catalog can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// The query failed.
    #[error("{}", server_message(.0))]
    Database(#[from] tokio_postgres::Error),
    /// The server's reply has no row, or no snapshot.
    #[error("the catalog's answer can't be read")]
    NoAnswer,
}

/// Why a table can't be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// No table has this name.
    #[error("there is no table {table}")]
    NotFound {
        /// Its name.
        table: TableName,
    },
    /// The relation isn't a table, so it has no changes to follow.
    #[error("{table} is {kind}: only ordinary and partitioned tables have changes to follow")]
    NotATable {
        /// Its name.
        table: TableName,
        /// Kind of the relation, such as `a view`.
        kind: &'static str,
    },
    /// The role may not read all its rows.
    #[error("{table} can't be read: {remedy}")]
    NoPermission {
        /// Its name.
        table: TableName,
        /// The statement that grants the privilege.
        remedy: String,
    },
    /// The stream lacks a column of the key, so rows couldn't be identified.
    #[error(
        "the primary key of {table} has the generated column {}, which the stream of changes doesn't have before Postgres 18",
        quote_identifier(.column)
    )]
    GeneratedKey {
        /// Its name.
        table: TableName,
        /// Name of the column.
        column: String,
    },
    /// The query failed.
    #[error("{}", server_message(.0))]
    Database(#[from] tokio_postgres::Error),
}

/// Describes a table, in one round trip.
///
/// Generated columns are [excluded](TableDescription::excluded) unless the stream has them: stored
/// ones, since Postgres 18.
///
/// # Errors
/// Fails if there is no such table, or the role can't follow it.
pub async fn describe(client: &Client, table: &TableName) -> Result<TableDescription, DescribeError> {
    let rows = query_table(client, table).await?;
    if let Some(remedy) = rows.first().map(|first| remedy(first, table)).transpose()?.flatten() {
        return Err(DescribeError::NoPermission { table: table.clone(), remedy });
    }
    read_description(&rows, table)
}

/// Describes a table even if the role may not read its rows.
///
/// # Errors
/// Fails if there is no such table, or the stream can't identify its rows.
pub async fn describe_ignoring_privileges(
    client: &Client,
    table: &TableName,
) -> Result<TableDescription, DescribeError> {
    read_description(&query_table(client, table).await?, table)
}

/// Returns an expression for the current edition of a described table. An ordinary table can't get
/// partitions, and omitting them saves most of the planning time.
pub(super) fn edition_of(table: &TableDescription) -> String {
    let partitions = if table.is_partitioned { PARTITIONS } else { "NULL" };
    let edition = EDITION.replace("PARTITIONS", partitions);
    format!("(SELECT {edition} FROM pg_class c WHERE c.oid = {})", table.oid)
}

async fn query_table(client: &Client, table: &TableName) -> Result<Vec<Row>, DescribeError> {
    let sql = DESCRIBE_SQL
        .replace("EDITION", EDITION)
        .replace("LINEAGE", LINEAGE)
        .replace("PARTITIONS", PARTITIONS);
    let rows = client.query_typed(&sql, &[(&table.schema, Type::TEXT), (&table.name, Type::TEXT)]).await?;
    let Some(first) = rows.first() else { return Err(DescribeError::NotFound { table: table.clone() }) };
    match other_kind(first)? {
        Some(kind) => Err(DescribeError::NotATable { table: table.clone(), kind }),
        None => Ok(rows),
    }
}

fn read_description(rows: &[Row], table: &TableName) -> Result<TableDescription, DescribeError> {
    let Some(first) = rows.first() else { return Err(DescribeError::NotFound { table: table.clone() }) };
    let server_version = first.try_get::<_, i32>("server_version")?.cast_unsigned();
    let (mut columns, mut excluded) = (Vec::new(), Vec::new());
    for row in rows {
        // A table without columns has one row, too.
        let Some(name) = row.try_get::<_, Option<String>>("attname")? else { continue };
        let column = column(row, name)?;
        let is_stored = row.try_get::<_, &str>("attgenerated")? == "s";
        match column.is_generated && !(is_stored && server_version >= FIRST_WITH_GENERATED_COLUMNS) {
            false => columns.push(column),
            true if column.key_index.is_some() => {
                return Err(DescribeError::GeneratedKey { table: table.clone(), column: column.name });
            }
            true => excluded.push(column.name),
        }
    }
    let database = Locale {
        provider: first.try_get("database_provider")?,
        collate: first.try_get("database_collate")?,
        ctype: first.try_get("database_ctype")?,
        locale: first.try_get("database_locale")?,
        is_deterministic: true,
    };
    Ok(TableDescription {
        name: table.clone(),
        oid: first.try_get("oid")?,
        is_partitioned: first.try_get::<_, &str>("relkind")? == "p",
        replica_identity: match first.try_get("relreplident")? {
            "n" => ReplicaIdentity::Nothing,
            "f" => ReplicaIdentity::Full,
            "i" => ReplicaIdentity::Index,
            _ => ReplicaIdentity::Default,
        },
        key_is_deferrable: first.try_get("key_is_deferrable")?,
        columns,
        excluded,
        server_version,
        database_collation: database.collation(),
        lineage: first.try_get("lineage")?,
        edition: first.try_get("edition")?,
    })
}

/// Returns the kind of a relation whose changes can't be followed. `None`: it is a regular table.
fn other_kind(row: &Row) -> Result<Option<&'static str>, tokio_postgres::Error> {
    Ok(match row.try_get("relkind")? {
        "r" | "p" => match row.try_get("relpersistence")? {
            "u" => Some("an unlogged table"),
            "t" => Some("a temporary table"),
            _ => row.try_get::<_, bool>("is_system")?.then_some("a table of the system"),
        },
        "v" => Some("a view"),
        "m" => Some("a materialized view"),
        "f" => Some("a foreign table"),
        "S" => Some("a sequence"),
        "i" | "I" => Some("an index"),
        "c" => Some("a composite type"),
        _ => Some("no table"),
    })
}

/// Returns the statement that lets the role read the table. `None`: it may read it.
fn remedy(row: &Row, table: &TableName) -> Result<Option<String>, tokio_postgres::Error> {
    let role = quote_identifier(row.try_get("role")?);
    // NULL: the table was dropped during the query. The next query doesn't find it.
    let lacks = |name| Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<bool>>(name)? == Some(false));
    Ok(if lacks("may_enter")? {
        Some(format!("GRANT USAGE ON SCHEMA {} TO {role}", quote_identifier(&table.schema)))
    } else if lacks("may_read")? {
        Some(format!("GRANT SELECT ON {table} TO {role}"))
    } else if row.try_get::<_, Option<bool>>("is_restricted")? == Some(true) {
        Some(format!("policies hide rows of it from {role}: ALTER ROLE {role} BYPASSRLS"))
    } else {
        None
    })
}

fn column(row: &Row, name: String) -> Result<ColumnDescription, tokio_postgres::Error> {
    let dimensions = row.try_get::<_, i32>("attndims")?.max(0).cast_unsigned();
    let is_array: bool = row.try_get("is_array")?;
    // The INCLUDE columns of an index come after its key columns.
    let key_length = row.try_get::<_, Option<i32>>("key_length")?;
    let key_index = row.try_get::<_, Option<i32>>("key_index")?.filter(|index| Some(*index) < key_length);
    let display_type = DisplayType {
        oid: row.try_get("type_oid")?,
        name: row.try_get("type_name")?,
        modifier: row.try_get("atttypmod")?,
        // CREATE TABLE AS sets attndims to 0.
        dimensions: if is_array { dimensions.max(1) } else { 0 },
    };
    let provider: Option<&str> = row.try_get("provider")?;
    let locale = provider.map(|provider| {
        Ok::<_, tokio_postgres::Error>(Locale {
            provider,
            collate: row.try_get("collate")?,
            ctype: row.try_get("ctype")?,
            locale: row.try_get("locale")?,
            is_deterministic: row.try_get("is_deterministic")?,
        })
    });
    let details = user_type(row)?;
    let filter_type = ColumnType {
        oid: row.try_get("base_oid")?,
        name: row.try_get("base_name")?,
        typmod: row.try_get("base_modifier")?,
        dimensions,
        kind: match row.try_get("base_kind")? {
            "b" => TypeKind::Base,
            "e" => TypeKind::Enum,
            "c" => TypeKind::Composite,
            _ => TypeKind::Other,
        },
        collation: locale.transpose()?.map(Locale::collation),
        details: TypeDetails(details.map(Box::new)),
    };
    let element = ElementType {
        schema: row.try_get("element_schema")?,
        name: row.try_get("element_name")?,
        is_builtin: row.try_get::<_, u32>("element_oid")? < FIRST_NORMAL_OID,
        is_enum: row.try_get::<_, &str>("element_kind")? == "e",
        has_casts: row.try_get("element_has_casts")?,
    };
    Ok(ColumnDescription {
        name,
        number: row.try_get("attnum")?,
        display_type,
        filter_type,
        element,
        is_not_null: row.try_get("attnotnull")?,
        key_index: key_index.and_then(|index| usize::try_from(index).ok()),
        is_generated: !row.try_get::<_, &str>("attgenerated")?.is_empty(),
        stream_type: (row.try_get("atttypid")?, row.try_get("atttypmod")?),
    })
}

/// Returns the details of a column whose type, or element type, is an enum or citext, or whose
/// element type is a domain.
fn user_type(row: &Row) -> Result<Option<UserType>, tokio_postgres::Error> {
    let labels: Option<Vec<String>> = row.try_get("enum_labels")?;
    let base_array: Option<u32> = row.try_get("base_array")?;
    if labels.is_none() && base_array.is_none() && !row.try_get::<_, bool>("is_citext")? {
        return Ok(None);
    }
    let oid = row.try_get("element_oid")?;
    Ok(Some(UserType {
        oid,
        schema: row.try_get("element_schema")?,
        name: row.try_get("element_name")?,
        is_array: row.try_get::<_, u32>("base_oid")? != oid,
        labels,
        base_array,
    }))
}
