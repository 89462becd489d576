//! Helper processes of a race. They exchange lines with the race over standard input and output.
//!
//! Invariant: a helper ends when the race ends, for any reason.
//! Enforced by: a helper that waits for commands ends when its standard input is closed. The kernel
//! closes it when the race ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Maximum time to wait for a line from a helper.
const LINE_TIMEOUT: Duration = Duration::from_secs(120);

/// Handle that the race has of a helper. Kills the helper on drop.
pub(crate) struct HelperProcess {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl HelperProcess {
    /// Starts this program with `--child experiment`.
    pub(crate) fn start(race: &str, experiment: &str) -> Result<HelperProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([race, "--child", experiment])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {experiment}"))?;
        let (commands, output) = (child.stdin.take(), child.stdout.take().context("stdout is piped")?);
        let (sender, lines) = sync_channel(16);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(HelperProcess { child, commands, lines, name: experiment.into() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the helper with SIGKILL.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Sends SIGTERM, and waits until the helper has ended.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let pid =
            i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("the process id is not valid")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// Sends a line to the helper.
    pub(crate) fn send_command(&mut self, command: &str) -> Result<()> {
        let commands = self.commands.as_mut().context("the helper was released")?;
        writeln!(commands, "{command}").with_context(|| format!("{} has ended", self.name))
    }

    /// Waits for the next line, which must start with `word`, and returns the rest.
    pub(crate) fn expect_line(&mut self, word: &str) -> Result<String> {
        let line = self
            .lines
            .recv_timeout(LINE_TIMEOUT)
            .with_context(|| format!("{} never printed {word}", self.name))?;
        let rest = line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        rest.with_context(|| format!("{} printed {line:?} instead of {word:?}", self.name))
    }

    /// Closes the helper's standard input, and waits until it has ended.
    pub(crate) fn release(mut self) -> Result<()> {
        self.commands = None;
        let report = self.expect_line("{")?;
        ensure!(report.contains("result"), "{} ended with {report}", self.name);
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // Both fail only if the helper has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a line to the race. Called in a helper.
pub(crate) fn announce(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

/// Waits for the next line from the race. Returns `None` if the race released the helper. Called in
/// a helper.
pub(crate) fn next_command() -> Option<String> {
    io::stdin().lines().next()?.ok()
}

/// Waits until the race releases the helper. Called in a helper.
pub(crate) async fn released() {
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        drop(sender);
    });
    let _ = receiver.await;
}
