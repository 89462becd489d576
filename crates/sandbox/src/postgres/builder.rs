//! Settings of a server to come.

use std::sync::Arc;

use super::Postgres;
use super::cluster::Cluster;
use super::programs::Programs;
use crate::error::StartError;
use crate::folder::Folder;
use crate::server::tail;
use crate::user::give;

/// On mmap, shared memory is in files of the folder, and a killed server leaves none elsewhere. The sizes are for tests:
/// what a server doesn't touch, it needn't set up, drop or recover.
const DEFAULTS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("fsync", "off"),
    ("dynamic_shared_memory_type", "mmap"),
    ("shared_buffers", "16MB"),
    ("max_wal_size", "256MB"),
];

/// Settings of a [`Postgres`] to come.
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
    /// Takes this major version, such as 15 or 18, and not the first one that is found: from the folder that
    /// `FOREBAY_PG18_BIN` names, from the PATH, from the distribution, or from what script/bootstrap installs.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// Asks for this password on TCP, by SCRAM-SHA-256. The Unix socket still asks for none.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// A line of pg_hba.conf, such as `hostssl all all 127.0.0.1/32 scram-sha-256`. The first one replaces the defaults
    /// for TCP, the next ones add to it. The Unix socket trusts everybody all the same.
    ///
    /// # Panics
    /// When it is not one line.
    pub fn hba(mut self, line: &str) -> Self {
        assert!(!line.contains(['\n', '\r']), "one line at a time: {line:?}");
        self.hba.push(line.to_owned());
        self
    }

    /// Offers TLS on the same port, with a throwaway certificate for `localhost`, `127.0.0.1` and `::1`; it is for
    /// [`PostgresBuilder::hba`] to demand it.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Listens on these addresses of loopback, such as `127.0.0.1,::1`.
    pub fn listen(self, addresses: &str) -> Self {
        self.config("listen_addresses", addresses)
    }

    /// Archives the write-ahead log, for [`Postgres::restore_to`].
    pub fn archive(mut self) -> Self {
        self.archive = true;
        self
    }

    /// Any setting of postgresql.conf; the value is quoted. It wins over the defaults above.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Makes a new cluster, starts it, and waits until it answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(self) -> Result<Postgres, StartError> {
        let mut cluster = Cluster::create(Programs::find(self.version)?)?;
        cluster.configure(DEFAULTS)?;
        cluster.configure(&[("unix_socket_directories", cluster.folder.path().to_string_lossy())])?;
        if self.tls {
            cluster.use_tls()?;
        }
        if self.archive {
            use_archive(&mut cluster)?;
        }
        cluster.configure(&self.settings)?;
        cluster.allow(&self.doors())?;
        cluster.password = self.password;

        let postgres = cluster.start()?;
        if let Some(password) = &postgres.cluster.password {
            let change = format!("ALTER ROLE postgres PASSWORD '{}'", password.replace('\'', "''"));
            let changed = postgres.execute("postgres", &change);
            changed.map_err(|source| StartError::Unready { source, log: tail(&postgres.log()) })?;
        }
        Ok(postgres)
    }

    /// The lines for TCP.
    fn doors(&self) -> Vec<String> {
        if !self.hba.is_empty() {
            return self.hba.clone();
        }
        let method = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let door = |address| ["all", "replication"].map(|what| format!("host {what} all {address} {method}"));
        ["127.0.0.1/32", "::1/128"].into_iter().flat_map(door).collect()
    }
}

/// A file appears in the archive only when it is whole.
fn use_archive(cluster: &mut Cluster) -> Result<(), StartError> {
    let archive = Arc::new(Folder::create()?);
    give(archive.path(), cluster.user).map_err(StartError::at(archive.path()))?;
    let file = format!("\"{}/%f\"", archive.path().display());
    let command = format!("cp %p {file}.part && mv {file}.part {file}");
    cluster.configure(&[("archive_mode", "on"), ("archive_command", &command)])?;
    cluster.archive = Some(archive);
    Ok(())
}
