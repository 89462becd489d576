//! Adds tables to the publication, and repairs their replica identity.

use forebay_reservoir::tokio_postgres::SimpleQueryMessage;
use forebay_reservoir::tokio_postgres::error::SqlState;
use forebay_reservoir::tokio_postgres::types::Type;
use forebay_reservoir::{ConnectionGuard, PostgresClient};

use super::catalog_table::{CatalogTable, decodes_with_stale_catalog, writer_lock};
use super::{
    LOCK_TIMEOUT, MISSING_TABLE, Publication, PublicationVersions, PublishError, TableName, TablePublication,
    is_any,
};
use crate::pools::Pools;
use crate::sql;

impl Publication {
    /// Publishes a table completely, with replica identity full. Marks a tracked table as having a
    /// gap before it is repaired.
    pub(super) async fn ensure_published(
        &self,
        client: &ConnectionGuard<PostgresClient>,
        table: &TableName,
    ) -> Result<TablePublication, PublishError> {
        let current = self.find(client, table).await?;
        self.check_publishable(&current, table)?;
        let mut statements = Vec::new();
        if !current.is_published {
            statements.extend(writer_lock(table, &current));
            let statement = format!("ALTER PUBLICATION {} ADD TABLE ONLY {table}", sql::name(&self.name));
            statements.push(self.permitted(
                &current,
                table,
                "isn't in the publication",
                statement,
                current.publisher(),
            )?);
        }
        for part in self.without_full_rows(client, table, &current).await? {
            let statement = format!("ALTER TABLE ONLY {part} REPLICA IDENTITY FULL");
            let problem = "has changes without old rows (its replica identity isn't full)";
            statements.push(self.permitted(&current, table, problem, statement, current.owner.clone())?);
        }
        if statements.is_empty() {
            return Ok(TablePublication {
                oid: current.oid,
                membership: current.membership,
                was_whole: true,
            });
        }
        // Before the statement: if its result is lost, the repair may have been made, and the next
        // check would find no defect.
        if let Some(tracked) = self.tracked.lock().get_mut(table) {
            tracked.has_gap = true;
        }
        // Several statements in one message are one transaction.
        let script = format!("{LOCK_TIMEOUT}; {}", statements.join("; "));
        match client.batch_execute(&script).await {
            Ok(()) => {
                let now = self.find(client, table).await?;
                Ok(TablePublication { oid: now.oid, membership: now.membership, was_whole: false })
            }
            Err(error) if is_any(&error, &[SqlState::LOCK_NOT_AVAILABLE]) => {
                Err(PublishError::Busy { table: table.clone() })
            }
            Err(error) if is_any(&error, &MISSING_TABLE) => {
                Err(PublishError::NotFound { table: table.clone() })
            }
            Err(error) if is_any(&error, &[SqlState::INSUFFICIENT_PRIVILEGE]) => {
                Err(PublishError::NotPermitted {
                    table: table.clone(),
                    problem: "can't be published by this user",
                    statement: statements.join("; "),
                    owner: current.owner,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if the table can't be published completely.
    fn check_publishable(&self, current: &CatalogTable, table: &TableName) -> Result<(), PublishError> {
        if !matches!(current.kind.as_str(), "r" | "p") || !current.is_logged {
            return Err(PublishError::NotATable { table: table.clone() });
        }
        if current.publication_owner.is_none() {
            return Err(PublishError::NoPublication);
        }
        if !current.has_all_changes {
            return Err(PublishError::Narrowed { publication: self.name.clone() });
        }
        if current.is_filtered {
            return Err(PublishError::Filtered { table: table.clone() });
        }
        if let Some(column) = current.virtual_column.clone() {
            return Err(PublishError::VirtualColumn { table: table.clone(), column });
        }
        self.check_partition(current, table)
    }

    /// Fails if changes of a partition carry, or may carry, the name of an ancestor.
    fn check_partition(&self, current: &CatalogTable, table: &TableName) -> Result<(), PublishError> {
        if !current.is_partition || !current.is_via_root {
            return Ok(());
        }
        match self.is_manual {
            false => Err(PublishError::PublishedViaRoot { table: table.clone() }),
            // Without a published ancestor, its changes carry its own name.
            true if !current.has_published_ancestor => Ok(()),
            true => Err(PublishError::NotPermitted {
                table: table.clone(),
                problem: "is a partition, whose changes the publication has under the name of its ancestor",
                statement: without_via_root(&self.name),
                owner: current.publication_owner.clone().unwrap_or_default(),
            }),
        }
    }

    /// Sets `publish_via_partition_root = false`. Returns the versions of the publication's row;
    /// `None` if the setting was `false` already.
    pub(crate) async fn publish_partitions(
        &self,
        pools: &Pools,
        table: &TableName,
    ) -> Result<Option<PublicationVersions>, PublishError> {
        let _guard = self.change_lock.lock().await;
        let client = pools.admin().await?;
        let name = sql::literal(&self.name);
        let query = "SELECT p.pubviaroot, current_setting('server_version_num')::int, \
             ARRAY(SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_publication_rel m \
                 JOIN pg_class c ON c.oid = m.prrelid AND c.relkind = 'p' JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE m.prpubid = p.oid ORDER BY c.oid) \
             FROM pg_publication p WHERE p.pubname = $1";
        let rows = client.query_typed(query, &[(&self.name, Type::TEXT)]).await?;
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
        // Several statements in one message are one transaction.
        let altered = client.simple_query(&statements.join("; ")).await;
        let messages = altered.map_err(|error| match error.code() {
            Some(&SqlState::LOCK_NOT_AVAILABLE) => PublishError::Busy { table: table.clone() },
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => PublishError::NotPermitted {
                table: table.clone(),
                problem: "is a partition, whose changes the publication has under the name of its ancestor",
                statement: without_via_root(&self.name),
                owner: "the owner of the publication and its tables".to_owned(),
            },
            _ => error.into(),
        })?;
        let version = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0).and_then(|xmin| xmin.parse().ok()),
            _ => None,
        };
        let mut versions = messages.iter().filter_map(version);
        match (versions.next(), versions.next()) {
            (Some(before), Some(after)) => Ok(Some(PublicationVersions { before, after })),
            _ => Err(PublishError::NoPublication),
        }
    }

    /// Returns the statement, or fails if this role may not run it.
    fn permitted(
        &self,
        current: &CatalogTable,
        table: &TableName,
        problem: &'static str,
        statement: String,
        owner: String,
    ) -> Result<String, PublishError> {
        match self.is_manual || !current.is_owned {
            true => Err(PublishError::NotPermitted { table: table.clone(), problem, statement, owner }),
            false => Ok(statement),
        }
    }
}

/// Returns the statement that disables `publish_via_partition_root`.
fn without_via_root(publication: &str) -> String {
    format!("ALTER PUBLICATION {} SET (publish_via_partition_root = false)", sql::name(publication))
}
