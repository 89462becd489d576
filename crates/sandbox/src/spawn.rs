//! Spawning of programs that end with this process.
//!
//! Invariant: every program spawned here gets its death signal when this process ends, even by
//! SIGKILL.
//! Enforced by: the parent-death signal. The kernel ties it to the *thread* that forked, and a
//! test's thread ends with its test. So one thread that never ends spawns all programs.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;

/// A command, and the channel for its child.
type SpawnJob = (Command, SyncSender<io::Result<Child>>);

/// Spawns `command` in its own process group, so that Ctrl-C doesn't reach the server.
///
/// The kernel sends `death_signal` to it when this process ends.
pub(crate) fn spawn(mut command: Command, death_signal: c_int) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<SpawnJob>> = OnceLock::new();
    set_death_signal(command.process_group(0), death_signal);
    let (reply, response) = sync_channel(1);
    SPAWNER.get_or_init(start_spawner).send((command, reply)).expect("the spawner thread never ends");
    response.recv().expect("the spawner replies to every job")
}

/// Waits until a program ends. After the timeout, kills it and returns `None`.
pub(crate) fn wait_with_timeout(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    let started_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started_at.elapsed() > timeout {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn start_spawner() -> SyncSender<SpawnJob> {
    let (jobs, inbox) = sync_channel::<SpawnJob>(0);
    let run = move || {
        for (mut command, reply) in inbox {
            // The caller waits for the reply, so this doesn't fail.
            let _ = reply.send(command.spawn());
        }
    };
    thread::Builder::new().name("sandbox-spawner".into()).spawn(run).expect("the system can start a thread");
    jobs
}

/// Sets the parent-death signal, after the change of user, which would clear it.
fn set_death_signal(command: &mut Command, death_signal: c_int) {
    let owner = std::process::id();
    let bind = move || {
        // SAFETY: `prctl` with these arguments takes no pointers.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, death_signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // If the owner has ended before `prctl`, no signal will be sent.
        // SAFETY: `getppid` can't fail.
        if u32::try_from(unsafe { libc::getppid() }) == Ok(owner) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    };
    // SAFETY: after the fork, `bind` makes two async-signal-safe calls and doesn't allocate.
    unsafe { command.pre_exec(bind) };
}
