//! Verified token with its claims.
//!
//! Invariant: exists only for a token whose signature and claims were checked. `Debug` never prints
//! the claims.
//! Enforced by: only [`Identifier::token`](super::Identifier::token) returns one. No client can put
//! one into a request: it is no text, and a request that arrives has no extensions.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::claims::Subject;
use super::{IdentifyError, TokenFault};
use crate::client_identity::ClientIdentity;

/// A token whose signature and claims are valid.
#[derive(Clone, PartialEq)]
pub struct VerifiedToken {
    subject: Subject,
    claims: Map<String, Value>,
    remaining: Option<Duration>,
}

impl VerifiedToken {
    /// Fails if the token has expired. `now` is the time since 1970.
    pub(super) fn new(
        subject: Subject,
        claims: Map<String, Value>,
        now: Duration,
    ) -> Result<Self, TokenFault> {
        let left = subject.expires_at.map(|exp| exp - now.as_secs_f64());
        if left.is_some_and(|left| left <= 0.0) {
            return Err(TokenFault::Expired);
        }
        // An expiry beyond the range of `Duration` counts as none.
        let remaining = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        Ok(VerifiedToken { subject, claims, remaining })
    }

    /// Returns the user that the token names, with the class.
    ///
    /// # Errors
    /// Fails if the name can't be a user id.
    pub fn identity(&self) -> Result<ClientIdentity, IdentifyError> {
        self.subject.identity()
    }

    /// Returns a claim by name.
    pub fn claim(&self, name: &str) -> Option<&Value> {
        self.claims.get(name)
    }

    /// Returns the time from the check until `exp`. `None`: the token does not expire.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }
}

impl fmt::Debug for VerifiedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifiedToken").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(exp: Option<f64>) -> Result<Option<Duration>, TokenFault> {
        let subject = Subject { user: "ada".into(), class: None, expires_at: exp };
        VerifiedToken::new(subject, Map::new(), Duration::from_secs(1_000)).map(|token| token.remaining())
    }

    #[test]
    fn the_remaining_time_has_no_leeway() {
        assert_eq!(left(Some(1_007.5)), Ok(Some(Duration::from_millis(7_500))));
        assert_eq!(left(Some(1_000.0)), Err(TokenFault::Expired));
        assert_eq!(left(Some(990.0)), Err(TokenFault::Expired), "no leeway here");
        assert_eq!(left(Some(1e300)), Ok(None));
        assert_eq!(left(None), Ok(None));
    }

    #[test]
    fn debug_output_contains_no_claim() {
        let subject = Subject { user: "ada".into(), class: None, expires_at: None };
        let claims = Map::from_iter([("sub".to_owned(), Value::from("ada"))]);
        assert!(!format!("{:?}", VerifiedToken::new(subject, claims, Duration::ZERO)).contains("ada"));
    }
}
