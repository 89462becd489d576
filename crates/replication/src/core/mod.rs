//! Pure: no tokio, no clock, no log. The shell hands in `now`, and does what comes out.

pub(crate) mod backoff;
pub(crate) mod breaker;
pub(crate) mod conditions;
pub(crate) mod continuity;
pub(crate) mod machine;
#[cfg(test)]
mod machine_tests;
pub(crate) mod progress;
pub(crate) mod step;
