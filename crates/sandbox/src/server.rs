//! One running server, whatever its kind: start, control, end.
//!
//! Invariant: at most one process tree of a server lives at a time, in the server's own folder and on its own ports.
//! Kept by: one mutex around the child; a new one starts only when nothing lives in the folder any more.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;

use crate::error::StartError;
use crate::folder::Folder;
use crate::user::User;
use crate::{proc, process};

const POLL: Duration = Duration::from_millis(5);
const LOG: &str = "log";
const TAIL_LINES: usize = 25;

/// How to run a server; the same for every life of it.
#[derive(Debug)]
pub(crate) struct Launch {
    /// What errors call it.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Whom to run it as, where that is not us.
    pub(crate) user: Option<User>,
    /// What the kernel sends it when we die.
    pub(crate) death_signal: c_int,
    /// What asks it to stop in good order.
    pub(crate) stop_signal: c_int,
    /// How long it may take to answer, or to stop.
    pub(crate) deadline: Duration,
    /// Its Unix socket. Readiness is asked there, since a port might answer for somebody else's server.
    pub(crate) socket: PathBuf,
    pub(crate) is_ready: fn(&Path) -> bool,
}

/// A server and its folder; dropping it ends the one and removes the other.
#[derive(Debug)]
pub(crate) struct Server {
    launch: Launch,
    child: Mutex<Child>,
    folder: Arc<Folder>,
}

