//! `forebay serve`, as a process of its own on a database of the race's, and a client for it.
//!
//! Invariant: the server is the real one, with its defaults, but for the address, the folder, and how many streams it has for how long.
//! The process is this program again, so that one build has both; see [`child`].

mod http;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_sandbox::Postgres;
use forebay_server::cli::ServeArgs;
use forebay_server::signals::Signals;
use forebay_server::{Serve, config, descriptors, logging, metrics};

pub(crate) use self::http::{Connection, Head};
use crate::harness::Report;
use crate::helper::{self, Helper};

/// From its start until it is active.
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams that it admits: more than any race has.
const STREAMS: u32 = 20_000;

/// A server that follows a database; it ends, and its folder goes, when it is dropped.
pub(crate) struct Forebay {
    race: &'static str,
    url: String,
    address: SocketAddr,
    folder: PathBuf,
    process: Helper,
}

impl Forebay {
    /// Starts it, and waits until it follows.
    pub(crate) fn start(race: &'static str, postgres: &Postgres, database: &str) -> Result<Forebay> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("forebay-races-{}-{number}", std::process::id()));
        let address = SocketAddr::from(([127, 0, 0, 1], forebay_sandbox::free_port()));
        let url = postgres.url(database);
        let process = launch(race, &url, address, &folder.to_string_lossy())?;
        let forebay = Forebay { race, url, address, folder, process };
        forebay.wait_until_active()?;
        Ok(forebay)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it on the spot, and starts it again where it was.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = launch(self.race, &self.url, self.address, &self.folder.to_string_lossy())?;
        Ok(())
    }

    pub(crate) fn wait_until_active(&self) -> Result<()> {
        let began = Instant::now();
        while Connection::open(self.address).and_then(|mut http| http.fetch("/v1/health")).ok() != Some(200) {
            ensure!(began.elapsed() < PATIENCE, "forebay serve isn't active after {PATIENCE:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The live request that goes on from right now: its path, for a shape that this makes if it must.
    pub(crate) fn live(&self, shape: &str, more: &str) -> Result<String> {
        let (handle, offset) = self.now(shape)?;
        Ok(format!("/v1/shape?{shape}&handle={handle}&offset={offset}&live=true{more}"))
    }

    /// A shape's handle, and where its log ends.
    pub(crate) fn now(&self, shape: &str) -> Result<(String, String)> {
        let mut http = Connection::open(self.address)?;
        let head = http.ask(&format!("/v1/shape?{shape}&offset=now"))?;
        ensure!(head.status == 200, "{shape} answers {}", head.status);
        Ok((head.named("electric-handle")?.to_owned(), head.named("electric-offset")?.to_owned()))
    }
}

impl Drop for Forebay {
    fn drop(&mut self) {
        // Both fail only for what is gone already.
        let _ = self.process.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn launch(race: &str, url: &str, address: SocketAddr, folder: &str) -> Result<Helper> {
    let mut process = Helper::start(race, &format!("forebay {url} {address} {folder}"))?;
    process.hear("listening")?;
    Ok(process)
}

/// The process: `forebay URL ADDRESS FOLDER`. Ends when the race lets go.
pub(crate) fn child(words: &[&str]) -> Result<Report> {
    let ["forebay", url, address, folder] = words else { bail!("no such process: {words:?}") };
    let settings = [
        ("DATABASE_URL", *url),
        ("FOREBAY_SERVE_LISTEN", address),
        ("FOREBAY_STORAGE_DIR", folder),
        ("FOREBAY_SERVE_ALLOW_DELETE", "true"),
        // A stream that ended in the middle of a measurement would be measured.
        ("FOREBAY_SERVE_SSE_TIMEOUT_MS", "600000"),
        ("FOREBAY_SERVE_SSE_KEEP_ALIVE_MS", "600000"),
        ("FOREBAY_ADMIN_LISTEN", "off"),
        ("FOREBAY_LOG_FILTER", "error"),
    ];
    let args = ServeArgs { total: Some(STREAMS), ..ServeArgs::default() };
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = config::load_serve(args, settings).context("settings")?;
    logging::init(&config.log)?;
    let (descriptors, recorder) = (descriptors::raise_limit(), metrics::install()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::catch()?;
        let serve = Serve::start(config, recorder, descriptors).await?;
        helper::announce("listening")?;
        tokio::select! {
            _ = serve.run(signals) => {}
            () = helper::let_go() => {}
        }
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(Report::new("served"))
}
