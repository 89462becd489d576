//! Standbys: servers that replicate another one until they are promoted.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use super::recovery::NO_TARGET;
use super::{Postgres, backup, until};
use crate::error::StartError;

impl Postgres {
    /// Returns a builder of a hot standby of this server, which must run.
    ///
    /// The standby is a [`Postgres`] with this server's settings, certificates and password.
    pub fn standby(&self) -> StandbyBuilder<'_> {
        StandbyBuilder { primary: self, slot: None, failover_slots: false, settings: Vec::new() }
    }

    /// Returns true if the server is a standby or is being restored, and so rejects writes.
    ///
    /// # Errors
    /// Fails if the server doesn't run.
    pub fn is_in_recovery(&self) -> io::Result<bool> {
        let rows = self.query("postgres", "SELECT pg_is_in_recovery()")?;
        Ok(rows.into_iter().flatten().flatten().any(|answer| answer == "t"))
    }

    /// Promotes a standby to a primary on a new timeline, and waits until it accepts writes.
    ///
    /// # Errors
    /// Fails if the server is no standby, or doesn't run.
    pub fn promote(&self) -> io::Result<()> {
        self.execute("postgres", "SELECT pg_promote(false)")?;
        until("the standby accepts writes", || Ok(!self.is_in_recovery()?))
    }
}

/// Builder of a standby.
#[derive(Clone, Debug)]
pub struct StandbyBuilder<'a> {
    primary: &'a Postgres,
    slot: Option<String>,
    failover_slots: bool,
    settings: Vec<(String, String)>,
}

impl StandbyBuilder<'_> {
    /// Sets the name of the physical slot that is created on the primary. The default is a new
    /// name. The slot stays when the standby ends.
    pub fn slot(mut self, name: &str) -> Self {
        self.slot = Some(name.to_owned());
        self
    }

    /// Synchronises the primary's failover slots (version 17 and newer).
    ///
    /// Sets `sync_replication_slots` and `hot_standby_feedback` here, and
    /// `synchronized_standby_slots` on the primary, so that no subscriber gets ahead of this
    /// standby. While the standby is down, subscribers wait.
    pub fn failover_slots(mut self) -> Self {
        self.failover_slots = true;
        self.config("sync_replication_slots", "on").config("hot_standby_feedback", "on")
    }

    /// Adds a setting to postgresql.conf. The default `primary_conninfo` is the primary's Unix
    /// socket.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Copies the primary, starts the copy, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Postgres, StartError> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let own = || format!("standby_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let slot = self.slot.clone().unwrap_or_else(own);
        // Created before the copy, so that the primary keeps the WAL that the standby needs.
        let reserve = format!("SELECT pg_create_physical_replication_slot('{slot}', true)");
        self.primary.execute("postgres", &reserve).map_err(StartError::original)?;

        let started = self.start_from(&slot);
        if started.is_err() {
            // An unused slot would retain WAL.
            let _ = self.primary.execute("postgres", &format!("SELECT pg_drop_replication_slot('{slot}')"));
        }
        started
    }

    fn start_from(&self, slot: &str) -> Result<Postgres, StartError> {
        let cluster = backup::copy_running(self.primary)?;
        let host = self.primary.socket_dir().display();
        // Slot synchronisation needs a database.
        let primary = format!("host='{host}' port={} user=postgres dbname=postgres", self.primary.port());
        cluster.configure(NO_TARGET)?;
        cluster.configure(&[
            ("unix_socket_directories", cluster.folder.path().to_string_lossy().as_ref()),
            ("primary_conninfo", &primary),
            ("primary_slot_name", slot),
            // Retries twice a second if the primary is down, instead of every five seconds.
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
