//! Evidence of the adaptive limit: starts of streams, the state of the process, and what follows.

use std::time::Duration;

use serde::Serialize;

/// Why the adaptive limit was lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecreaseCause {
    /// New streams take longer to their first byte than without overload.
    Latency,
    /// New streams fail.
    Errors,
    /// This process uses most of its memory.
    Memory,
    /// This process uses most of its CPU time.
    Cpu,
}

impl DecreaseCause {
    /// All causes, in declaration order.
    pub const ALL: [DecreaseCause; 4] =
        [DecreaseCause::Latency, DecreaseCause::Errors, DecreaseCause::Memory, DecreaseCause::Cpu];

    /// Returns the name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DecreaseCause::Latency => "latency",
            DecreaseCause::Errors => "errors",
            DecreaseCause::Memory => "memory",
            DecreaseCause::Cpu => "cpu",
        }
    }
}

/// A decrease of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitDecrease {
    pub(crate) cause: DecreaseCause,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) at: Duration,
}

/// How the start of a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartResult {
    /// The first byte arrived after this time.
    Answered(Duration),
    Failed,
    /// The client left after this time, before the first byte.
    Abandoned(Duration),
}

/// The start of a stream that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StartSample {
    pub(crate) started_at: Duration,
    pub(crate) result: StartResult,
    /// Open streams in this process at the start of the stream, itself included.
    pub(crate) open_at_start: u32,
    /// Open streams in this process now.
    pub(crate) open: u32,
    /// Whether the limit refused a request recently.
    pub(crate) has_refused: bool,
}

/// State of this process, sampled once per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ProcessSample {
    /// Resident memory as a fraction of the memory limit.
    pub(crate) memory: Option<f64>,
    /// CPU use as a fraction of the usable CPUs.
    pub(crate) cpu: Option<f64>,
    pub(crate) open: u32,
    /// Streams that wait for their first byte.
    pub(crate) starting: u32,
    /// Whether the limit refused a request since the last sample.
    pub(crate) has_refused: bool,
}
