//! Starting programs that die with us.
//!
//! Invariant: every program started here gets its death signal when this process ends, even by SIGKILL.
//! Kept by: the parent-death signal, which the kernel ties to the *thread* that forked. A test's thread ends with its
//! test, so one thread that never ends does all the forking.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use libc::c_int;

type Job = (Command, SyncSender<io::Result<Child>>);

/// Starts `command` in a process group of its own (a Ctrl-C in the terminal is ours to handle, not the server's);
/// `death_signal` reaches it when this process is gone.
pub(crate) fn spawn(mut command: Command, death_signal: c_int) -> io::Result<Child> {
    static SPAWNER: OnceLock<SyncSender<Job>> = OnceLock::new();
    die_with_us(command.process_group(0), death_signal);
    let (reply, answer) = sync_channel(1);
    SPAWNER.get_or_init(start_spawner).send((command, reply)).expect("the spawner never ends");
    answer.recv().expect("the spawner answers every job")
}

/// Waits for a program that ends by itself, and kills it when it doesn't: then there is no status.
pub(crate) fn finish(child: &mut Child, deadline: Duration) -> io::Result<Option<ExitStatus>> {
    const POLL: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

fn start_spawner() -> SyncSender<Job> {
    let (jobs, inbox) = sync_channel::<Job>(0);
    let run = move || {
        for (mut command, reply) in inbox {
            // The caller waits for it; it can't be gone.
            let _ = reply.send(command.spawn());
        }
    };
    thread::Builder::new().name("sandbox-spawner".into()).spawn(run).expect("the system can start a thread");
    jobs
}

/// Runs after the change of user, which would clear the signal.
fn die_with_us(command: &mut Command, death_signal: c_int) {
    let owner = std::process::id();
    let bind = move || {
        // SAFETY: prctl with these arguments takes no pointers.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, death_signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The owner may have died before the line above: then no signal will ever come.
        // SAFETY: getppid can't fail.
        if u32::try_from(unsafe { libc::getppid() }) == Ok(owner) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ESRCH))
        }
    };
    // SAFETY: between fork and exec, `bind` makes two async-signal-safe calls and allocates nothing.
    unsafe { command.pre_exec(bind) };
}
