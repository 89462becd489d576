//! Backend processes of a Postgres: list them by user, stop and continue one.

use std::fs;

use super::Postgres;
use crate::proc;

impl Postgres {
    /// Returns the backends of this user, by their titles (`postgres: USER DATABASE HOST(PORT)
    /// STATE`).
    ///
    /// Backends that still authenticate, which pg_stat_activity may not list, are included.
    pub fn backends(&self, user: &str) -> Vec<u32> {
        let start = format!("postgres: {user} ");
        let serves_user = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|title| title.starts_with(start.as_bytes()))
        };
        proc::processes_in(self.cluster.folder.path()).into_iter().filter(serves_user).collect()
    }

    /// Stops one process of this server with SIGSTOP: its connections stay open. Does nothing if
    /// the process has ended or belongs to another server.
    pub fn freeze_backend(&self, pid: u32) {
        self.signal_backend(pid, libc::SIGSTOP);
    }

    /// Continues a process that [`Postgres::freeze_backend`] has stopped.
    pub fn thaw_backend(&self, pid: u32) {
        self.signal_backend(pid, libc::SIGCONT);
    }

    fn signal_backend(&self, pid: u32, number: libc::c_int) {
        if proc::processes_in(self.cluster.folder.path()).contains(&pid) {
            proc::signal(pid, number);
        }
    }
}
