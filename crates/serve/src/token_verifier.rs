//! Token verifier: from a request's token to its bearer, with grants and expiry.
//!
//! Invariant: a [`TokenBearer`] exists only for a token that was just verified and hasn't passed
//! its `exp`. No wait of a request outlasts the token.
//! Enforced by: outside tests, only [`TokenVerifier::bearer`] creates a bearer. Waits on the way to
//! a response go through [`while_valid`], reads of a body through [`before_expiry`], long-polls
//! through `RequestContext::at_most`, and event streams have `StreamTimeouts::until`. The clock
//! leeway of admission doesn't apply here. With it, a client whose stream ended at `exp` would
//! reconnect again and again until the leeway is over.
//! A token is verified once per request: admission gets the [`VerifiedToken`].

use forebay_admission::{Identifier, IdentifyError, TokenFault, VerifiedToken};
use http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use super::protocol::{RequestRefusal, TokenBearer, parse_grants};

/// Verifies tokens and reads their grants.
pub(crate) struct TokenVerifier {
    identify: Identifier,
    /// The claim with the grants.
    claim: String,
}

impl TokenVerifier {
    /// `claim` is the claim with the grants.
    pub(crate) fn new(identify: Identifier, claim: Option<&str>) -> Self {
        TokenVerifier { identify, claim: claim.unwrap_or_default().to_owned() }
    }

    /// Verifies the request's token. Returns its bearer, and the token. Without the claim, the
    /// bearer has no grants.
    ///
    /// # Errors
    /// Fails if there is no valid token, or its grants can't be parsed.
    pub(crate) async fn bearer(
        &self,
        headers: &HeaderMap,
    ) -> Result<(TokenBearer, VerifiedToken), RequestRefusal> {
        let token = self.identify.token(headers).await.map_err(|fault| token_refusal(&fault))?;
        let token = token.ok_or(RequestRefusal::TokenRequired)?;
        let grants = token.claim(&self.claim).map_or_else(|| Ok([].into()), parse_grants);
        let grants =
            grants.map_err(|error| RequestRefusal::BadGrant { message: error.to_string().into() })?;
        let expires_at = token.remaining().and_then(|left| Instant::now().checked_add(left));
        Ok((TokenBearer { grants, expires_at }, token))
    }
}

/// Waits for a future, at most until the bearer's token expires.
///
/// # Errors
/// Fails at the expiry, even if the future completes at that moment.
pub(crate) async fn while_valid<F: Future>(
    bearer: Option<&TokenBearer>,
    waiting: F,
) -> Result<F::Output, RequestRefusal> {
    let outcome = before_expiry(bearer.and_then(|bearer| bearer.expires_at), waiting).await;
    outcome.map_err(|TokenExpired| token_refusal(&IdentifyError::Token(TokenFault::Expired)))
}

/// Waits for a future, at most until a token expires. `None`: it doesn't expire.
///
/// # Errors
/// Fails at the expiry, even if the future completes at that moment.
pub(crate) async fn before_expiry<F: Future>(
    expires_at: Option<Instant>,
    waiting: F,
) -> Result<F::Output, TokenExpired> {
    let Some(expires_at) = expires_at else { return Ok(waiting.await) };
    let outcome = timeout_at(expires_at, waiting).await.ok();
    outcome.filter(|_| Instant::now() < expires_at).ok_or(TokenExpired)
}

/// The client's token expired before the response was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client's token expired")]
pub(crate) struct TokenExpired;

fn token_refusal(fault: &IdentifyError) -> RequestRefusal {
    RequestRefusal::BadToken { code: fault.as_str(), message: format!("Unauthorized - {fault}").into() }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    async fn refusal<F: Future>(left: Option<Duration>, waiting: F) -> Option<&'static str> {
        let bearer = TokenBearer { grants: [].into(), expires_at: left.map(|left| Instant::now() + left) };
        while_valid(Some(&bearer), waiting).await.err().map(|refusal| refusal.as_str())
    }

    #[tokio::test]
    async fn no_wait_outlasts_the_token() {
        assert_eq!(refusal(Some(Duration::from_millis(20)), pending::<()>()).await, Some("expired"));
        assert_eq!(refusal(Some(Duration::ZERO), ready(())).await, Some("expired"), "ready, but too late");
        for left in [Some(Duration::from_secs(600)), None] {
            assert_eq!(refusal(left, ready(())).await, None);
        }
        assert!(while_valid(None, ready(())).await.is_ok(), "no token is required");
    }
}
