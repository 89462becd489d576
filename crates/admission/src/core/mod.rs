//! Everything that decides: no tokio, no clock, no tracing.

pub(crate) mod health;
pub(crate) mod line;
pub(crate) mod pressure;
pub(crate) mod release;
