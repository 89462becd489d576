//! The processes of a server that serve clients: which they are, and how to stop one of them.

use std::fs;

use super::Postgres;
use crate::proc;

impl Postgres {
    /// Returns the processes that serve this user, by their titles (`postgres: USER DATABASE HOST(PORT) STATE`). Those that
    /// still authenticate, which pg_stat_activity may not list, are among them.
    pub fn backends(&self, user: &str) -> Vec<u32> {
        let start = format!("postgres: {user} ");
        let serves_user = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|title| title.starts_with(start.as_bytes()))
        };
        proc::residents(self.cluster.folder.path()).into_iter().filter(serves_user).collect()
    }

    /// Stops one process of this server (SIGSTOP): its connections stay open, and the kernel answers for it. One of another
    /// server, or that is gone, is left alone.
    pub fn freeze_backend(&self, pid: u32) {
        self.signal_backend(pid, libc::SIGSTOP);
    }

    /// Lets a process go on that [`Postgres::freeze_backend`] has stopped.
    pub fn thaw_backend(&self, pid: u32) {
        self.signal_backend(pid, libc::SIGCONT);
    }

    fn signal_backend(&self, pid: u32, number: libc::c_int) {
        if proc::residents(self.cluster.folder.path()).contains(&pid) {
            proc::signal(pid, number);
        }
    }
}
