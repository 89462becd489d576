//! Standbys: servers that follow another one's log, until they are promoted.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use super::recovery::NO_TARGET;
use super::{Postgres, backup, until};
use crate::error::StartError;

impl Postgres {
    /// A hot standby of this server, which must run: a copy of it that streams whatever changes from here on. It is a
    /// [`Postgres`] of its own, with the settings, certificates and password of this one.
    pub fn standby(&self) -> StandbyBuilder<'_> {
        StandbyBuilder { primary: self, slot: None, failover_slots: false, settings: Vec::new() }
    }

    /// Whether it follows another server or is being restored, and refuses to write.
    ///
    /// # Errors
    /// When the server doesn't run.
    pub fn is_in_recovery(&self) -> io::Result<bool> {
        let rows = self.query("postgres", "SELECT pg_is_in_recovery()")?;
        Ok(rows.into_iter().flatten().flatten().any(|answer| answer == "t"))
    }

    /// Makes a standby a primary, on a new timeline. Returns when it takes writes.
    ///
    /// # Errors
    /// When it is no standby, or doesn't run.
    pub fn promote(&self) -> io::Result<()> {
        self.execute("postgres", "SELECT pg_promote(false)")?;
        until("the standby takes writes", || Ok(!self.is_in_recovery()?))
    }
}

/// Settings of a standby to come.
#[derive(Clone, Debug)]
pub struct StandbyBuilder<'a> {
    primary: &'a Postgres,
    slot: Option<String>,
    failover_slots: bool,
    settings: Vec<(String, String)>,
}

impl StandbyBuilder<'_> {
    /// The name of the physical slot that it makes on the primary and streams from; one of its own unless told. The
    /// slot stays when the standby ends.
    pub fn slot(mut self, name: &str) -> Self {
        self.slot = Some(name.to_owned());
        self
    }

    /// Keeps copies of the primary's failover slots, as version 17 and newer can: sets `sync_replication_slots` and
    /// `hot_standby_feedback` here, and on the primary `synchronized_standby_slots`, so that no subscriber there gets
    /// ahead of this standby. While the standby is away, they wait for it.
    pub fn failover_slots(mut self) -> Self {
        self.failover_slots = true;
        self.config("sync_replication_slots", "on").config("hot_standby_feedback", "on")
    }

    /// Any setting of postgresql.conf, also `primary_conninfo`, which leads to the primary's Unix socket unless told.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Copies the primary, starts the copy, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Postgres, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let own = || format!("standby_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let slot = self.slot.clone().unwrap_or_else(own);
        // Before the copy, so that no log is gone when the standby asks for it.
        let reserve = format!("SELECT pg_create_physical_replication_slot('{slot}', true)");
        self.primary.execute("postgres", &reserve).map_err(StartError::original)?;

        let started = self.start_from(&slot);
        if started.is_err() {
            // Nobody would ever read from it, and it would hold the log back.
            let _ = self.primary.execute("postgres", &format!("SELECT pg_drop_replication_slot('{slot}')"));
        }
        started
    }

    fn start_from(&self, slot: &str) -> Result<Postgres, StartError> {
        let cluster = backup::copy_running(self.primary)?;
        let host = self.primary.socket_dir().display();
        // The synchronization of slots wants a database.
        let primary = format!("host='{host}' port={} user=postgres dbname=postgres", self.primary.port());
        cluster.configure(NO_TARGET)?;
        cluster.configure(&[
            ("unix_socket_directories", cluster.folder.path().to_string_lossy().as_ref()),
            ("primary_conninfo", &primary),
            ("primary_slot_name", slot),
            // Two tries a second to reach a primary that is away, and not one in five seconds.
            ("wal_retrieve_retry_interval", "500ms"),
        ])?;
        cluster.configure(&self.settings)?;
        cluster.write("data/standby.signal", "")?;
        let standby = cluster.start()?;
        if self.failover_slots {
            self.primary.set_config("synchronized_standby_slots", slot)?;
            self.primary.reload().map_err(StartError::original)?;
        }
        Ok(standby)
    }
}
