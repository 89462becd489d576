//! Point-in-time recovery: a new server from a backup and archived WAL, up to a target.

use std::io;

use super::cluster::PostgresCluster;
use super::{Postgres, backup, until};
use crate::copy_folder::copy_folder;
use crate::error::StartError;
use crate::server_process::last_lines;

/// Resets the target of a server that was itself restored; there may be only one target.
pub(super) const NO_TARGET: &[(&str, &str)] = &[
    ("recovery_target_lsn", ""),
    ("recovery_target_name", ""),
    ("recovery_target_time", ""),
    ("recovery_target_timeline", "latest"),
];

/// Base backup of a [`Postgres`]; removed when dropped. It may outlive that server.
#[derive(Debug)]
pub struct Backup {
    cluster: PostgresCluster,
}

/// Point up to which WAL is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryTarget<'a> {
    /// An LSN, such as `0/3000148`, including the record there.
    Lsn(&'a str),
    /// The last commit before this time, in the format of `SELECT now()`. WAL must contain a later
    /// commit.
    Time(&'a str),
    /// A name given to `pg_create_restore_point`.
    Name(&'a str),
    /// The end of the archived WAL.
    Latest,
}

impl Postgres {
    /// Takes a base backup of this server, which must run and have been built with
    /// [`archive`](super::PostgresBuilder::archive). Slots are not included.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn backup(&self) -> Result<Backup, StartError> {
        if self.cluster.archive.is_none() {
            return Err(StartError::original(io::Error::other("the server was not built with archive()")));
        }
        Ok(Backup { cluster: backup::copy_running(self)? })
    }

    /// Starts a new server from a backup, replays WAL up to the target, and promotes it.
    ///
    /// The new server has the same system identifier and a new timeline. Returns when it accepts
    /// writes. If this server runs, its WAL up to now is archived first.
    ///
    /// # Errors
    /// See [`StartError`]; for example if WAL ends before the target.
    pub fn restore_to(&self, backup: &Backup, target: RecoveryTarget<'_>) -> Result<Postgres, StartError> {
        let archive = backup.cluster.archive.as_ref().expect("a backup has an archive");
        if self.server.is_running() {
            self.archive_all().map_err(StartError::original)?;
        }
        let cluster = backup::empty_copy(&backup.cluster)?;
        let data = cluster.data();
        let copied = copy_folder(&backup.cluster.data(), &data, cluster.user, &|_| true);
        copied.map_err(StartError::with_path(&data))?;
        let fetch = format!("cp \"{}/%f\" %p", archive.path().display());
        cluster.configure(NO_TARGET)?;
        cluster.configure(&[
            ("unix_socket_directories", cluster.folder.path().to_string_lossy().as_ref()),
            ("restore_command", &fetch),
            // Follows the original's timeline, not that of another restored server.
            ("recovery_target_timeline", "current"),
            ("recovery_target_action", "promote"),
        ])?;
        cluster.configure(&target.setting())?;
        cluster.write("data/recovery.signal", "")?;
        let restored = cluster.start()?;
        let ready = until("the restored server accepts writes", || Ok(!restored.is_in_recovery()?));
        let ready = ready.and_then(|()| restored.archive_all());
        ready.map_err(|source| StartError::Unready { source, log: last_lines(&restored.log()) })?;
        Ok(restored)
    }

    /// Waits until WAL up to now is archived. For a restored server this includes its timeline, so
    /// that the next one gets another.
    fn archive_all(&self) -> io::Result<()> {
        // Creates a record, so that there is a WAL file to switch from.
        const FILE: &str = "SELECT pg_walfile_name(pg_create_restore_point('sandbox') - 1)";
        let Some(archive) = &self.cluster.archive else { return Ok(()) };
        let mut session = self.session("postgres")?;
        let file: String = session.run(FILE)?.into_iter().flatten().flatten().collect();
        session.run("SELECT pg_switch_wal()")?;
        let path = archive.path().join(file);
        until("the WAL is archived", || Ok(path.exists()))
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
