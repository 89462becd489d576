//! Why a server did not start. Every message says what to do next or shows the server's own words.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use std::{error, fmt, io};

/// Why a server could not be started, or started again.
///
/// `Debug` prints the same sentence as `Display` and then the sources, so that an `unwrap` in a test shows the server's
/// log with its line breaks.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The server's program is not installed.
    #[error("{program} not found: run script/bootstrap, or put it on the PATH ({looked_in})")]
    NotFound {
        /// The program that was looked for.
        program: String,
        /// Where it was looked for.
        looked_in: String,
    },
    /// A file or folder of the server could not be made.
    #[error("cannot prepare {}", path.display())]
    Folder {
        /// What could not be made.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The running server that a standby or a backup was to be copied from did not play its part.
    #[error("cannot copy the running server")]
    Original {
        /// Why.
        source: io::Error,
    },
    /// The new server runs, but could not be made ready.
    #[error("cannot make the new server ready; the end of its log:\n{log}")]
    Unready {
        /// Why.
        source: io::Error,
        /// The end of its log.
        log: String,
    },
    /// The throwaway certificates could not be made.
    #[error("cannot make throwaway certificates")]
    Certificate(#[from] rcgen::Error),
    /// The program is there, but the system would not run it.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server ended before it was ready: its log says why, most often a setting that it does not know.
    #[error("{name} ended with {status} before it was ready; the end of its log:\n{log}")]
    Exited {
        /// The program.
        name: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// Somebody else listens on the server's port.
    #[error("{name} found its port taken; the end of its log:\n{log}")]
    PortTaken {
        /// The program.
        name: &'static str,
        /// The end of its log.
        log: String,
    },
    /// The server runs, but did not answer in time.
    #[error("{name} did not answer within {waited:?}; the end of its log:\n{log}")]
    Silent {
        /// The program.
        name: &'static str,
        /// How long it was given.
        waited: Duration,
        /// The end of its log.
        log: String,
    },
    /// The server was asked to stop, and did not in time.
    #[error("{name} did not stop within {waited:?}; the end of its log:\n{log}")]
    Stuck {
        /// The program.
        name: &'static str,
        /// How long it was given.
        waited: Duration,
        /// The end of its log.
        log: String,
    },
}

impl StartError {
    /// What `map_err` needs where a file or folder is prepared.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> StartError {
        |source| StartError::Folder { path: path.to_owned(), source }
    }

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
