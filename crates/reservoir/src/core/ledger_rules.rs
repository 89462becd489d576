//! Checked settings of the ledger; `ReservoirConfig` creates them.

use std::time::Duration;

/// Sizes and durations of a ledger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LedgerRules {
    pub(crate) target: u32,
    pub(crate) low_watermark: u32,
    pub(crate) max: u32,
    pub(crate) lifetime: Lifetime,
    /// A connection whose remaining life is this or less is not lent.
    pub(crate) guard_window: Duration,
    /// How long before the guard window a connection is replaced.
    pub(crate) lead: Duration,
    pub(crate) max_dials: u32,
    pub(crate) max_waiting: usize,
    /// Whether returned connections are reset.
    pub(crate) resets: bool,
    pub(crate) leak_after: Duration,
    pub(crate) backoff: DialBackoff,
}

/// Lifetime of a connection: `base` plus or minus a random part of `jitter`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetime {
    pub(crate) base: Duration,
    pub(crate) jitter: Duration,
    /// Whether the jitter is subtracted instead of added.
    pub(crate) downward: bool,
}

/// Delays between dials after failures; each failure doubles the delay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DialBackoff {
    pub(crate) initial: Duration,
    pub(crate) max: Duration,
    /// First delay after an error that early retries make worse, such as a full server.
    pub(crate) initial_long: Duration,
    /// Longest delay after such an error.
    pub(crate) max_long: Duration,
}
