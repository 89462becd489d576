//! The log, on standard error: text for people, JSON for machines.
//!
//! Invariant: a filter that can't be read never takes the place of one that can; and a change is told in the log by whichever
//! of the two filters lets it through.
//! Kept by: the filter is checked with the settings, and [`set_filter`] is the only one who changes it.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use tracing::{Level, info};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// The log is the whole process's, and so is its filter.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// How lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line each, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object each.
    Json,
}

/// What is logged, and how.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// What is let through.
    pub filter: String,
}

/// Starts to log.
///
/// # Errors
/// When this process logs already.
pub fn init(config: &LogConfig) -> Result<(), TryInitError> {
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&config.filter));
    let lines = fmt::layer().with_writer(stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    let first = FILTER.set(handle);
    debug_assert!(first.is_ok(), "a process starts to log once");
    Ok(())
}

/// Lets through what this filter says from now on. Nothing happens in a process that doesn't log.
///
/// # Errors
/// When the filter can't be read; the one before stays.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| error.to_string())?;
    let Some(held) = FILTER.get() else { return Ok(()) };
    let is_heard = tracing::enabled!(Level::INFO);
    let tell = || info!("the log's filter has changed");
    if is_heard {
        tell();
    }
    held.reload(filter).map_err(|error| error.to_string())?;
    if !is_heard {
        tell();
    }
    Ok(())
}

/// Whether a filter can be read.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::builder().parse(filter).map(drop).map_err(|error| error.to_string())
}
