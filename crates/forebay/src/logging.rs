//! Log output on standard error: text for people, JSON for machines.
//!
//! Invariant: an invalid filter never replaces a valid one. The line `log filter replaced` is
//! written after the new filter is in force, if the old or the new filter accepts it.
//! Enforced by: the filter is checked with the settings, and only [`set_filter`] replaces it.

use std::io::{IsTerminal, stderr};
use std::sync::OnceLock;

use forebay_admission::StageLevel;
use tracing::{Level, Subscriber, info};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// Handle of the process's log. It is global, because tracing's default subscriber is, too.
static LOG: OnceLock<LogHandle> = OnceLock::new();

#[derive(Debug)]
struct LogHandle {
    filter: reload::Handle<EnvFilter, Registry>,
    format: LogFormat,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line for each event, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object on one line for each event.
    Json,
}

/// Settings of the log.
#[derive(Debug, Clone)]
pub struct LogConfig {
    /// Format of the lines.
    pub format: LogFormat,
    /// Filter directives, as [`EnvFilter`] parses them.
    pub filter: String,
    /// Level of the lines about the stages of each stream.
    pub stages: StageLevel,
}

/// Installs the global subscriber.
///
/// # Errors
/// Fails if the process already has one.
pub fn init(config: &LogConfig) -> Result<(), TryInitError> {
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&config.filter));
    tracing_subscriber::registry().with(filter).with(lines(config.format)).try_init()?;
    let first = LOG.set(LogHandle { filter: handle, format: config.format });
    debug_assert!(first.is_ok(), "a process installs its subscriber once");
    Ok(())
}

/// Replaces the filter. Before [`init`], only checks the new one.
///
/// # Errors
/// Fails if the filter is invalid; the old one stays in force.
pub fn set_filter(filter: &str) -> Result<(), String> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| error.to_string())?;
    let Some(log) = LOG.get() else { return Ok(()) };
    let was_enabled = tracing::enabled!(Level::INFO);
    log.filter.reload(filter).map_err(|error| error.to_string())?;
    let report = || info!("log filter replaced");
    if was_enabled && !tracing::enabled!(Level::INFO) {
        // Only the old filter accepts the line, so a subscriber without a filter writes it.
        tracing::subscriber::with_default(Registry::default().with(lines(log.format)), report);
        // That subscriber enabled every call site. The cache is rebuilt for the new filter.
        tracing::callsite::rebuild_interest_cache();
    } else {
        report();
    }
    Ok(())
}

/// Returns the layer that writes lines to standard error.
fn lines<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let lines = fmt::layer().with_writer(stderr);
    match format {
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Fails if the filter is invalid. Changes nothing.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::builder().parse(filter).map(drop).map_err(|error| error.to_string())
}
