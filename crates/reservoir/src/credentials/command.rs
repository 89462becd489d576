//! Password from the output of a program.
//!
//! Invariant: when the future has resolved or is dropped, the program and its children have ended
//! or are killed.
//! Enforced by: the program leads its own process group, and dropping a `ChildProcess` kills the
//! group unless the program was waited for.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::{AuthToken, MAX_SECRET_BYTES, SecretError, TokenError, TokenFuture, TokenProvider, parse_secret};

/// Default timeout: long enough for a program that calls a remote service, short enough for a dial.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of the program's standard error in an error text.
const MAX_STDERR_BYTES: usize = 256;

/// Runs a program and uses its standard output as the password, without one trailing newline; at
/// most 64 KiB.
///
/// The program is started for each token, without a shell and with an empty standard input. If it
/// fails, the error contains its status and the first line of its standard error, which is logged:
/// the program must not print secrets there. Its arguments are never shown.
///
/// ```no_run
/// use std::time::Duration;
///
/// use forebay_reservoir::{TokenCache, PasswordCommand};
///
/// let command = PasswordCommand::new("aws")
///     .args(["rds", "generate-db-auth-token", "--hostname", "db.example.com"])
///     .args(["--port", "5432", "--username", "web"])
///     .valid_for(Duration::from_secs(15 * 60));
/// let tokens = TokenCache::new(command); // run once in 12 minutes
/// ```
pub struct PasswordCommand {
    program: OsString,
    args: Vec<OsString>,
    timeout: Duration,
    valid_for: Option<Duration>,
}

impl PasswordCommand {
    /// Creates a provider that runs this program: a path, or a name that is looked up in `PATH`.
    pub fn new(program: impl Into<OsString>) -> Self {
        PasswordCommand {
            program: program.into(),
            args: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            valid_for: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets how long the program may run before it and its children are killed. Default: 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long the password is valid. Default: unknown; then a
    /// [`TokenCache`](super::TokenCache) doesn't cache it.
    #[must_use]
    pub fn valid_for(mut self, valid_for: Duration) -> Self {
        self.valid_for = Some(valid_for);
        self
    }

    async fn run(&self) -> Result<AuthToken, PasswordCommandError> {
        let mut child =
            ChildProcess::start(&self.program, &self.args).map_err(PasswordCommandError::Start)?;
        let ended = tokio::time::timeout(self.timeout, child.wait()).await;
        let CommandOutput { stdout, first_line, status } =
            ended.map_err(|_| PasswordCommandError::Timeout(self.timeout))??;
        if !status.success() {
            return Err(PasswordCommandError::Failed { status, first_line });
        }
        Ok(AuthToken {
            secret: parse_secret(stdout).map_err(PasswordCommandError::Output)?,
            valid_for: self.valid_for,
        })
    }
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The arguments may contain a secret.
        f.debug_struct("PasswordCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

impl TokenProvider for PasswordCommand {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(async {
            let result = self.run().await;
            result
                .map_err(|error| TokenError(format!("password command {}: {error}", self.program.display())))
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum PasswordCommandError {
    #[error("can't be started: {0}")]
    Start(io::Error),
    #[error("its output can't be read: {0}")]
    Read(#[from] io::Error),
    #[error("didn't end within {0:?} and was killed")]
    Timeout(Duration),
    #[error("{status}{}{first_line}", if first_line.is_empty() { "" } else { ": " })]
    Failed { status: ExitStatus, first_line: String },
    #[error("what it says {0}")]
    Output(SecretError),
}

/// Guard of a started program. Dropping it kills the process group, unless the program was waited
/// for.
struct ChildProcess(Child);

struct CommandOutput {
    stdout: Vec<u8>,
    first_line: String,
    status: ExitStatus,
}

impl ChildProcess {
    fn start(program: &OsStr, args: &[OsString]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map(ChildProcess)
    }

    async fn wait(&mut self) -> Result<CommandOutput, PasswordCommandError> {
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let (stdout, first_line) =
            tokio::try_join!(read_stdout(stdout.expect("piped")), read_first_line(stderr.expect("piped")))?;
        Ok(CommandOutput { stdout, first_line, status: self.0.wait().await? })
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // The process id isn't reused before the process is waited for; then `id` returns `None`.
        let id = self.0.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(group) = id {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Fails as soon as the output is too long, so that the program is killed.
async fn read_stdout(stdout: impl AsyncRead + Unpin) -> Result<Vec<u8>, PasswordCommandError> {
    let mut output = Vec::new();
    stdout.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut output).await?;
    if output.len() > MAX_SECRET_BYTES {
        return Err(PasswordCommandError::Output(SecretError::TooLong));
    }
    Ok(output)
}

/// Returns the start of the first line; drains the rest, so that the program doesn't block on the
/// pipe.
async fn read_first_line(mut stderr: impl AsyncRead + Unpin) -> Result<String, PasswordCommandError> {
    let mut first = Vec::new();
    (&mut stderr).take(MAX_STDERR_BYTES as u64).read_to_end(&mut first).await?;
    tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await?;
    Ok(first_line(&first))
}

fn first_line(first: &[u8]) -> String {
    let line = String::from_utf8_lossy(first.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_text_is_one_line_without_control_characters() {
        assert_eq!(first_line(b""), "");
        assert_eq!(first_line(b"no such role\nat line 3\n"), "no such role");
        assert_eq!(first_line(b"\x1b[31mno\tsuch role\r\n"), "[31mno such role");
        assert_eq!(first_line(b"caf\xe9"), "caf\u{fffd}");
    }
}