impl Server {
    pub(crate) fn start(launch: Launch, folder: Arc<Folder>) -> Result<Server, StartError> {
        let child = run(&launch, &folder)?;
        Ok(Server { launch, child: Mutex::new(child), folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child().id()
    }

    pub(crate) fn is_running(&self) -> bool {
        !has_ended(&mut self.child())
    }

    pub(crate) fn log(&self) -> String {
        read_log(&self.folder, 0)
    }

    pub(crate) fn freeze(&self) {
        let _child = self.child();
        proc::stop_residents(self.folder.path());
    }

    pub(crate) fn thaw(&self) {
        let _child = self.child();
        self.wake();
    }

    pub(crate) fn kill(&self) {
        end(&mut self.child(), &self.folder);
    }

    pub(crate) fn revive(&self) -> Result<(), StartError> {
        let mut child = self.child();
        if !has_ended(&mut child) {
            return Ok(());
        }
        proc::kill_residents(self.folder.path());
        let begun = Instant::now();
        loop {
            match run(&self.launch, &self.folder) {
                Ok(new) => {
                    *child = new;
                    return Ok(());
                }
                // Somebody borrowed the port in between; it must be the same one, so wait for it.
                Err(StartError::PortTaken { .. }) if begun.elapsed() < self.launch.deadline => {
                    thread::sleep(POLL)
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

    /// Ends the server and removes its folder now: for statics, which are never dropped.
    pub(crate) fn discard(&self) {
        self.kill();
        self.folder.remove();
    }

    /// Stops it in another way than its usual one.
    pub(crate) fn stop_by(&self, signal: c_int) -> Result<(), StartError> {
        let mut child = self.child();
        if has_ended(&mut child) {
            return Ok(());
        }
        self.wake();
        proc::signal(child.id(), signal);
        let begun = Instant::now();
        while !has_ended(&mut child) {
            let waited = begun.elapsed();
            if waited > self.launch.deadline {
                let log = tail(&read_log(&self.folder, 0));
                return Err(StartError::Stuck { name: self.launch.name, waited, log });
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn wake(&self) {
        for pid in proc::residents(self.folder.path()) {
            proc::signal(pid, libc::SIGCONT);
        }
    }

    /// A panic while it is held leaves nothing half done that the next call wouldn't see for itself.
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the server and waits until it answers.
fn run(launch: &Launch, folder: &Folder) -> Result<Child, StartError> {
    let (command, log_start) = command(launch, folder)?;
    let spawned = process::spawn(command, launch.death_signal);
    let mut child =
        spawned.map_err(|source| StartError::Spawn { program: launch.program.clone(), source })?;
    let begun = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            proc::kill_residents(folder.path());
            let (name, log) = (launch.name, read_log(folder, log_start));
            return Err(match port_taken(launch, &log) {
                Some(error) => error,
                None => StartError::Exited { name, status, log: tail(&log) },
            });
        }
        if (launch.is_ready)(&launch.socket) {
            // Postgres goes on with what it got as long as that is one of the addresses.
            return match port_taken(launch, &read_log(folder, log_start)) {
                Some(error) => {
                    end(&mut child, folder);
                    Err(error)
                }
                None => Ok(child),
            };
        }
        let waited = begun.elapsed();
        if waited > launch.deadline {
            end(&mut child, folder);
            let log = tail(&read_log(folder, log_start));
            return Err(StartError::Silent { name: launch.name, waited, log });
        }
        thread::sleep(POLL);
    }
}

fn port_taken(launch: &Launch, log: &str) -> Option<StartError> {
    let taken = log.contains("Address already in use");
    taken.then(|| StartError::PortTaken { name: launch.name, log: tail(log) })
}

/// The command, which appends to the log, and where in the log its words begin.
fn command(launch: &Launch, folder: &Folder) -> Result<(Command, usize), StartError> {
    let path = folder.path().join(LOG);
    let open = || {
        let log = File::options().create(true).append(true).open(&path)?;
        let length = log.metadata()?.len();
        Ok((log.try_clone()?, log, length))
    };
    let (out, err, length) = open().map_err(|source| StartError::Folder { path: path.clone(), source })?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    if let Some(user) = launch.user {
        // As root, std clears the supplementary groups along with this.
        command.uid(user.uid).gid(user.gid);
    }
    Ok((command, usize::try_from(length).unwrap_or(usize::MAX)))
}

fn end(child: &mut Child, folder: &Folder) {
    // Both fail only when it has ended and was reaped before.
    let _ = child.kill();
    let _ = child.wait();
    proc::kill_residents(folder.path());
}

fn has_ended(child: &mut Child) -> bool {
    !matches!(child.try_wait(), Ok(None))
}

fn read_log(folder: &Folder, start: usize) -> String {
    let bytes = fs::read(folder.path().join(LOG)).unwrap_or_default();
    String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned()
}

/// The last lines of a log.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The calls that control a server, the same for each kind: all go to its field `server`.
macro_rules! controls {
    ($kind:ident) => {
        impl $kind {
            /// The server's main process; the last one, when it was killed.
            pub fn pid(&self) -> u32 {
                self.server.pid()
            }

            /// Everything that the server has logged, over all its lives.
            pub fn log(&self) -> String {
                self.server.log()
            }

            /// Stops every process of the server with SIGSTOP: its sockets stay open, and nothing answers. Returns
            /// when all of them stand still.
            pub fn freeze(&self) {
                self.server.freeze();
            }

            /// Lets a frozen server go on.
            pub fn thaw(&self) {
                self.server.thaw();
            }

            /// Kills every process of the server with SIGKILL, as a crash would. Returns when all of them are gone.
            pub fn kill(&self) {
                self.server.kill();
            }

            /// Starts a server that has ended once more, with the same ports, files and settings. Returns when it
            /// answers; does nothing while it runs.
            ///
            /// # Errors
            /// As for the first start.
            pub fn revive(&self) -> Result<(), StartError> {
                self.server.revive()
            }

            /// Asks the server to stop in good order, and returns when it has ended.
            ///
            /// # Errors
            /// When it won't stop.
            pub fn stop(&self) -> Result<(), StartError> {
                self.server.stop()
            }

            /// Asks the server to stop in good order, then revives it.
            ///
            /// # Errors
            /// As for the first start, or when it won't stop.
            pub fn restart(&self) -> Result<(), StartError> {
                self.server.restart()
            }
        }
    };
}
pub(crate) use controls;
