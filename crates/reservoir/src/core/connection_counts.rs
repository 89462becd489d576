//! Number of connections in each state.

/// Number of connections in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ConnectionCounts {
    /// Idle connections that can be lent.
    pub ready: u32,
    /// Connections that are being opened.
    pub dialing: u32,
    /// Connections that callers hold.
    pub lent: u32,
    /// Returned connections that are being reset.
    pub resetting: u32,
    /// Connections that were closed here and that the server hasn't closed yet.
    ///
    /// Includes abandoned dials for which the server may still have a backend.
    pub retiring: u32,
}

impl ConnectionCounts {
    /// Returns the number of connections that count against `max` and the budget.
    pub fn total(&self) -> u32 {
        self.ready + self.dialing + self.lent + self.resetting + self.retiring
    }
}
