//! Point-in-time recovery: a new server from a backup and the archived log, up to a chosen point.

use std::io;

use super::cluster::Cluster;
use super::{Postgres, backup, until};
use crate::copy::copy_folder;
use crate::error::StartError;
use crate::server::tail;

/// Undoes the target of a server that was restored itself: there may be only one.
pub(super) const NO_TARGET: &[(&str, &str)] = &[
    ("recovery_target_lsn", ""),
    ("recovery_target_name", ""),
    ("recovery_target_time", ""),
    ("recovery_target_timeline", "latest"),
];

/// A base backup of a [`Postgres`], removed when this is dropped. It outlives that server, if need be.
#[derive(Debug)]
pub struct Backup {
    cluster: Cluster,
}

/// Up to which point the log is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryTarget<'a> {
    /// This position in the log, such as `0/3000148`, and the record there.
    Lsn(&'a str),
    /// The last commit up to this time, as Postgres writes it: `SELECT now()`. A later one must be in the log.
    Time(&'a str),
    /// What `pg_create_restore_point` named.
    Name(&'a str),
    /// All that was archived.
    Latest,
}

impl Postgres {
    /// Takes a base backup of this server, which must run and have been built with
    /// [`archive`](super::PostgresBuilder::archive). Slots are not part of it.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn backup(&self) -> Result<Backup, StartError> {
        if self.cluster.archive.is_none() {
            return Err(StartError::original(io::Error::other("it was not built with archive()")));
        }
        Ok(Backup { cluster: backup::copy_running(self)? })
    }

    /// Makes a new server from a backup of this one, replayed up to the target, promoted, and on a new timeline; its
    /// system identifier is this one's. Returns when it takes writes. While this server runs, all that it has written
    /// until now is archived first.
    ///
    /// # Errors
    /// See [`StartError`]; when the log ends before the target, among others.
    pub fn restore_to(&self, backup: &Backup, target: RecoveryTarget<'_>) -> Result<Postgres, StartError> {
        let archive = backup.cluster.archive.as_ref().expect("there is no backup without an archive");
        if self.server.is_running() {
            self.archive_all().map_err(StartError::original)?;
        }
        let cluster = backup::copy_bare(&backup.cluster)?;
        let data = cluster.data();
        let copied = copy_folder(&backup.cluster.data(), &data, cluster.user, &|_| true);
        copied.map_err(StartError::at(&data))?;
        let fetch = format!("cp \"{}/%f\" %p", archive.path().display());
        cluster.configure(NO_TARGET)?;
        cluster.configure(&[
            ("unix_socket_directories", cluster.folder.path().to_string_lossy().as_ref()),
            ("restore_command", &fetch),
            // Along the original's timeline, and not after another restored server.
            ("recovery_target_timeline", "current"),
            ("recovery_target_action", "promote"),
        ])?;
        cluster.configure(&target.setting())?;
        cluster.write("data/recovery.signal", "")?;
        let restored = cluster.start()?;
        let ready = until("the restored server takes writes", || Ok(!restored.is_in_recovery()?));
        let ready = ready.and_then(|()| restored.archive_all());
        ready.map_err(|source| StartError::Unready { source, log: tail(&restored.log()) })?;
        Ok(restored)
    }

    /// Returns when the log is archived, up to here. Of a restored server that includes its timeline, so that the next
    /// one takes another.
    fn archive_all(&self) -> io::Result<()> {
        // A record of its own, so that there is a file to switch from.
        const FILE: &str = "SELECT pg_walfile_name(pg_create_restore_point('sandbox') - 1)";
        let Some(archive) = &self.cluster.archive else { return Ok(()) };
        let mut session = self.session("postgres")?;
        let file: String = session.run(FILE)?.into_iter().flatten().flatten().collect();
        session.run("SELECT pg_switch_wal()")?;
        let path = archive.path().join(file);
        until("the log is archived", || Ok(path.exists()))
    }
}

impl RecoveryTarget<'_> {
    fn setting(&self) -> Vec<(&'static str, &str)> {
        match self {
            RecoveryTarget::Lsn(lsn) => vec![("recovery_target_lsn", lsn)],
            RecoveryTarget::Time(time) => vec![("recovery_target_time", time)],
            RecoveryTarget::Name(name) => vec![("recovery_target_name", name)],
            RecoveryTarget::Latest => Vec::new(),
        }
    }
}
