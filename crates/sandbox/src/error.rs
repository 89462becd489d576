//! Errors of starting a server. Each text has the next action or the end of the server's log.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use std::{error, fmt, io};

/// Why a server could not be started or restarted.
///
/// `Debug` prints the same text as `Display`, then the sources, so that an `unwrap` in a test
/// shows the server's log with its line breaks.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server's program is not installed.
    #[error("{program} not found: run script/bootstrap, or put it on the PATH ({searched})")]
    NotFound {
        /// Program that was searched for.
        program: String,
        /// Locations that were searched.
        searched: String,
    },
    /// A file or folder of the server could not be created.
    #[error("cannot prepare {}", path.display())]
    TempFolder {
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The running server could not be copied for a standby or a backup.
    #[error("cannot copy the running server")]
    Original {
        /// Cause.
        source: io::Error,
    },
    /// The new server runs, but its setup failed.
    #[error("cannot make the new server ready; the end of its log:\n{log}")]
    Unready {
        /// Cause.
        source: io::Error,
        /// End of the server's log.
        log: String,
    },
    /// The throwaway certificates could not be created.
    #[error("cannot make throwaway certificates")]
    Certificate(#[from] rcgen::Error),
    /// The program exists, but could not be executed.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// Program.
        program: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The server exited before it was ready, most often because of an unknown setting.
    #[error("{name} ended with {status} before it was ready; the end of its log:\n{log}")]
    Exited {
        /// Program.
        name: &'static str,
        /// Exit status.
        status: ExitStatus,
        /// End of the server's log.
        log: String,
    },
    /// Another process listens on the server's port.
    #[error("{name} found its port taken; the end of its log:\n{log}")]
    PortTaken {
        /// Program.
        name: &'static str,
        /// End of the server's log.
        log: String,
    },
    /// The server runs, but was not ready in time.
    #[error("{name} was not ready within {waited:?}; the end of its log:\n{log}")]
    Silent {
        /// Program.
        name: &'static str,
        /// Time waited.
        waited: Duration,
        /// End of the server's log.
        log: String,
    },
    /// The server did not stop in time.
    #[error("{name} did not stop within {waited:?}; the end of its log:\n{log}")]
    Stuck {
        /// Program.
        name: &'static str,
        /// Time waited.
        waited: Duration,
        /// End of the server's log.
        log: String,
    },
}

impl StartError {
    /// Returns a function for `map_err` that adds the path.
    pub(crate) fn with_path(path: &Path) -> impl FnOnce(io::Error) -> StartError {
        |source| StartError::TempFolder { path: path.to_owned(), source }
    }

    /// Returns the error of a copy that failed.
    pub(crate) fn original(source: io::Error) -> StartError {
        StartError::Original { source }
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = error::Error::source(self);
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}
