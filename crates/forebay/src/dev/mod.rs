//! `forebay dev`: a demo on one machine, with a temporary Postgres, sample data that changes, and
//! the server.
//!
//! Invariant: it listens on this machine only. It leaves no process and no directory, and in the
//! user's own database no slot and no publication.
//! Enforced by: the handles of the sandbox end their processes, even if this process is killed.
//! They remove their directories; after a kill, the next run does. The slot is temporary. The name
//! of the publication contains the process id, and the publication is dropped at the end.
//! Out of scope: requested tables of the user's own database keep `REPLICA IDENTITY FULL`. After a
//! kill, the publication stays there.
//!
//! | topic | file |
//! |---|---|
//! | addresses and settings of the server | `dev_addresses.rs` |
//! | sample data: tables, and the task that changes them | `sample.sql`, `order_generator.rs` |
//! | text output; the page at `/` | `startup_banner.rs`; `page.html`, `page.css`, `page.js` |

mod dev_addresses;
mod order_generator;
mod startup_banner;

use std::io::Write as _;
use std::time::Duration;

use forebay_sandbox::{Postgres, TempFolder};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use self::dev_addresses::{DevAddresses, serve_args};
pub use self::dev_addresses::{check, log};
use self::order_generator::OrderGenerator;
use self::startup_banner::StartupBanner;
use crate::cli::DevArgs;
use crate::config::{self, ConfigError};
use crate::run::{ServerEnd, ShapeServer, StartError};
use crate::signals::Signals;

/// Timeout for the replication to start before the banner is printed anyway.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Database of the temporary Postgres with the sample.
const DATABASE: &str = "postgres";

/// Why the demo can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// Postgres is not installed.
    #[error(
        "no Postgres found on the PATH or in /usr/lib/postgresql/*/bin: install one (Debian, Ubuntu: apt install postgresql; \
         Fedora: dnf install postgresql-server; or set FOREBAY_PG_BIN to the directory with initdb and postgres), or use \
         your own database with --database-url"
    )]
    NoPostgres,
    /// The temporary Postgres doesn't start.
    #[error("the temporary Postgres does not start: {0}")]
    Postgres(#[source] forebay_sandbox::StartError),
    /// The sample data can't be created.
    #[error("can't create the sample data: {0}")]
    OrderGenerator(#[from] order_generator::SampleError),
    /// The flags are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server doesn't start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The banner can't be printed.
    #[error("can't print: {0}")]
    Print(#[from] std::io::Error),
}

/// Resources that end with this run.
#[derive(Debug)]
struct DevResources {
    /// Temporary Postgres; `None`: the user's own database is used.
    postgres: Option<Postgres>,
    /// Storage directory.
    storage: TempFolder,
}

/// Runs until a signal. A second signal ends it at once. All resources are removed in both cases.
///
/// # Errors
/// Fails if something can't be started. Then, too, all resources are removed.
pub async fn run(
    args: DevArgs,
    metrics: PrometheusHandle,
    descriptors: Option<u64>,
    mut signals: Signals,
) -> Result<ServerEnd, DevError> {
    signals.end_on_hangup();
    let has_own_database = args.database_url.is_some();
    let mut starting = spawn_blocking(move || DevResources::start(has_own_database));
    let early = tokio::select! {
        started = &mut starting => Some(started),
        _ = signals.next() => None,
    };
    let Some(started) = early else {
        // Postgres may just be starting: wait for its handle and drop it.
        drop(starting.await);
        return Ok(ServerEnd::Stopped);
    };
    let resources = started.map_err(|error| DevError::Print(std::io::Error::other(error)))??;
    let ended = serve(args, &resources, metrics, descriptors, signals).await;
    // Dropping Postgres blocks until its processes have ended.
    let _gone = spawn_blocking(move || drop(resources)).await;
    ended
}

async fn serve(
    args: DevArgs,
    resources: &DevResources,
    metrics: PrometheusHandle,
    descriptors: Option<u64>,
    mut signals: Signals,
) -> Result<ServerEnd, DevError> {
    let sample = match &resources.postgres {
        None => None,
        Some(postgres) => Some(OrderGenerator::create(postgres.addr(), DATABASE).await?),
    };
    let addresses = DevAddresses::find(&args);
    let url = resources.postgres.as_ref().map(|postgres| postgres.url(DATABASE));
    let (args, environment) = serve_args(&args, &addresses, url, resources.storage.path());
    let mut config = config::load_serve(args, environment)?;
    config.backend.home = Some(startup_banner::home_page);
    config.drop_slot_on_shutdown = true;
    let serve = ShapeServer::start(config, metrics, descriptors).await?;
    let is_ready = tokio::select! {
        ready = timeout(READY_TIMEOUT, serve.ready()) => Ok(matches!(ready, Ok(Ok(())))),
        signal = signals.next() => Err(signal),
    };
    match is_ready {
        Ok(is_ready) => {
            let trouble = if is_ready { None } else { serve.trouble() };
            let banner =
                StartupBanner { addresses: &addresses, has_sample: sample.is_some(), is_ready, trouble };
            // If standard output is closed, the server runs without the banner.
            let _closed = std::io::stdout().write_all(banner.to_string().as_bytes());
        }
        Err(signal) => signals.requeue(signal),
    }
    let generator = sample.map(|sample| GeneratorTask(tokio::spawn(sample.run())));
    let ended = serve.run(signals).await;
    drop(generator);
    Ok(ended)
}

/// Task that is aborted on drop.
struct GeneratorTask(JoinHandle<()>);

impl Drop for GeneratorTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl DevResources {
    /// Starts the resources. Blocks for some seconds.
    fn start(has_own_database: bool) -> Result<Self, DevError> {
        let storage = TempFolder::create().map_err(DevError::Postgres)?;
        if has_own_database {
            return Ok(DevResources { postgres: None, storage });
        }
        // The data directory is in memory if there is enough: WAL stays small, and syncs are not
        // needed.
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
        Ok(DevResources { postgres: Some(postgres), storage })
    }
}
