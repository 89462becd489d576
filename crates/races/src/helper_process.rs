//! A race's own processes, and how they talk: a line at a time, on their standard input and output.
//!
//! Invariant: a helper ends when the race does, however that ends.
//! Kept by: it ends with its standard input, which the kernel closes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// No helper keeps the race waiting longer.
const LINE_TIMEOUT: Duration = Duration::from_secs(120);

/// One helper_process, from the race's side; ended when dropped.
pub(crate) struct HelperProcess {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    name: String,
}

impl HelperProcess {
    pub(crate) fn start(race: &str, experiment: &str) -> Result<HelperProcess> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([race, "--child", experiment])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {experiment}"))?;
        let (commands, output) = (child.stdin.take(), child.stdout.take().context("a pipe was asked for")?);
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

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Asks it to end, as an operator does, and waits until it has.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    pub(crate) fn send_command(&mut self, command: &str) -> Result<()> {
        let commands = self.commands.as_mut().context("it has been let go")?;
        writeln!(commands, "{command}").with_context(|| format!("{} is gone", self.name))
    }

    /// Waits for its next line, which begins with `word`, and returns the rest.
    pub(crate) fn expect_line(&mut self, word: &str) -> Result<String> {
        let line = self
            .lines
            .recv_timeout(LINE_TIMEOUT)
            .with_context(|| format!("{} never said {word}", self.name))?;
        let rest = line.strip_prefix(word).map(|rest| rest.trim().to_owned());
        rest.with_context(|| format!("{} said {line:?} where {word:?} was due", self.name))
    }

    /// Lets it end by itself.
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
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says a line to the race.
pub(crate) fn announce(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

/// The race's next command; none when it has let go.
pub(crate) fn next_command() -> Option<String> {
    io::stdin().lines().next()?.ok()
}

/// Resolves when the race lets go.
pub(crate) async fn released() {
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        drop(sender);
    });
    let _ = receiver.await;
}
