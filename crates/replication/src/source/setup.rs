//! Setup before streaming: checks the server, and prepares publication, slot and output settings.

use std::time::Duration;

use forebay_pgoutput::Lsn;

use super::{BackendId, ReplicationSource, SourceEnd};
use crate::consumer::Consumer;
use crate::core::continuity::{ServerState, Timeline, TimelineSwitch, parse_history};
use crate::error::{ReplicationError, SourceOperation};
use crate::sql;
use crate::wire::QueryRows;

/// Oldest supported version.
const MIN_VERSION: u32 = 150_000;
/// First version with failover slots.
const FAILOVER_SLOTS_VERSION: u32 = 170_000;
/// First version that publishes generated columns.
const GENERATED_COLUMNS_VERSION: u32 = 180_000;

/// Output settings of every connection whose values reach clients. Each value has one text form.
pub const DISPLAY_SETTINGS: &[(&str, &str)] = &[
    ("bytea_output", "hex"),
    ("DateStyle", "ISO, DMY"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "1"),
    ("IntervalStyle", "iso_8601"),
    // On, names of tables, types and functions in values are always quoted.
    ("quote_all_identifiers", "off"),
    // With this path, names of tables, types and functions include their schema.
    ("search_path", "pg_catalog"),
];

/// Properties of the server and this connection.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(crate) timeline: Timeline,
    pub(crate) version: u32,
    pub(crate) user: String,
    /// `wal_sender_timeout`; `None` if it is disabled.
    pub(crate) sender_timeout: Option<Duration>,
    pub(crate) backend: BackendId,
}

/// A slot in pg_replication_slots.
struct SlotInfo {
    /// A logical pgoutput slot of this database without two-phase commit.
    is_usable: bool,
    /// Type, plugin and database.
    description: String,
    is_temporary: bool,
    is_lost: bool,
    is_failover: bool,
    confirmed: Option<Lsn>,
}

/// A publication that is ready for the stream.
struct PreparedPublication {
    oid: u32,
    /// Whether the slot must be recreated: an existing one would miss earlier changes.
    needs_new_slot: bool,
}

/// A slot that is ready for the stream.
struct PreparedSlot {
    confirmed: Lsn,
    is_new: bool,
}

