//! Builder of a Postgres server.

use std::sync::Arc;

use super::Postgres;
use super::cluster::PostgresCluster;
use super::programs::Programs;
use crate::error::StartError;
use crate::folder::TempFolder;
use crate::server_process::last_lines;
use crate::system_user::change_owner;

/// Settings for tests. With mmap, shared memory is in files of the folder, so a killed server
/// leaves nothing elsewhere. Small sizes make start, stop and recovery fast.
const DEFAULTS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("fsync", "off"),
    ("dynamic_shared_memory_type", "mmap"),
    ("shared_buffers", "16MB"),
    ("max_wal_size", "256MB"),
];

/// Builder of a [`Postgres`].
#[derive(Clone, Debug, Default)]
pub struct PostgresBuilder {
    version: Option<u32>,
    settings: Vec<(String, String)>,
    hba: Vec<String>,
    password: Option<String>,
    tls: bool,
    archive: bool,
}

impl PostgresBuilder {
    /// Selects a major version, such as 15 or 18, instead of the first one found.
    ///
    /// Searched locations: the folder in `FOREBAY_PG18_BIN`, the PATH, the distribution's folders,
    /// and the folder of script/bootstrap.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// Requires this password on TCP, by SCRAM-SHA-256. The Unix socket requires none.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a line to pg_hba.conf, such as `hostssl all all 127.0.0.1/32 scram-sha-256`.
    ///
    /// The first line replaces the defaults for TCP. The Unix socket still trusts all users.
    ///
    /// # Panics
    /// Panics if `line` contains a line break.
    pub fn hba(mut self, line: &str) -> Self {
        assert!(!line.contains(['\n', '\r']), "one line at a time: {line:?}");
        self.hba.push(line.to_owned());
        self
    }

    /// Offers TLS on the same port, with a throwaway certificate for `localhost`, `127.0.0.1` and
    /// `::1`. Use [`PostgresBuilder::hba`] to require TLS.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Sets the loopback addresses to listen on, such as `127.0.0.1,::1`.
    pub fn listen(self, addresses: &str) -> Self {
        self.config("listen_addresses", addresses)
    }

    /// Archives the write-ahead log, for [`Postgres::restore_to`].
    pub fn archive(mut self) -> Self {
        self.archive = true;
        self
    }

    /// Adds a setting to postgresql.conf; the value is quoted. It overrides the defaults above.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Creates a cluster, starts it, and waits until it is ready.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Postgres, StartError> {
        let mut cluster = PostgresCluster::create(Programs::find(self.version)?)?;
        cluster.configure(DEFAULTS)?;
        cluster.configure(&[("unix_socket_directories", cluster.folder.path().to_string_lossy())])?;
        if self.tls {
            cluster.use_tls()?;
        }
        if self.archive {
            use_archive(&mut cluster)?;
        }
        cluster.configure(&self.settings)?;
        cluster.write_hba(&self.hba_lines())?;
        cluster.password = self.password;

        let postgres = cluster.start()?;
        if let Some(password) = &postgres.cluster.password {
            let change = format!("ALTER ROLE postgres PASSWORD '{}'", password.replace('\'', "''"));
            let changed = postgres.execute("postgres", &change);
            changed.map_err(|source| StartError::Unready { source, log: last_lines(&postgres.log()) })?;
        }
        Ok(postgres)
    }

    /// Returns the lines of pg_hba.conf for TCP.
    fn hba_lines(&self) -> Vec<String> {
        if !self.hba.is_empty() {
            return self.hba.clone();
        }
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let lines =
            |address| ["all", "replication"].map(|what| format!("host {what} all {address} {method}"));
        ["127.0.0.1/32", "::1/128"].into_iter().flat_map(lines).collect()
    }
}

/// Turns on archiving. Files are moved into the archive only when complete.
fn use_archive(cluster: &mut PostgresCluster) -> Result<(), StartError> {
    let archive = Arc::new(TempFolder::create()?);
    change_owner(archive.path(), cluster.user).map_err(StartError::with_path(archive.path()))?;
    let file = format!("\"{}/%f\"", archive.path().display());
    let command = format!("cp %p {file}.part && mv {file}.part {file}");
    cluster.configure(&[("archive_mode", "on"), ("archive_command", &command)])?;
    cluster.archive = Some(archive);
    Ok(())
}
