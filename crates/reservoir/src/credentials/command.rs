//! A password that a program says.
//!
//! Invariant: when the answer is there, or nobody waits for it any more, the program has ended or is killed, along with what
//! it started.
//! Kept by: it leads a process group of its own, and whoever drops a `Running` kills the group, unless the program was waited
//! for.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::{Asking, MAX_SECRET_BYTES, TOO_LONG, Token, TokenError, TokenProvider, unwrapped};

/// Long enough for a program that asks a far service, short enough for a dial.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// What an error shows of the program's complaint.
const MAX_COMPLAINT_BYTES: usize = 256;

/// The password that a program says on its standard output. One newline at its end isn't part of it, and it has at most
/// 64 KiB.
///
/// The program is started for each token, without a shell, with nothing on its standard input. If it fails, its status and the
/// first line of its standard error are in the error, and so in logs: it shouldn't tell secrets there. Its arguments are never
/// shown.
///
/// ```no_run
/// use std::time::Duration;
///
/// use forebay_reservoir::{Cached, PasswordCommand};
///
/// let command = PasswordCommand::new("aws")
///     .args(["rds", "generate-db-auth-token", "--hostname", "db.example.com"])
///     .args(["--port", "5432", "--username", "web"])
///     .good_for(Duration::from_secs(15 * 60));
/// let tokens = Cached::new(command); // run once in 12 minutes
/// ```
pub struct PasswordCommand {
    program: OsString,
    args: Vec<OsString>,
    timeout: Duration,
    good_for: Option<Duration>,
}

impl PasswordCommand {
    /// This program: a path, or a name to be found on the `PATH`.
    pub fn new(program: impl Into<OsString>) -> Self {
        PasswordCommand {
            program: program.into(),
            args: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            good_for: None,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// How long it may run before it is killed, along with what it started; 10 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long what it says is good to connect with. By default nobody knows, and a [`Cached`](super::Cached) doesn't keep it.
    #[must_use]
    pub fn good_for(mut self, good_for: Duration) -> Self {
        self.good_for = Some(good_for);
        self
    }

    async fn ask(&self) -> Result<Token, Flaw> {
        let mut running = Running::start(&self.program, &self.args).map_err(Flaw::Start)?;
        let ended = tokio::time::timeout(self.timeout, running.end()).await;
        let Ended { said, complaint, status } = ended.map_err(|_| Flaw::Late(self.timeout))??;
        if !status.success() {
            return Err(Flaw::Failed { status, complaint });
        }
        Ok(Token { secret: unwrapped(said).map_err(Flaw::Said)?, good_for: self.good_for })
    }
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The arguments may tell a secret.
        f.debug_struct("PasswordCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

impl TokenProvider for PasswordCommand {
    fn token(&self) -> Asking<'_> {
        Box::pin(async {
            let asked = self.ask().await;
            asked.map_err(|flaw| TokenError(format!("password command {}: {flaw}", self.program.display())))
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum Flaw {
    #[error("can't be started: {0}")]
    Start(io::Error),
    #[error("its output can't be read: {0}")]
    Read(#[from] io::Error),
    #[error("didn't end within {0:?} and was killed")]
    Late(Duration),
    #[error("{status}{}{complaint}", if complaint.is_empty() { "" } else { ": " })]
    Failed { status: ExitStatus, complaint: String },
    #[error("what it says {0}")]
    Said(&'static str),
}

/// A program that nobody has waited for yet.
struct Running(Child);

struct Ended {
    said: Vec<u8>,
    complaint: String,
    status: ExitStatus,
}

impl Running {
    fn start(program: &OsStr, args: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map(Running)
    }

    async fn end(&mut self) -> Result<Ended, Flaw> {
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let (said, complaint) =
            tokio::try_join!(read_said(stdout.expect("piped")), read_complaint(stderr.expect("piped")))?;
        Ok(Ended { said, complaint, status: self.0.wait().await? })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The number is its own, and nobody else's, as long as it wasn't waited for; after that there is none.
        let id = self.0.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(group) = id {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Ends early with what is too long, for the program to be killed.
async fn read_said(stdout: impl AsyncRead + Unpin) -> Result<Vec<u8>, Flaw> {
    let mut said = Vec::new();
    stdout.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut said).await?;
    if said.len() > MAX_SECRET_BYTES {
        return Err(Flaw::Said(TOO_LONG));
    }
    Ok(said)
}

/// The first line, or its beginning. The rest is read too, and forgotten: the program is not to wait for us.
async fn read_complaint(mut stderr: impl AsyncRead + Unpin) -> Result<String, Flaw> {
    let mut first = Vec::new();
    (&mut stderr).take(MAX_COMPLAINT_BYTES as u64).read_to_end(&mut first).await?;
    tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
    Ok(complaint(&first))
}

fn complaint(first: &[u8]) -> String {
    let line = String::from_utf8_lossy(first.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_one_line_without_control_characters() {
        assert_eq!(complaint(b""), "");
        assert_eq!(complaint(b"no such role\nat line 3\n"), "no such role");
        assert_eq!(complaint(b"\x1b[31mno\tsuch role\r\n"), "[31mno such role");
        assert_eq!(complaint(b"caf\xe9"), "caf\u{fffd}");
    }
}
