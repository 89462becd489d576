//! What is asked and arranged before the stream: identity, rights, publication, slot, the way values are written.

use std::time::Duration;

use forebay_pgoutput::Lsn;

use super::{Backend, Ended, Source};
use crate::consumer::Consumer;
use crate::core::continuity::{Found, Switch, Timeline, parse_history};
use crate::error::{Doing, Failure};
use crate::sql;
use crate::wire::Rows;

/// The oldest that its makers support.
const OLDEST: u32 = 150_000;
/// The first with slots that standbys keep in step.
const FAILOVER_SLOTS: u32 = 170_000;
/// The first to publish generated columns.
const GENERATED_COLUMNS: u32 = 180_000;

/// How values are written, on every connection whose values reach clients.
pub const DISPLAY_SETTINGS: &[(&str, &str)] = &[
    ("bytea_output", "hex"),
    ("DateStyle", "ISO, DMY"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "1"),
    ("IntervalStyle", "iso_8601"),
    // Names of tables, types and functions are written with their schema.
    ("search_path", "pg_catalog"),
];

/// What the server is.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) timeline: Timeline,
    pub(crate) version: u32,
    pub(crate) user: String,
    /// `None`: it waits for ever.
    pub(crate) sender_timeout: Option<Duration>,
    pub(crate) backend: Backend,
}

/// A slot as the server has it.
struct Slot {
    is_ours: bool,
    what: String,
    is_temporary: bool,
    is_lost: bool,
    is_failover: bool,
    confirmed: Option<Lsn>,
}

