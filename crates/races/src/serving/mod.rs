//! `forebay serve` in a separate process, on a database of the race, and a client for it.
//!
//! Invariant: the server is complete, and has its default settings except for those in [`child`]:
//! addresses, folder, Redis, number and lifetime of streams, keep-alives, log level, and the
//! permission to delete shapes.
//!
//! The process runs this same program, so that one build is enough; see [`child`].

mod event_reader;
mod http_connection;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay::cli::ServeArgs;
use forebay::signals::Signals;
use forebay::{ShapeServer, config, descriptors, logging, memory, metrics};
use forebay_sandbox::{Postgres, Redis};

pub(crate) use self::event_reader::{EventReader, WriteProgress};
pub(crate) use self::http_connection::{HttpConnection, ResponseHead};
use crate::harness::ExperimentReport;
use crate::helper_process::{self, HelperProcess};

/// Maximum time from the start until the instance is active.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of streams. No race has as many.
const STREAMS: u32 = 20_000;

/// Settings that the instances of a race share: a database, a folder, and optionally Redis. The
/// folder is removed on drop.
struct InstanceGroup {
    race: &'static str,
    url: String,
    folder: PathBuf,
    /// URL, or `none`.
    redis: String,
}

impl InstanceGroup {
    fn launch(&self, address: SocketAddr) -> Result<HelperProcess> {
        let InstanceGroup { url, folder, redis, .. } = self;
        let mut process = HelperProcess::start(
            self.race,
            &format!("forebay {url} {address} {} {redis}", folder.display()),
        )?;
        process.expect_line("listening")?;
        Ok(process)
    }
}

impl Drop for InstanceGroup {
    fn drop(&mut self) {
        // Fails only if the folder doesn't exist.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An instance. It follows the database, or waits until no other instance does. Killed on drop.
pub(crate) struct ForebayProcess {
    // Dropped in this order.
    process: HelperProcess,
    address: SocketAddr,
    group: Arc<InstanceGroup>,
}

impl ForebayProcess {
    /// Starts an instance, and waits until it follows the database.
    pub(crate) fn start(race: &'static str, postgres: &Postgres, database: &str) -> Result<ForebayProcess> {
        ForebayProcess::first(race, postgres.url(database), "none".to_owned())
    }

    /// Starts the first of several instances, which count their streams together in Redis.
    pub(crate) fn with_redis(
        race: &'static str,
        postgres: &Postgres,
        redis: &Redis,
    ) -> Result<ForebayProcess> {
        ForebayProcess::first(race, postgres.url("postgres"), redis.url())
    }

    fn first(race: &'static str, url: String, redis: String) -> Result<ForebayProcess> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("forebay-races-{}-{number}", std::process::id()));
        let forebay = ForebayProcess::at(Arc::new(InstanceGroup { race, url, folder, redis }))?;
        forebay.wait_until_active()?;
        Ok(forebay)
    }

    /// Starts another instance, which follows the database only after this one has ended.
    pub(crate) fn another(&self) -> Result<ForebayProcess> {
        ForebayProcess::at(Arc::clone(&self.group))
    }

    fn at(group: Arc<InstanceGroup>) -> Result<ForebayProcess> {
        let address = SocketAddr::from(([127, 0, 0, 1], forebay_sandbox::free_port()));
        Ok(ForebayProcess { process: group.launch(address)?, address, group })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the process, and starts it again at the same address.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = self.group.launch(self.address)?;
        Ok(())
    }

    /// Ends the process with SIGTERM, and starts it again at the same address.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.terminate()?;
        self.process = self.group.launch(self.address)?;
        Ok(())
    }

    pub(crate) fn wait_until_active(&self) -> Result<()> {
        let started = Instant::now();
        while self.health() != Some(200) {
            ensure!(started.elapsed() < START_TIMEOUT, "forebay serve isn't active after {START_TIMEOUT:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the status of `/v1/health`: 200 if the instance follows the database, 202 if it
    /// starts or waits.
    pub(crate) fn health(&self) -> Option<u16> {
        HttpConnection::open(self.address).and_then(|mut http| http.fetch("/v1/health")).ok()
    }

    /// Returns the target of a live request from the end of a shape's log, with the parameters
    /// `more`. Creates the shape if needed.
    pub(crate) fn live(&self, shape: &str, more: &str) -> Result<String> {
        let (handle, offset) = self.now(shape)?;
        Ok(format!("/v1/shape?{shape}&handle={handle}&offset={offset}&live=true{more}"))
    }

    /// Returns the handle of a shape, and the offset of the end of its log. Creates the shape if
    /// needed.
    pub(crate) fn now(&self, shape: &str) -> Result<(String, String)> {
        let mut http = HttpConnection::open(self.address)?;
        let head = http.get(&format!("/v1/shape?{shape}&offset=now"))?;
        ensure!(head.status == 200, "{shape} returned {}", head.status);
        Ok((head.require("electric-handle")?.to_owned(), head.require("electric-offset")?.to_owned()))
    }
}

/// Runs the server process. `words` are `forebay URL ADDRESS FOLDER REDIS`, where `REDIS` may be
/// `none`. Ends when the race releases it, or on a signal.
pub(crate) fn child(words: &[&str]) -> Result<ExperimentReport> {
    let ["forebay", url, address, folder, redis] = words else { bail!("no such process: {words:?}") };
    // The program `forebay` does the same.
    memory::tune_allocator();
    let mut settings = vec![
        ("DATABASE_URL", *url),
        ("FOREBAY_SERVE_LISTEN", address),
        ("FOREBAY_STORAGE_DIR", folder),
        ("FOREBAY_SERVE_ALLOW_DELETE", "true"),
        // So long that no stream ends and no keep-alive is sent during a measurement.
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "600000"),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "600000"),
        ("FOREBAY_ADMIN_LISTEN", "off"),
        ("FOREBAY_LOG_FILTER", "error"),
    ];
    if *redis != "none" {
        settings.push(("FOREBAY_REDIS_URL", redis));
    }
    let args = ServeArgs::default().with_flag("--total", STREAMS);
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = config::load_serve(args, settings).context("loading the settings")?;
    logging::init(&config.log)?;
    let (descriptors, recorder) = (descriptors::raise_limit(), metrics::install()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::catch()?;
        let serve = ShapeServer::start(config, recorder, descriptors).await?;
        helper_process::announce("listening")?;
        tokio::select! {
            _ = serve.run(signals) => {}
            () = helper_process::released() => {}
        }
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(ExperimentReport::new("served"))
}
