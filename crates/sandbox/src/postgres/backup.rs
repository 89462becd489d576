//! Copies of a running server, as `pg_basebackup` makes them; not every installation has that.
//!
//! Invariant: a copy is consistent once the log from its start to its end is replayed, and says so itself.
//! Kept by: the server's own backup mode around the copying, and the `backup_label` that ends it.
//! Not here: tablespaces, which a sandbox has none of; a copy of one fails.

use std::fs;
use std::path::Path;

use super::Postgres;
use super::cluster::Cluster;
use crate::copy::copy_folder;
use crate::error::StartError;
use crate::user::give;

/// It says how far the copy is to be replayed, so it may not be older than anything else.
const CONTROL: &str = "global/pg_control";
/// Folders whose files mean nothing to another server. The log is fetched from where the copy is started.
const EMPTIED: &[&str] = &[
    "pg_wal",
    "pg_replslot",
    "pg_dynshmem",
    "pg_notify",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];
const LEFT_OUT: &[&str] = &[
    CONTROL,
    "postmaster.pid",
    "postmaster.opts",
    "backup_label",
    "backup_label.old",
    "recovery.signal",
    "standby.signal",
];

/// Copies the data of a running server into a folder of its own.
pub(super) fn copy_running(original: &Postgres) -> Result<Cluster, StartError> {
    let cluster = copy_bare(&original.cluster)?;
    let (from, data) = (original.cluster.data(), cluster.data());
    let mut session = original.session("postgres").map_err(StartError::original)?;
    // At once, and not spread over the time to the next checkpoint.
    session.run("SELECT pg_backup_start('sandbox', true)").map_err(StartError::original)?;
    copy_folder(&from, &data, cluster.user, &belongs).map_err(StartError::at(&data))?;
    let control = data.join(CONTROL);
    let copied = fs::copy(from.join(CONTROL), &control).and_then(|_| give(&control, cluster.user));
    copied.map_err(StartError::at(&control))?;
    let rows = session.run("SELECT labelfile FROM pg_backup_stop(false)").map_err(StartError::original)?;
    let label: String = rows.into_iter().flatten().flatten().collect();
    cluster.write("data/backup_label", &label)?;
    Ok(cluster)
}

/// A cluster without data, for a copy of another's.
pub(super) fn copy_bare(original: &Cluster) -> Result<Cluster, StartError> {
    let Cluster { programs, password, tls, archive, .. } = original;
    let mut cluster = Cluster::empty(programs.clone())?;
    cluster.password.clone_from(password);
    cluster.archive.clone_from(archive);
    if let Some(tls) = tls {
        cluster.trust(tls.ca_pem.clone(), tls.wrong_ca_pem.clone())?;
    }
    Ok(cluster)
}

fn belongs(path: &Path) -> bool {
    let emptied = path.parent().is_some_and(|folder| EMPTIED.iter().any(|name| folder == Path::new(name)));
    let left_out = LEFT_OUT.iter().any(|name| path == Path::new(name));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !emptied && !left_out && name != "pg_internal.init" && !name.starts_with("pgsql_tmp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_folders_of_the_log_and_the_slots_but_not_what_is_in_them() {
        let belongs = |path| belongs(Path::new(path));
        assert!(
            ["pg_wal", "pg_replslot", "base/1/1259", "PG_VERSION", "global/1262"].into_iter().all(belongs)
        );
        let strange = [
            "pg_wal/000000010000000000000001",
            "pg_wal/archive_status",
            "pg_replslot/mine",
            "postmaster.pid",
            "global/pg_control",
            "base/1/pg_internal.init",
            "base/pgsql_tmp",
        ];
        assert!(!strange.into_iter().any(belongs));
    }
}
