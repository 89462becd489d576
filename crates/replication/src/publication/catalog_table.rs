//! A table and its publication, as the catalog describes them.

use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::tokio_postgres::{self, Row};
use forebay_reservoir::{ConnectionGuard, PostgresClient};

use super::{Publication, PublishError, TableName};

/// A table and its publication in the catalog.
pub(super) struct CatalogTable {
    pub(super) oid: u32,
    /// `relkind`.
    pub(super) kind: String,
    pub(super) has_full_rows: bool,
    /// Whether this role owns the table.
    pub(super) is_owned: bool,
    pub(super) owner: String,
    pub(super) is_logged: bool,
    pub(super) is_published: bool,
    /// The oid of the table's own row in pg_publication_rel; 0 if there is none.
    pub(super) membership: u32,
    pub(super) is_partition: bool,
    /// `publish_via_partition_root`: changes of partitions carry the name of the topmost published
    /// ancestor.
    pub(super) is_via_root: bool,
    /// Whether the publication includes an ancestor of the table.
    pub(super) has_published_ancestor: bool,
    pub(super) is_filtered: bool,
    /// Whether the publication has inserts, updates, deletes and truncates.
    pub(super) has_all_changes: bool,
    /// `server_version_num`.
    pub(super) server_version: u32,
    /// Owner of the publication; `None` if it doesn't exist.
    pub(super) publication_owner: Option<String>,
    pub(super) virtual_column: Option<String>,
}

impl CatalogTable {
    /// Returns the role that may publish the table: it must own both.
    pub(super) fn publisher(&self) -> String {
        match &self.publication_owner {
            Some(other) if *other != self.owner => {
                format!("a superuser, or a member of both {} and {other}", self.owner)
            }
            Some(_) | None => self.owner.clone(),
        }
    }
}

impl Publication {
    /// Reads a table and its publication from the catalog. Fails if the table doesn't exist.
    pub(super) async fn find(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
    ) -> Result<CatalogTable, PublishError> {
        // With publish_via_partition_root, Postgres ignores filters of partitions; without it,
        // those of the root.
        let query = "SELECT c.oid, c.relkind::text, c.relreplident = 'f', pg_has_role(c.relowner, 'USAGE'), \
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
        let rows = client.query_typed(query, &names).await?;
        let row = rows.first().ok_or_else(|| PublishError::NotFound { table: table.clone() })?;
        Ok(CatalogTable {
            oid: row.get(0),
            kind: row.get(1),
            has_full_rows: row.get(2),
            is_owned: row.get(3),
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

    /// Returns the table or its partitions without replica identity full. Partitions don't inherit
    /// it. The parent needs it, too: its `Relation` message describes the changes.
    pub(super) async fn without_full_rows(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
        current: &CatalogTable,
    ) -> Result<Vec<TableName>, PublishError> {
        if current.kind == "r" {
            return Ok(if current.has_full_rows { vec![] } else { vec![table.clone()] });
        }
        let query = "SELECT n.nspname::text, c.relname::text FROM pg_partition_tree($1) t JOIN pg_class c ON c.oid = t.relid \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (t.isleaf AND c.relkind = 'r' OR c.oid = $1) AND c.relreplident <> 'f'";
        let rows = client.query_typed(query, &[(&current.oid, Type::OID)]).await?;
        let name = |row: &Row| TableName::new(row.get::<_, String>(0), row.get::<_, String>(1));
        Ok(rows.iter().map(name).collect())
    }
}

/// Returns the statement that locks out writers while a table is added to the publication; `None`
/// if this server version doesn't need it.
///
/// `REPLICA IDENTITY FULL` in the same transaction takes a stronger lock, but the table may have it
/// already.
pub(super) fn writer_lock(table: &TableName, current: &CatalogTable) -> Option<String> {
    let only = if current.kind == "p" { "" } else { "ONLY " };
    decodes_with_stale_catalog(current.server_version)
        .then(|| format!("LOCK TABLE {only}{table} IN SHARE ROW EXCLUSIVE MODE"))
}

/// Returns whether this version of Postgres (`server_version_num`) may decode with a stale catalog.
///
/// Such a server decodes transactions that were open while ALTER PUBLICATION committed, and later
/// ones, with the catalog from before: changes of the added table would be missing. Fixed in 15.13,
/// 16.9 and 17.5 ("DDL operations that don't take a strong lock"). A lock that waits for writers
/// avoids it.
pub fn decodes_with_stale_catalog(server_version: u32) -> bool {
    match server_version / 10_000 {
        ..15 => true,
        15 => server_version < 150_013,
        16 => server_version < 160_009,
        17 => server_version < 170_005,
        18.. => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions_before_the_fix_take_a_lock_that_waits_for_writers() {
        for version in [150_000, 150_012, 160_008, 170_004, 140_018] {
            assert!(decodes_with_stale_catalog(version), "{version}");
        }
        for version in [150_013, 150_018, 160_009, 170_005, 180_000, 190_001] {
            assert!(!decodes_with_stale_catalog(version), "{version}");
        }
        let table = |kind: &str, server_version| CatalogTable {
            oid: 1,
            kind: kind.to_owned(),
            has_full_rows: true,
            is_owned: true,
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
        let lock = |kind, version| writer_lock(&TableName::new("public", "t"), &table(kind, version));
        let expected = r#"LOCK TABLE ONLY "public"."t" IN SHARE ROW EXCLUSIVE MODE"#;
        assert_eq!(lock("r", 150_012).as_deref(), Some(expected));
        // With all its partitions.
        assert_eq!(lock("p", 150_012), Some(expected.replace("ONLY ", "")));
        assert_eq!(lock("r", 150_018), None);
    }
}
