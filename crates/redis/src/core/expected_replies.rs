//! Expected replies: how many replies complete a request.

use super::echo_probe::EchoProbe;

/// Replies that complete a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedReplies {
    /// This many replies; at least one.
    Replies(u32),
    /// This many push messages of this kind, as after SUBSCRIBE, or one error reply.
    Confirmations(u32, &'static str),
    /// This many replies, followed by those of an echo probe, which the caller does not get.
    Verified(u32, EchoProbe),
}

impl ExpectedReplies {
    /// Returns the same expectation, followed by the probe if there is one.
    pub(crate) fn verified_by(self, probe: Option<EchoProbe>) -> Self {
        match (self, probe) {
            (ExpectedReplies::Replies(count), Some(probe)) => ExpectedReplies::Verified(count, probe),
            (
                ExpectedReplies::Replies(_)
                | ExpectedReplies::Confirmations(..)
                | ExpectedReplies::Verified(..),
                _,
            ) => self,
        }
    }
}
