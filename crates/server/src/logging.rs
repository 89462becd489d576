//! The log, on standard error: text for people, JSON for machines.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

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
    let filter = EnvFilter::new(&config.filter);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match config.format {
        LogFormat::Text => builder.with_ansi(stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
}

/// Whether a filter can be read.
pub(crate) fn check_filter(filter: &str) -> Result<(), String> {
    EnvFilter::builder().parse(filter).map(drop).map_err(|error| error.to_string())
}
