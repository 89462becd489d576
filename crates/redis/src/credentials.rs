//! Credentials: the user name and the password of each attempt to connect.
//!
//! Invariant: a provider's code runs in a task of its own, never in the connection worker.
//! Enforced by: [`requested_credentials`] spawns that task, and aborts it if the attempt ends.
//! Secrets appear in no error, log or `Debug` output of this crate.

use std::fs::{self, File};
use std::future::Future;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle, JoinSet, spawn_blocking};

use crate::config::RedisPassword;

/// Maximum size of a password file, in bytes.
const MAX_FILE_BYTES: usize = 64 << 10;

/// Source of credentials that change, such as a password file or a service that issues tokens.
///
/// The client calls it at each attempt to connect, also for dedicated connections. A connection
/// that is open keeps its login. An error fails the attempt, and the next attempt follows
/// [`Config::reconnect`](crate::Config::reconnect). The call is part of the attempt, so
/// [`Config::connect_timeout`](crate::Config::connect_timeout) limits it; then it is dropped.
///
/// The future must not block its thread: it runs on the client's runtime, and a blocked call can't
/// be dropped. Put blocking work on a blocking thread, and limit how many of them wait.
///
/// ```
/// use std::sync::Arc;
///
/// use forebay_redis::{
///     Config, CredentialsError, CredentialsFuture, CredentialsProvider, RedisCredentials,
/// };
///
/// struct Tokens {
///     user: String,
/// }
///
/// async fn issue_token(user: &str) -> Result<String, std::io::Error> {
///     Ok(format!("a token for {user}"))
/// }
///
/// impl CredentialsProvider for Tokens {
///     fn credentials(&self) -> CredentialsFuture<'_> {
///         Box::pin(async {
///             let token = issue_token(&self.user).await;
///             let token = token.map_err(|error| CredentialsError::new(error.to_string()))?;
///             Ok(RedisCredentials::new(token).username(&*self.user))
///         })
///     }
/// }
///
/// let mut config = Config::default();
/// config.credentials = Some(Arc::new(Tokens { user: "app".into() }));
/// ```
pub trait CredentialsProvider: Send + Sync + 'static {
    /// Returns the credentials for the next attempt to connect.
    fn credentials(&self) -> CredentialsFuture<'_>;
}

/// Future of [`CredentialsProvider::credentials`].
pub type CredentialsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<RedisCredentials, CredentialsError>> + Send + 'a>>;

/// User name and password of one connection. `Debug` output omits the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisCredentials {
    pub(crate) username: Option<String>,
    pub(crate) password: RedisPassword,
}

impl RedisCredentials {
    /// Creates credentials for the user of [`Config::username`](crate::Config::username). Without
    /// one, the server's `default` user is meant.
    pub fn new(password: impl Into<RedisPassword>) -> Self {
        RedisCredentials { username: None, password: password.into() }
    }

    /// Sets the ACL user.
    #[must_use]
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }
}

/// Why a [`CredentialsProvider`] has no credentials.
///
/// It holds a text only, so that no code of the provider runs when the error is logged or dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

impl CredentialsError {
    /// Creates an error. The text is logged: it must not contain a secret.
    pub fn new(text: impl Into<String>) -> Self {
        CredentialsError(text.into())
    }
}

/// Calls the provider in a task of its own. Dropping the future ends that task.
pub(crate) async fn requested_credentials(
    provider: Arc<dyn CredentialsProvider>,
) -> Result<RedisCredentials, CredentialsError> {
    let mut task = JoinSet::new();
    task.spawn(async move { provider.credentials().await });
    match task.join_next().await {
        Some(Ok(credentials)) => credentials,
        // The panic's text may contain a secret. The panic hook has printed it.
        Some(Err(_)) | None => Err(CredentialsError::new("the provider panicked")),
    }
}

/// Reads the password from a file at each attempt to connect, so that a rotated password is used.
///
/// One trailing newline is removed. The file must be a regular file, or a link to one, of at most
/// 64 KiB of UTF-8. The user is [`Config::username`](crate::Config::username).
///
/// Replace the file by renaming a new one over it: a file that is written in place can be read
/// while it is incomplete. An empty file is an error.
///
/// A read can hang, for example on a network file system. Until it ends, further attempts fail
/// without another read, so that hung reads don't occupy more and more threads.
///
/// ```
/// # use std::sync::Arc;
/// use forebay_redis::{IntoConfig, RedisPasswordFile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config = "redis://app@redis.example".into_config()?;
/// config.credentials = Some(Arc::new(RedisPasswordFile::new("/run/secrets/redis-password")));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisPasswordFile {
    path: PathBuf,
    /// The last read whose attempt ended first.
    left_read: Arc<Mutex<Option<AbortHandle>>>,
}

