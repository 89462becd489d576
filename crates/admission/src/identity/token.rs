//! What a token that holds says, for those who want to know more than who somebody is.
//!
//! Invariant: there is one only of a token whose signature and claims were checked; and it is never printed.
//! Kept by: only [`Identify::token`](super::Identify::token) gives one away.

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::TokenFault;
use super::claims::Subject;

/// A token that holds.
#[derive(Clone, PartialEq)]
pub struct Token {
    claims: Map<String, Value>,
    left: Option<Duration>,
}

impl Token {
    /// `now` is the time since 1970.
    pub(super) fn new(
        subject: &Subject,
        claims: Map<String, Value>,
        now: Duration,
    ) -> Result<Self, TokenFault> {
        let left = subject.expires_at.map(|exp| exp - now.as_secs_f64());
        if left.is_some_and(|left| left <= 0.0) {
            return Err(TokenFault::Expired);
        }
        // What is too far to be counted never comes.
        Ok(Token { claims, left: left.and_then(|left| Duration::try_from_secs_f64(left).ok()) })
    }

    /// What it says under this name.
    pub fn claim(&self, name: &str) -> Option<&Value> {
        self.claims.get(name)
    }

    /// How long it was until its `exp` when it was checked. `None`: it never expires.
    pub fn left(&self) -> Option<Duration> {
        self.left
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("left", &self.left).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(exp: Option<f64>) -> Result<Option<Duration>, TokenFault> {
        let subject = Subject { user: "ada".into(), class: None, expires_at: exp };
        Token::new(&subject, Map::new(), Duration::from_secs(1_000)).map(|token| token.left())
    }

    #[test]
    fn the_time_that_is_left_has_no_leeway() {
        assert_eq!(left(Some(1_007.5)), Ok(Some(Duration::from_millis(7_500))));
        assert_eq!(left(Some(1_000.0)), Err(TokenFault::Expired));
        assert_eq!(left(Some(990.0)), Err(TokenFault::Expired), "elsewhere taken, because clocks differ");
        assert_eq!(left(Some(1e300)), Ok(None));
        assert_eq!(left(None), Ok(None));
    }

    #[test]
    fn debug_tells_no_claim() {
        let subject = Subject { user: "ada".into(), class: None, expires_at: None };
        let claims = Map::from_iter([("sub".to_owned(), Value::from("ada"))]);
        assert!(!format!("{:?}", Token::new(&subject, claims, Duration::ZERO)).contains("ada"));
    }
}
