//! Decision logic: pure, without tokio, clock or tracing.

pub(crate) mod health;
pub(crate) mod pressure;
pub(crate) mod release_rate;
pub(crate) mod wait_queue;
