//! Ledger entry: a connection together with its position in the connection table.

use std::time::{Duration, Instant};

/// Lets the ledger check whether a connection is closed.
pub(crate) trait Liveness {
    fn is_closed(&self) -> bool;
}

/// State in which a caller returns a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnState {
    /// The session may have changed; the connection needs a reset.
    Used,
    /// The session is unchanged; no reset is needed.
    Clean,
    /// The connection must not be lent again.
    Bad,
    /// The before-lend hook failed: the connection must not be lent.
    HookFailed,
}

/// How a reset ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetOutcome {
    /// The session is as after the login.
    Clean,
    /// The reset failed or took too long; the connection must not be lent again.
    Failed,
}

/// A connection and its ledger data. Not `Clone`: it is moved from state to state.
///
/// Boxed, so that a move copies one pointer.
#[derive(Debug)]
pub(crate) struct LedgerEntry<C>(Box<EntryData<C>>);

#[derive(Debug)]
struct EntryData<C> {
    content: C,
    /// Index in the connection table.
    record: usize,
    expires_at: Instant,
}

impl<C> LedgerEntry<C> {
    pub(super) fn new(content: C, record: usize, expires_at: Instant) -> Self {
        LedgerEntry(Box::new(EntryData { content, record, expires_at }))
    }

    pub(crate) fn content(&self) -> &C {
        &self.0.content
    }

    pub(crate) fn content_mut(&mut self) -> &mut C {
        &mut self.0.content
    }

    pub(crate) fn into_content(self) -> C {
        self.0.content
    }

    pub(super) fn record(&self) -> usize {
        self.0.record
    }

    pub(super) fn expires_at(&self) -> Instant {
        self.0.expires_at
    }

    pub(super) fn expires_within(&self, window: Duration, now: Instant) -> bool {
        self.0.expires_at <= now + window
    }
}
