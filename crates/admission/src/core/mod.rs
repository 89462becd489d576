//! Decision logic: pure, without tokio, clock or tracing.

pub(crate) mod adaptive_limit;
pub(crate) mod health;
pub(crate) mod limit_evidence;
pub(crate) mod pressure;
pub(crate) mod release_rate;
mod start_window;
pub(crate) mod wait_queue;
