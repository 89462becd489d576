//! Process of a server: starts, controls and stops it.
//!
//! Invariant: at most one process tree of a server runs at a time, in its own folder and on its
//! own ports.
//! Enforced by: one mutex around the child; a new child starts only when no process uses the
//! folder.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;
use parking_lot::Mutex;

use crate::error::StartError;
use crate::folder::TempFolder;
use crate::system_user::SystemUser;
use crate::{proc, spawn};

/// Interval between two checks of the process.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// File with the server's output, in its folder.
const LOG_FILE: &str = "log";
/// Number of log lines in an error.
const ERROR_LOG_LINES: usize = 25;

/// Program, arguments and signals of a server. Every restart uses the same ones.
#[derive(Debug)]
pub(crate) struct LaunchSpec {
    /// Name in errors.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// User of the process, if not the current one.
    pub(crate) user: Option<SystemUser>,
    /// Signal that the kernel sends to the server when this process ends.
    pub(crate) death_signal: c_int,
    /// Signal of a graceful stop.
    pub(crate) stop_signal: c_int,
    /// Timeout of a start, and of a stop.
    pub(crate) timeout: Duration,
    /// Unix socket for the readiness check. A TCP port could belong to another server.
    pub(crate) socket: PathBuf,
    /// Readiness check; takes `socket`.
    pub(crate) is_ready: fn(&Path) -> bool,
}

/// Running server and its folder; dropping it kills the server and removes the folder.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    launch: LaunchSpec,
    /// Usable after a panic under the lock: each call checks the child's state first.
    child: Mutex<Child>,
    folder: Arc<TempFolder>,
}

