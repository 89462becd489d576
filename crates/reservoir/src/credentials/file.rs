//! Password from a file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{
    AuthSecret, AuthToken, MAX_SECRET_BYTES, SecretError, TokenError, TokenFuture, TokenProvider,
    parse_secret,
};

/// Reads the password from a file for each token, so that the next dial uses a rotated password.
///
/// One trailing newline is removed. The file must be a regular file, or a link to one, of at most
/// 64 KiB.
///
/// Replace the file by renaming a new one over it: a file that is written in place can be read
/// while it is incomplete. An empty file is an error.
///
/// ```no_run
/// use forebay_reservoir::{PasswordFile, TokenProvider};
///
/// # async fn example() -> Result<(), forebay_reservoir::TokenError> {
/// let token = PasswordFile::new("/run/secrets/db-password").token().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PasswordFile {
    path: PathBuf,
}

impl PasswordFile {
    /// Creates a provider that reads this path. The file is opened only when a token is requested.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        PasswordFile { path: path.into() }
    }

    async fn read_token(&self) -> Result<AuthToken, TokenError> {
        let path = self.path.clone();
        // Reads may block, for example on a network file system, so they run on a blocking thread.
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let secret = read.unwrap_or(Err(PasswordFileError::BrokeOff));
        let secret =
            secret.map_err(|error| TokenError(format!("password file {}: {error}", self.path.display())))?;
        Ok(AuthToken { secret, valid_for: None })
    }
}

impl TokenProvider for PasswordFile {
    fn token(&self) -> TokenFuture<'_> {
        Box::pin(self.read_token())
    }
}

#[derive(Debug, thiserror::Error)]
enum PasswordFileError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("isn't a regular file")]
    NotAFile,
    #[error("reading it broke off")]
    BrokeOff,
    #[error("{0}")]
    Content(#[from] SecretError),
}

fn read(path: &Path) -> Result<AuthSecret, PasswordFileError> {
    // Opening a named pipe would block until it has a writer: check the file type first.
    if !fs::metadata(path)?.is_file() {
        return Err(PasswordFileError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(parse_secret(bytes)?)
}
