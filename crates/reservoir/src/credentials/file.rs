//! A password in a file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Asking, MAX_SECRET_BYTES, Secret, Token, TokenError, TokenProvider, unwrapped};

/// The password in a file, read each time, so that the next dial uses what it was changed to. One newline at its end isn't
/// part of it. It is a regular file, or a link to one, of at most 64 KiB.
///
/// Replace the file by renaming a new one to its place: one that is written in place can be read when half of it is there.
/// (An empty one is an error.)
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
    /// The file at this path. It isn't looked at before a token is asked for.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        PasswordFile { path: path.into() }
    }

    async fn ask(&self) -> Result<Token, TokenError> {
        let path = self.path.clone();
        // A read can take its time, on a network's file system for one: not on the runtime's threads.
        let read = tokio::task::spawn_blocking(move || read(&path)).await;
        let secret = read.unwrap_or(Err(Flaw::Other("reading it broke off")));
        let secret =
            secret.map_err(|flaw| TokenError(format!("password file {}: {flaw}", self.path.display())))?;
        Ok(Token { secret, good_for: None })
    }
}

impl TokenProvider for PasswordFile {
    fn token(&self) -> Asking<'_> {
        Box::pin(self.ask())
    }
}

#[derive(Debug, thiserror::Error)]
enum Flaw {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Other(&'static str),
}

fn read(path: &Path) -> Result<Secret, Flaw> {
    // Opening a named pipe would wait for its writer, perhaps for ever: look first.
    if !fs::metadata(path)?.is_file() {
        return Err(Flaw::Other("isn't a regular file"));
    }
    let mut said = Vec::new();
    File::open(path)?.take(MAX_SECRET_BYTES as u64 + 1).read_to_end(&mut said)?;
    unwrapped(said).map_err(Flaw::Other)
}