impl RedisPasswordFile {
    /// Creates a provider that reads this path. The file is opened only at an attempt to connect.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        RedisPasswordFile { path: path.into(), left_read: Arc::default() }
    }

    /// Runs `read` on a blocking thread, unless a read that an attempt has left still runs.
    async fn read_with(
        &self,
        read: impl FnOnce(&Path) -> Result<RedisPassword, RedisPasswordFileError> + Send + 'static,
    ) -> Result<RedisPassword, RedisPasswordFileError> {
        if self.left_read.lock().as_ref().is_some_and(|left| !left.is_finished()) {
            return Err(RedisPasswordFileError::StillReading);
        }
        let path = self.path.clone();
        let mut running = RunningRead { file: self, task: spawn_blocking(move || read(&path)) };
        (&mut running.task).await.unwrap_or(Err(RedisPasswordFileError::Cancelled))
    }
}

/// A read in progress. If it is dropped before its end, the file remembers it.
struct RunningRead<'a> {
    file: &'a RedisPasswordFile,
    task: JoinHandle<Result<RedisPassword, RedisPasswordFileError>>,
}

impl Drop for RunningRead<'_> {
    fn drop(&mut self) {
        if !self.task.is_finished() {
            *self.file.left_read.lock() = Some(self.task.abort_handle());
        }
    }
}

impl CredentialsProvider for RedisPasswordFile {
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(async {
            let password = self.read_with(read_password).await.map_err(|error| {
                let path = self.path.display();
                CredentialsError::new(format!("the password file {path} can't be used: {error}"))
            })?;
            Ok(RedisCredentials::new(password))
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum RedisPasswordFileError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it isn't a regular file")]
    NotAFile,
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_FILE_BYTES} bytes")]
    TooLong,
    #[error("it isn't UTF-8")]
    NotText,
    #[error("the read was cancelled")]
    Cancelled,
    #[error("the previous read has not ended")]
    StillReading,
}

fn read_password(path: &Path) -> Result<RedisPassword, RedisPasswordFileError> {
    // Opening a named pipe would block until it has a writer: check the file type first.
    if !fs::metadata(path)?.is_file() {
        return Err(RedisPasswordFileError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(RedisPasswordFileError::TooLong);
    }
    let mut text = String::from_utf8(bytes).map_err(|_| RedisPasswordFileError::NotText)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() { Err(RedisPasswordFileError::Empty) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn attempts_during_a_hung_read_fail_without_another_read() {
        let file = RedisPasswordFile::new("password");
        let (release, released) = mpsc::sync_channel::<()>(1);
        let hung = file.read_with(move |_| {
            let _closed = released.recv();
            Ok("late".into())
        });
        assert!(hung.now_or_never().is_none(), "the attempt ends before the read");
        let error = file.credentials().await.unwrap_err();
        assert!(error.to_string().ends_with("can't be used: the previous read has not ended"), "{error}");
        let second = file.clone().read_with(|_| unreachable!("a second read started")).await;
        assert!(matches!(second, Err(RedisPasswordFileError::StillReading)));
        drop(release);
        while matches!(file.credentials().await, Err(error) if error.to_string().contains("not ended")) {
            tokio::task::yield_now().await;
        }
        assert_eq!(file.read_with(|_| Ok("new".into())).await.unwrap(), "new".into());
    }

    #[tokio::test]
    async fn reads_of_simultaneous_attempts_do_not_hinder_each_other() {
        let file = RedisPasswordFile::new("password");
        let (first_runs, second_runs) = mpsc::sync_channel::<()>(1);
        let first = file.read_with(move |_| {
            second_runs.recv().unwrap();
            Ok("first".into())
        });
        let second = file.read_with(move |_| {
            first_runs.send(()).unwrap();
            Ok("second".into())
        });
        let (first, second) = tokio::join!(first, second);
        assert_eq!((first.unwrap(), second.unwrap()), ("first".into(), "second".into()));
    }
}