impl<C: Consumer> ReplicationSource<C> {
    /// Fails if the server is too old, a standby, or not set up for logical replication.
    pub(super) async fn inspect_server(&mut self) -> Result<ServerInfo, SourceEnd> {
        let rows = self.query(SourceOperation::IdentifySystem, "IDENTIFY_SYSTEM").await?;
        let row = FirstRow { operation: SourceOperation::IdentifySystem, rows: &rows };
        let timeline = Timeline {
            system_id: row.parsed(0, "a system identifier")?,
            timeline_id: row.parsed(1, "a timeline")?,
        };
        let query = "SELECT current_setting('server_version_num'), current_setting('wal_level'), current_user, \
             pg_is_in_recovery(), (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'), \
             (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid())";
        let rows = self.query(SourceOperation::InspectServer, query).await?;
        let row = FirstRow { operation: SourceOperation::InspectServer, rows: &rows };
        let version = row.parsed(0, "a version")?;
        if version < MIN_VERSION {
            return Err(ReplicationError::TooOld { version }.into());
        }
        if row.is_true(3) {
            return Err(ReplicationError::Standby.into());
        }
        let wal_level = row.text(1, "a wal_level")?;
        if wal_level != "logical" {
            return Err(ReplicationError::WalLevel { found: wal_level.to_owned() }.into());
        }
        let timeout_ms: u64 = row.parsed(4, "a wal_sender_timeout")?;
        Ok(ServerInfo {
            timeline,
            version,
            user: row.text(2, "a user")?.to_owned(),
            sender_timeout: (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms)),
            backend: BackendId {
                pid: self.connection.backend_pid(),
                started_at: row.parsed(5, "the start time of the backend")?,
            },
        })
    }

    /// Prepares publication, slot and settings, and returns the server's state.
    pub(super) async fn configure(
        &mut self,
        server: &ServerInfo,
        recreate_slot: bool,
    ) -> Result<ServerState, SourceEnd> {
        let PreparedPublication { oid: publication, needs_new_slot } =
            self.prepare_publication(server).await?;
        // Decoding uses the catalog as of the decoded position, so a slot can't use a publication
        // that was created after its position.
        let PreparedSlot { confirmed, is_new: slot_created } =
            self.prepare_slot(server, recreate_slot || needs_new_slot).await?;
        let history = self.history(server.timeline).await?;
        for (key, value) in DISPLAY_SETTINGS {
            self.query(SourceOperation::Configure, &format!("SET {key} ={}", sql::literal(value))).await?;
        }
        // Read only while this instance holds the lock: before, another instance may have streamed.
        let rows = self.query(SourceOperation::IdentifySystem, "SELECT pg_current_wal_flush_lsn()").await?;
        let flushed = FirstRow { operation: SourceOperation::IdentifySystem, rows: &rows }
            .parsed(0, "a log position")?;
        Ok(ServerState { timeline: server.timeline, publication, slot_created, confirmed, flushed, history })
    }

    /// Creates, repairs or checks the publication.
    async fn prepare_publication(&mut self, server: &ServerInfo) -> Result<PreparedPublication, SourceEnd> {
        let config = &self.context.config;
        let (name, is_manual) = (config.publication.clone(), config.manual_publication);
        // From version 18, Postgres refuses updates of a table with generated columns and replica
        // identity full if the publication doesn't publish these columns.
        let supports_generated = server.version >= GENERATED_COLUMNS_VERSION && !is_manual;
        let generated =
            if supports_generated { ", CASE WHEN pubgencols = 'n' THEN 'generated columns' END" } else { "" };
        let query = format!(
            "SELECT oid, pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE'), concat_ws(', ', \
             CASE WHEN NOT pubinsert THEN 'insert' END, CASE WHEN NOT pubupdate THEN 'update' END, \
             CASE WHEN NOT pubdelete THEN 'delete' END, CASE WHEN NOT pubtruncate THEN 'truncate' END{generated}) \
             FROM pg_publication WHERE pubname ={}",
            sql::literal(&name)
        );
        let rows = self.query(SourceOperation::PreparePublication, &query).await?;
        if rows.is_empty() {
            if is_manual {
                return Err(ReplicationError::NoPublication { name }.into());
            }
            let generated = if supports_generated { ", publish_generated_columns = stored" } else { "" };
            let via_root = !self.context.config.publish_partitions;
            let options = format!("WITH (publish_via_partition_root = {via_root}{generated})");
            self.query(
                SourceOperation::PreparePublication,
                &format!("CREATE PUBLICATION {} {options}", sql::name(&name)),
            )
            .await?;
            tracing::info!(publication = name, "publication created");
            let rows = self.query(SourceOperation::PreparePublication, &query).await?;
            let oid = FirstRow { operation: SourceOperation::PreparePublication, rows: &rows }
                .parsed(0, "the created publication")?;
            return Ok(PreparedPublication { oid, needs_new_slot: true });
        }
        let row = FirstRow { operation: SourceOperation::PreparePublication, rows: &rows };
        let oid = row.parsed(0, "an oid")?;
        let (owner, is_ours) = (row.text(1, "an owner")?.to_owned(), row.is_true(2));
        let missing = row.text(3, "operations")?.to_owned();
        match (is_manual, is_ours) {
            (false, false) => {
                Err(ReplicationError::NotOwner { name, owner, user: server.user.clone() }.into())
            }
            _ if missing.is_empty() => Ok(PreparedPublication { oid, needs_new_slot: false }),
            (true, _) => Err(ReplicationError::PublicationOperations { name, missing }.into()),
            (false, true) => {
                // The slot is dropped first. If ALTER PUBLICATION then fails, no slot that misses
                // changes remains.
                let slot = sql::literal(&self.context.config.slot);
                let query = format!(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ={slot} AND \
                     plugin = 'pgoutput' AND database = current_database()"
                );
                self.query(SourceOperation::DropSlot, &query).await?;
                let generated = if supports_generated { ", publish_generated_columns = stored" } else { "" };
                let options = format!("publish = 'insert, update, delete, truncate'{generated}");
                self.query(
                    SourceOperation::PreparePublication,
                    &format!("ALTER PUBLICATION {} SET ({options})", sql::name(&name)),
                )
                .await?;
                tracing::warn!(publication = name, missing, "publication repaired: it lacked operations");
                Ok(PreparedPublication { oid, needs_new_slot: true })
            }
        }
    }

    /// Finds or creates the slot.
    async fn prepare_slot(&mut self, server: &ServerInfo, recreate: bool) -> Result<PreparedSlot, SourceEnd> {
        let config = self.context.config.clone();
        let slot = self.find_slot(server).await?;
        if let Some(SlotInfo { is_usable: false, description, .. }) = slot {
            return Err(ReplicationError::ForeignSlot { slot: config.slot, what: description }.into());
        }
        let must_recreate =
            |slot: &SlotInfo| recreate || slot.is_lost || config.temporary_slot || slot.is_temporary;
        match slot {
            Some(slot) if !must_recreate(&slot) => {
                if config.failover_slot && !slot.is_failover && server.version >= FAILOVER_SLOTS_VERSION {
                    let query = format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", sql::name(&config.slot));
                    self.query(SourceOperation::CreateSlot, &query).await?;
                }
                let missing = "a confirmed_flush_lsn";
                let confirmed = slot.confirmed.ok_or(ReplicationError::InvalidResult {
                    operation: SourceOperation::ReadSlot,
                    missing,
                })?;
                return Ok(PreparedSlot { confirmed, is_new: false });
            }
            Some(slot) => {
                tracing::warn!(slot = config.slot, invalidated = slot.is_lost, "slot unusable: dropping it");
                let query = format!("SELECT pg_drop_replication_slot({})", sql::literal(&config.slot));
                self.query(SourceOperation::DropSlot, &query).await?;
            }
            None => {}
        }
        let temporary = if config.temporary_slot { " TEMPORARY" } else { "" };
        let options = match config.failover_slot
            && !config.temporary_slot
            && server.version >= FAILOVER_SLOTS_VERSION
        {
            true => "(SNAPSHOT 'nothing', FAILOVER)",
            false => "NOEXPORT_SNAPSHOT",
        };
        let name = sql::name(&config.slot);
        let query = format!("CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {options}");
        let rows = self.query_without_timeout(SourceOperation::CreateSlot, &query).await?;
        let row = FirstRow { operation: SourceOperation::CreateSlot, rows: &rows };
        let confirmed = row.parsed(1, "a consistent point")?;
        tracing::info!(slot = config.slot, %confirmed, "slot created");
        Ok(PreparedSlot { confirmed, is_new: true })
    }

    /// Returns the configured slot; `None` if it doesn't exist.
    async fn find_slot(&mut self, server: &ServerInfo) -> Result<Option<SlotInfo>, SourceEnd> {
        let failover = if server.version >= FAILOVER_SLOTS_VERSION { "failover" } else { "false" };
        let query = format!(
            "SELECT plugin = 'pgoutput' AND database = current_database() AND NOT two_phase, concat_ws(' ', slot_type, \
             plugin, 'of ' || database, CASE WHEN two_phase THEN 'with two-phase commit' END), temporary, coalesce(wal_status = 'lost', false), {failover}, confirmed_flush_lsn \
             FROM pg_replication_slots WHERE slot_name ={}",
            sql::literal(&self.context.config.slot)
        );
        let rows = self.query(SourceOperation::ReadSlot, &query).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let row = FirstRow { operation: SourceOperation::ReadSlot, rows: &rows };
        Ok(Some(SlotInfo {
            is_usable: row.is_true(0),
            description: row.text(1, "a kind of slot")?.to_owned(),
            is_temporary: row.is_true(2),
            is_lost: row.is_true(3),
            is_failover: row.is_true(4),
            confirmed: row.get(5).and_then(|lsn| lsn.parse().ok()),
        }))
    }

    /// Returns the ends of earlier timelines; empty if the server doesn't have them. The stream
    /// then continues only on the same timeline.
    async fn history(&mut self, timeline: Timeline) -> Result<Vec<TimelineSwitch>, SourceEnd> {
        if timeline.timeline_id <= 1 {
            return Ok(Vec::new());
        }
        let result = self
            .query(SourceOperation::IdentifySystem, &format!("TIMELINE_HISTORY {}", timeline.timeline_id))
            .await;
        let rows = match result {
            Err(SourceEnd::Failed(ReplicationError::Server { error, .. })) => {
                tracing::warn!(timeline = timeline.timeline_id, %error, "timeline history not available");
                return Ok(Vec::new());
            }
            rows => rows?,
        };
        let history = FirstRow { operation: SourceOperation::IdentifySystem, rows: &rows }
            .get(1)
            .and_then(parse_history);
        Ok(history.unwrap_or_default())
    }
}

/// The first row of a query's result.
struct FirstRow<'a> {
    operation: SourceOperation,
    rows: &'a QueryRows,
}

impl FirstRow<'_> {
    fn get(&self, column: usize) -> Option<&str> {
        self.rows.first()?.get(column)?.as_deref()
    }

    fn is_true(&self, column: usize) -> bool {
        self.get(column) == Some("t")
    }

    fn text(&self, column: usize, missing: &'static str) -> Result<&str, ReplicationError> {
        self.get(column).ok_or(ReplicationError::InvalidResult { operation: self.operation, missing })
    }

    fn parsed<T: std::str::FromStr>(
        &self,
        column: usize,
        missing: &'static str,
    ) -> Result<T, ReplicationError> {
        self.text(column, missing)?
            .parse()
            .map_err(|_| ReplicationError::InvalidResult { operation: self.operation, missing })
    }
}