impl ServerProcess {
    pub(crate) fn start(launch: LaunchSpec, folder: Arc<TempFolder>) -> Result<ServerProcess, StartError> {
        let child = start_and_wait(&launch, &folder)?;
        Ok(ServerProcess { launch, child: Mutex::new(child), folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    pub(crate) fn is_running(&self) -> bool {
        !has_ended(&mut self.child.lock())
    }

    pub(crate) fn log(&self) -> String {
        read_log(&self.folder, 0)
    }

    pub(crate) fn freeze(&self) {
        let _child = self.child.lock();
        proc::stop_processes_in(self.folder.path());
    }

    pub(crate) fn thaw(&self) {
        let _child = self.child.lock();
        self.continue_all();
    }

    pub(crate) fn kill(&self) {
        kill_and_reap(&mut self.child.lock(), &self.folder);
    }

    pub(crate) fn revive(&self) -> Result<(), StartError> {
        let mut child = self.child.lock();
        if !has_ended(&mut child) {
            return Ok(());
        }
        proc::kill_processes_in(self.folder.path());
        let started_at = Instant::now();
        loop {
            match start_and_wait(&self.launch, &self.folder) {
                Ok(new) => {
                    *child = new;
                    return Ok(());
                }
                // Another process uses the port temporarily. The port must not change, so this
                // waits.
                Err(StartError::PortTaken { .. }) if started_at.elapsed() < self.launch.timeout => {
                    thread::sleep(POLL_INTERVAL)
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn stop(&self) -> Result<(), StartError> {
        self.stop_by(self.launch.stop_signal)
    }

    pub(crate) fn restart(&self) -> Result<(), StartError> {
        self.stop()?;
        self.revive()
    }

    /// Kills the server and removes its folder. For servers in statics, which are never dropped.
    pub(crate) fn discard(&self) {
        self.kill();
        self.folder.remove();
    }

    /// Stops the server with `signal` instead of its `stop_signal`.
    pub(crate) fn stop_by(&self, signal: c_int) -> Result<(), StartError> {
        let mut child = self.child.lock();
        if has_ended(&mut child) {
            return Ok(());
        }
        self.continue_all();
        proc::signal(child.id(), signal);
        let started_at = Instant::now();
        while !has_ended(&mut child) {
            let waited = started_at.elapsed();
            if waited > self.launch.timeout {
                let log = last_lines(&read_log(&self.folder, 0));
                return Err(StartError::Stuck { name: self.launch.name, waited, log });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends SIGCONT to every process of the server.
    fn continue_all(&self) {
        for pid in proc::processes_in(self.folder.path()) {
            proc::signal(pid, libc::SIGCONT);
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the server and waits until it is ready.
fn start_and_wait(launch: &LaunchSpec, folder: &TempFolder) -> Result<Child, StartError> {
    let (command, log_start) = command(launch, folder)?;
    let spawned = spawn::spawn(command, launch.death_signal);
    let mut child =
        spawned.map_err(|source| StartError::Spawn { program: launch.program.clone(), source })?;
    let started_at = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            proc::kill_processes_in(folder.path());
            let (name, log) = (launch.name, read_log(folder, log_start));
            return Err(match port_taken(launch, &log) {
                Some(error) => error,
                None => StartError::Exited { name, status, log: last_lines(&log) },
            });
        }
        if (launch.is_ready)(&launch.socket) {
            // Postgres starts even if only one of its addresses is free, so its log is checked.
            return match port_taken(launch, &read_log(folder, log_start)) {
                Some(error) => {
                    kill_and_reap(&mut child, folder);
                    Err(error)
                }
                None => Ok(child),
            };
        }
        let waited = started_at.elapsed();
        if waited > launch.timeout {
            kill_and_reap(&mut child, folder);
            let log = last_lines(&read_log(folder, log_start));
            return Err(StartError::Silent { name: launch.name, waited, log });
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns an error if the log shows that another process uses the port.
fn port_taken(launch: &LaunchSpec, log: &str) -> Option<StartError> {
    let is_taken = log.contains("Address already in use");
    is_taken.then(|| StartError::PortTaken { name: launch.name, log: last_lines(log) })
}

/// Returns the command, which appends to the log, and the log's current length.
fn command(launch: &LaunchSpec, folder: &TempFolder) -> Result<(Command, usize), StartError> {
    let path = folder.path().join(LOG_FILE);
    let open = || {
        let log = File::options().create(true).append(true).open(&path)?;
        let length = log.metadata()?.len();
        Ok((log.try_clone()?, log, length))
    };
    let (out, err, length) =
        open().map_err(|source| StartError::TempFolder { path: path.clone(), source })?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    if let Some(user) = launch.user {
        // As root, std also clears the supplementary groups.
        command.uid(user.uid).gid(user.gid);
    }
    Ok((command, usize::try_from(length).unwrap_or(usize::MAX)))
}

fn kill_and_reap(child: &mut Child, folder: &TempFolder) {
    // Both calls fail only if the child was already reaped.
    let _ = child.kill();
    let _ = child.wait();
    proc::kill_processes_in(folder.path());
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

/// Returns the log from the byte offset `start`.
fn read_log(folder: &TempFolder, start: usize) -> String {
    let bytes = fs::read(folder.path().join(LOG_FILE)).unwrap_or_default();
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
}

/// Returns the last lines of a log.
pub(crate) fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(ERROR_LOG_LINES)..].join("\n")
}

/// Implements the control functions for a type with a field `server`.
macro_rules! server_controls {
    ($kind:ident) => {
        impl $kind {
            /// Returns the pid of the server's main process. After a kill, it is the pid of the
            /// killed process.
            pub fn pid(&self) -> u32 {
                self.server.pid()
            }

            /// Returns the server's log since its first start.
            pub fn log(&self) -> String {
                self.server.log()
            }

            /// Stops every process of the server with SIGSTOP: its sockets stay open and nothing
            /// replies. Returns when all processes are stopped.
            pub fn freeze(&self) {
                self.server.freeze();
            }

            /// Continues a frozen server.
            pub fn thaw(&self) {
                self.server.thaw();
            }

            /// Kills every process of the server with SIGKILL and waits until all have ended.
            pub fn kill(&self) {
                self.server.kill();
            }

            /// Restarts a server that has ended, with the same ports, files and settings, and waits
            /// until it is ready. Does nothing if the server runs.
            ///
            /// # Errors
            /// Fails like the first start.
            pub fn revive(&self) -> Result<(), StartError> {
                self.server.revive()
            }

            /// Stops the server gracefully and waits until it has ended.
            ///
            /// # Errors
            /// Fails if it doesn't stop in time.
            pub fn stop(&self) -> Result<(), StartError> {
                self.server.stop()
            }

            /// Stops the server gracefully, then starts it again.
            ///
            /// # Errors
            /// Fails like the first start, or if the server doesn't stop in time.
            pub fn restart(&self) -> Result<(), StartError> {
                self.server.restart()
            }
        }
    };
}
pub(crate) use server_controls;
