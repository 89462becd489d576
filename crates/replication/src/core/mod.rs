//! Pure core: no tokio, no clock, no tracing. Callers pass `now` and perform the returned effects.

pub(crate) mod backoff;
pub(crate) mod conditions;
pub(crate) mod continuity;
pub(crate) mod lock_breaker;
pub(crate) mod machine;
pub(crate) mod progress;
pub(crate) mod step;