impl<C: Consumer> Source<C> {
    pub(super) async fn ask_around(&mut self) -> Result<Server, Ended> {
        let rows = self.ask(Doing::Identifying, "IDENTIFY_SYSTEM").await?;
        let answer = Answer { doing: Doing::Identifying, rows: &rows };
        let timeline = Timeline {
            system_id: answer.parsed(0, "a system identifier")?,
            timeline_id: answer.parsed(1, "a timeline")?,
        };
        let asking = "SELECT current_setting('server_version_num'), current_setting('wal_level'), current_user, \
             pg_is_in_recovery(), (SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'), \
             (SELECT (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid())";
        let rows = self.ask(Doing::AskingAround, asking).await?;
        let answer = Answer { doing: Doing::AskingAround, rows: &rows };
        let version = answer.parsed(0, "a version")?;
        if version < OLDEST {
            return Err(Failure::TooOld { version }.into());
        }
        if answer.is_true(3) {
            return Err(Failure::Standby.into());
        }
        let wal_level = answer.word(1, "a wal_level")?;
        if wal_level != "logical" {
            return Err(Failure::WalLevel { found: wal_level.to_owned() }.into());
        }
        let timeout_ms: u64 = answer.parsed(4, "a wal_sender_timeout")?;
        Ok(Server {
            timeline,
            version,
            user: answer.word(2, "a user")?.to_owned(),
            sender_timeout: (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms)),
            backend: Backend {
                pid: self.wire.backend_pid(),
                began: answer.parsed(5, "when our backend began")?,
            },
        })
    }

    pub(super) async fn configure(&mut self, server: &Server, recreate_slot: bool) -> Result<Found, Ended> {
        let (publication, is_new) = self.prepare_publication(server).await?;
        // A slot decodes with the catalog as it was: it never sees a publication that is younger than its position.
        let (confirmed, slot_created) = self.prepare_slot(server, recreate_slot || is_new).await?;
        let history = self.history(server.timeline).await?;
        for (key, value) in DISPLAY_SETTINGS {
            self.ask(Doing::Configuring, &format!("SET {key} ={}", sql::literal(value))).await?;
        }
        // With the lock: until then another instance streams.
        let rows = self.ask(Doing::Identifying, "SELECT pg_current_wal_flush_lsn()").await?;
        let written = Answer { doing: Doing::Identifying, rows: &rows }.parsed(0, "a log position")?;
        Ok(Found { timeline: server.timeline, publication, slot_created, confirmed, written, history })
    }

    /// Its oid, and whether it leaves out something that was committed before.
    async fn prepare_publication(&mut self, server: &Server) -> Result<(u32, bool), Ended> {
        let config = &self.setting.config;
        let (name, is_manual) = (config.publication.clone(), config.manual_publication);
        // Where it could publish them and doesn't, Postgres refuses to update tables that have some and old rows in full.
        let has_generated = server.version >= GENERATED_COLUMNS && !is_manual;
        let generated =
            if has_generated { ", CASE WHEN pubgencols = 'n' THEN 'generated columns' END" } else { "" };
        let asking = format!(
            "SELECT oid, pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE'), concat_ws(', ', \
             CASE WHEN NOT pubinsert THEN 'insert' END, CASE WHEN NOT pubupdate THEN 'update' END, \
             CASE WHEN NOT pubdelete THEN 'delete' END, CASE WHEN NOT pubtruncate THEN 'truncate' END{generated}) \
             FROM pg_publication WHERE pubname ={}",
            sql::literal(&name)
        );
        let rows = self.ask(Doing::Publishing, &asking).await?;
        if rows.is_empty() {
            if is_manual {
                return Err(Failure::NoPublication { name }.into());
            }
            let generated = if has_generated { ", publish_generated_columns = stored" } else { "" };
            let via_root = !self.setting.config.publish_partitions;
            let with = format!("WITH (publish_via_partition_root = {via_root}{generated})");
            self.ask(Doing::Publishing, &format!("CREATE PUBLICATION {} {with}", sql::name(&name))).await?;
            tracing::info!(publication = name, "created the publication");
            let rows = self.ask(Doing::Publishing, &asking).await?;
            let oid =
                Answer { doing: Doing::Publishing, rows: &rows }.parsed(0, "the publication it just made")?;
            return Ok((oid, true));
        }
        let answer = Answer { doing: Doing::Publishing, rows: &rows };
        let oid = answer.parsed(0, "an oid")?;
        let (owner, is_ours) = (answer.word(1, "an owner")?.to_owned(), answer.is_true(2));
        let missing = answer.word(3, "operations")?.to_owned();
        match (is_manual, is_ours) {
            (false, false) => Err(Failure::NotOwner { name, owner, user: server.user.clone() }.into()),
            _ if missing.is_empty() => Ok((oid, false)),
            (true, _) => Err(Failure::PublicationOperations { name, missing }.into()),
            (false, true) => {
                // First, so that whatever happens in between, nobody goes on with a slot that has missed something.
                let slot = sql::literal(&self.setting.config.slot);
                let asking = format!(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ={slot} AND \
                     plugin = 'pgoutput' AND database = current_database()"
                );
                self.ask(Doing::DroppingSlot, &asking).await?;
                let generated = if has_generated { ", publish_generated_columns = stored" } else { "" };
                let all = format!("publish = 'insert, update, delete, truncate'{generated}");
                self.ask(Doing::Publishing, &format!("ALTER PUBLICATION {} SET ({all})", sql::name(&name)))
                    .await?;
                tracing::warn!(
                    publication = name,
                    missing,
                    "the publication left something out: it has it again"
                );
                Ok((oid, true))
            }
        }
    }

    /// The slot's position, and whether it was made just now.
    async fn prepare_slot(&mut self, server: &Server, recreate: bool) -> Result<(Lsn, bool), Ended> {
        let config = self.setting.config.clone();
        let slot = self.find_slot(server).await?;
        if let Some(Slot { is_ours: false, what, .. }) = slot {
            return Err(Failure::ForeignSlot { slot: config.slot, what }.into());
        }
        let is_useless = |slot: &Slot| recreate || slot.is_lost || config.temporary_slot || slot.is_temporary;
        match slot {
            Some(slot) if !is_useless(&slot) => {
                if config.failover_slot && !slot.is_failover && server.version >= FAILOVER_SLOTS {
                    let asking =
                        format!("ALTER_REPLICATION_SLOT {} (FAILOVER true)", sql::name(&config.slot));
                    self.ask(Doing::CreatingSlot, &asking).await?;
                }
                let what = "a confirmed_flush_lsn";
                let confirmed =
                    slot.confirmed.ok_or(Failure::Nonsense { doing: Doing::ReadingSlot, what })?;
                return Ok((confirmed, false));
            }
            Some(slot) => {
                tracing::warn!(
                    slot = config.slot,
                    invalidated = slot.is_lost,
                    "dropping a slot that is of no use"
                );
                let asking = format!("SELECT pg_drop_replication_slot({})", sql::literal(&config.slot));
                self.ask(Doing::DroppingSlot, &asking).await?;
            }
            None => {}
        }
        let temporary = if config.temporary_slot { " TEMPORARY" } else { "" };
        let options = match config.failover_slot && !config.temporary_slot && server.version >= FAILOVER_SLOTS
        {
            true => "(SNAPSHOT 'nothing', FAILOVER)",
            false => "NOEXPORT_SNAPSHOT",
        };
        let name = sql::name(&config.slot);
        let asking = format!("CREATE_REPLICATION_SLOT {name}{temporary} LOGICAL pgoutput {options}");
        let rows = self.ask_patiently(Doing::CreatingSlot, &asking).await?;
        let answer = Answer { doing: Doing::CreatingSlot, rows: &rows };
        let confirmed = answer.parsed(1, "a consistent point")?;
        tracing::info!(slot = config.slot, %confirmed, "created the slot");
        Ok((confirmed, true))
    }

    async fn find_slot(&mut self, server: &Server) -> Result<Option<Slot>, Ended> {
        let failover = if server.version >= FAILOVER_SLOTS { "failover" } else { "false" };
        let asking = format!(
            "SELECT plugin = 'pgoutput' AND database = current_database() AND NOT two_phase, concat_ws(' ', slot_type, \
             plugin, 'of ' || database, CASE WHEN two_phase THEN 'with two-phase commit' END), temporary, coalesce(wal_status = 'lost', false), {failover}, confirmed_flush_lsn \
             FROM pg_replication_slots WHERE slot_name ={}",
            sql::literal(&self.setting.config.slot)
        );
        let rows = self.ask(Doing::ReadingSlot, &asking).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let answer = Answer { doing: Doing::ReadingSlot, rows: &rows };
        Ok(Some(Slot {
            is_ours: answer.is_true(0),
            what: answer.word(1, "a kind of slot")?.to_owned(),
            is_temporary: answer.is_true(2),
            is_lost: answer.is_true(3),
            is_failover: answer.is_true(4),
            confirmed: answer.get(5).and_then(|lsn| lsn.parse().ok()),
        }))
    }

    /// Where earlier timelines ended, as far as the server knows. What isn't known goes on only on the same timeline.
    async fn history(&mut self, timeline: Timeline) -> Result<Vec<Switch>, Ended> {
        if timeline.timeline_id <= 1 {
            return Ok(Vec::new());
        }
        let asked = self.ask(Doing::Identifying, &format!("TIMELINE_HISTORY {}", timeline.timeline_id)).await;
        let rows = match asked {
            Err(Ended::Failed(Failure::Server { said, .. })) => {
                tracing::warn!(timeline = timeline.timeline_id, %said, "the server has no history of its timeline");
                return Ok(Vec::new());
            }
            rows => rows?,
        };
        let text = Answer { doing: Doing::Identifying, rows: &rows }.get(1).and_then(parse_history);
        Ok(text.unwrap_or_default())
    }
}

/// The first row of an answer.
struct Answer<'a> {
    doing: Doing,
    rows: &'a Rows,
}

impl Answer<'_> {
    fn get(&self, column: usize) -> Option<&str> {
        self.rows.first()?.get(column)?.as_deref()
    }

    fn is_true(&self, column: usize) -> bool {
        self.get(column) == Some("t")
    }

    fn word(&self, column: usize, what: &'static str) -> Result<&str, Failure> {
        self.get(column).ok_or(Failure::Nonsense { doing: self.doing, what })
    }

    fn parsed<T: std::str::FromStr>(&self, column: usize, what: &'static str) -> Result<T, Failure> {
        self.word(column, what)?.parse().map_err(|_| Failure::Nonsense { doing: self.doing, what })
    }
}
