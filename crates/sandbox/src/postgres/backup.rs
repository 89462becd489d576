//! Base backups of a running server. They don't use `pg_basebackup`, which may not be installed.
//!
//! Invariant: a copy is consistent once the WAL from its start to its end has been replayed.
//! Enforced by: the server's backup mode during the copy, and the `backup_label` at its end.
//! Out of scope: tablespaces; a sandbox has none, and copying one fails.

use std::fs;
use std::path::Path;

use super::Postgres;
use super::cluster::PostgresCluster;
use crate::copy_folder::copy_folder;
use crate::error::StartError;
use crate::system_user::change_owner;

/// Copied last: it contains the position up to which WAL must be replayed.
const CONTROL: &str = "global/pg_control";
/// Folders copied without their files. The copy fetches WAL when it starts.
const EMPTY_FOLDERS: &[&str] = &[
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];
const EXCLUDED_FILES: &[&str] = &[
    CONTROL,
    "postmaster.pid",
    "postmaster.opts",
    "backup_label",
    "backup_label.old",
    "recovery.signal",
    "standby.signal",
];

/// Copies the data of a running server into a new cluster.
pub(super) fn copy_running(original: &Postgres) -> Result<PostgresCluster, StartError> {
    let cluster = empty_copy(&original.cluster)?;
    let (from, data) = (original.cluster.data(), cluster.data());
    let mut session = original.session("postgres").map_err(StartError::original)?;
    // `true`: a checkpoint at once, not spread over time.
    session.run("SELECT pg_backup_start('sandbox', true)").map_err(StartError::original)?;
    copy_folder(&from, &data, cluster.user, &is_included).map_err(StartError::with_path(&data))?;
    let control = data.join(CONTROL);
    let copied = fs::copy(from.join(CONTROL), &control).and_then(|_| change_owner(&control, cluster.user));
    copied.map_err(StartError::with_path(&control))?;
    let rows = session.run("SELECT labelfile FROM pg_backup_stop(false)").map_err(StartError::original)?;
    let label: String = rows.into_iter().flatten().flatten().collect();
    cluster.write("data/backup_label", &label)?;
    Ok(cluster)
}

/// Creates a cluster without data, with the password, archive and certificates of `original`.
pub(super) fn empty_copy(original: &PostgresCluster) -> Result<PostgresCluster, StartError> {
    let PostgresCluster { programs, password, tls, archive, .. } = original;
    let mut cluster = PostgresCluster::empty(programs.clone())?;
    cluster.password.clone_from(password);
    cluster.archive.clone_from(archive);
    if let Some(tls) = tls {
        cluster.write_authorities(tls.ca_pem.clone(), tls.wrong_ca_pem.clone())?;
    }
    Ok(cluster)
}

fn is_included(path: &Path) -> bool {
    let in_empty_folder =
        path.parent().is_some_and(|folder| EMPTY_FOLDERS.iter().any(|name| folder == Path::new(name)));
    let is_excluded = EXCLUDED_FILES.iter().any(|name| path == Path::new(name));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !in_empty_folder && !is_excluded && name != "pg_internal.init" && !name.starts_with("pgsql_tmp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_folders_of_wal_and_slots_without_their_files() {
        let is_included = |path| is_included(Path::new(path));
        assert!(
            ["pg_wal", "pg_replslot", "base/1/1259", "PG_VERSION", "global/1262"]
                .into_iter()
                .all(is_included)
        );
        let excluded = [
            "pg_wal/000000010000000000000001",
            "pg_wal/archive_status",
            "pg_replslot/mine",
            "postmaster.pid",
            "global/pg_control",
            "base/1/pg_internal.init",
            "base/pgsql_tmp",
        ];
        assert!(!excluded.into_iter().any(is_included));
    }
}
