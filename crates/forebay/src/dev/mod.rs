//! `forebay dev`: everything on one machine, to try it: a throwaway Postgres with a sample that lives, and the server.
//!
//! Invariant: it listens on this machine only, and leaves nothing behind: no process, no folder; in somebody's own database no slot and
//! no publication. Kept by: the sandbox's handles, which end what they hold however this process ends; a slot that ends with its
//! connection; a publication of this run's own name, dropped at the end.
//!
//! | to find | look in |
//! |---|---|
//! | which addresses, and what the server is told | `settings.rs` |
//! | the sample: tables, and who changes them | `sample.sql`, `sample.rs` |
//! | what is printed; the page at `/` | `words.rs`; `page.html`, `page.css`, `page.js` |

mod sample;
mod settings;
mod words;

use std::io::Write as _;
use std::time::Duration;

use forebay_sandbox::{Folder, Postgres};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use self::sample::Sample;
use self::settings::{Addresses, serve_args};
pub use self::settings::{check, log};
use self::words::Words;
use crate::cli::DevArgs;
use crate::config::{self, ConfigError};
use crate::run::{ShapeServer, StartError};
use crate::signals::Signals;

/// How long a database may take before the addresses are told anyway.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the throwaway Postgres has its sample.
const DATABASE: &str = "postgres";

/// Why it can't be tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// There is no Postgres to start.
    #[error(
        "no Postgres found on the PATH or in /usr/lib/postgresql/*/bin: install one (Debian, Ubuntu: apt install postgresql; \
         Fedora: dnf install postgresql-server; or set FOREBAY_PG_BIN to the folder with its initdb and postgres), or use \
         your own database with --database-url"
    )]
    NoPostgres,
    /// The throwaway Postgres doesn't start.
    #[error("the throwaway Postgres: {0}")]
    Postgres(#[source] forebay_sandbox::StartError),
    /// The sample can't be made.
    #[error("the sample can't be made: {0}")]
    Sample(#[from] sample::SampleError),
    /// Flags that don't fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server doesn't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The addresses can't be told.
    #[error("can't print: {0}")]
    Print(#[from] std::io::Error),
}

/// What ends with this run.
#[derive(Debug)]
struct Throwaway {
    /// `None`: the database is somebody's own.
    postgres: Option<Postgres>,
    storage: Folder,
}

/// Runs until a signal; a second one ends it at once, and is returned. Either way nothing is left.
///
/// # Errors
/// When something can't be started; nothing is left then, too.
pub async fn run(
    args: DevArgs,
    metrics: PrometheusHandle,
    descriptors: Option<u64>,
    mut signals: Signals,
) -> Result<Option<&'static str>, DevError> {
    signals.end_on_hangup();
    let own = args.database_url.is_some();
    let mut starting = spawn_blocking(move || Throwaway::start(own));
    let early = tokio::select! {
        started = &mut starting => Some(started),
        _ = signals.next() => None,
    };
    let Some(started) = early else {
        // It is about to be there, and goes as soon as it is.
        drop(starting.await);
        return Ok(None);
    };
    let throwaway = started.map_err(|error| DevError::Print(std::io::Error::other(error)))??;
    let ended = serve(args, &throwaway, metrics, descriptors, signals).await;
    // Ending a Postgres waits for its processes.
    let _gone = spawn_blocking(move || drop(throwaway)).await;
    ended
}

async fn serve(
    args: DevArgs,
    throwaway: &Throwaway,
    metrics: PrometheusHandle,
    descriptors: Option<u64>,
    mut signals: Signals,
) -> Result<Option<&'static str>, DevError> {
    let sample = match &throwaway.postgres {
        None => None,
        Some(postgres) => Some(Sample::make(postgres.addr(), DATABASE).await?),
    };
    let addresses = Addresses::find(&args);
    let url = throwaway.postgres.as_ref().map(|postgres| postgres.url(DATABASE));
    let (args, environment) = serve_args(&args, &addresses, url, throwaway.storage.path());
    let mut config = config::load_serve(args, environment)?;
    config.home = Some(words::home);
    config.leaves_nothing = true;
    let serve = ShapeServer::start(config, metrics, descriptors).await?;
    let is_ready = tokio::select! {
        ready = timeout(PATIENCE, serve.ready()) => Ok(matches!(ready, Ok(Ok(())))),
        signal = signals.next() => Err(signal),
    };
    match is_ready {
        Ok(is_ready) => {
            let trouble = if is_ready { None } else { serve.trouble() };
            let words = Words { addresses: &addresses, has_sample: sample.is_some(), is_ready, trouble };
            // Whoever doesn't want to read it is served all the same, and nothing is left behind.
            let _unread = std::io::stdout().write_all(words.to_string().as_bytes());
        }
        Err(signal) => signals.requeue(signal),
    }
    let living = sample.map(|sample| Living(tokio::spawn(sample.live())));
    let second = serve.run(signals).await;
    drop(living);
    Ok(second)
}

/// A task that ends when it is dropped.
struct Living(JoinHandle<()>);

impl Drop for Living {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Throwaway {
    /// Blocks for some seconds.
    fn start(own: bool) -> Result<Self, DevError> {
        let storage = Folder::create().map_err(DevError::Postgres)?;
        if own {
            return Ok(Throwaway { postgres: None, storage });
        }
        // It lives in memory, where there is plenty: its log stays small, and nothing is worth a sync.
        let built = Postgres::builder()
            .config("wal_level", "logical")
            .config("fsync", "off")
            .config("max_wal_size", "64MB")
            .config("min_wal_size", "32MB")
            .start();
        let postgres = built.map_err(|error| match error {
            forebay_sandbox::StartError::NotFound { .. } => DevError::NoPostgres,
            other => DevError::Postgres(other),
        })?;
        Ok(Throwaway { postgres: Some(postgres), storage })
    }
}
