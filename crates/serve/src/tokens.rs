//! From a request's token to what its bearer may read, and until when.
//!
//! Invariant: nobody is a [`TokenBearer`] without a token that was verified just now and isn't past its `exp`; and whatever an answer waits for, it isn't
//! waited for beyond it.
//! Kept by: [`Tokens::bearer`] is the only way to make one outside of tests, and every wait on the way to an answer is [`while_valid`]. The leeway that
//! admission grants to clocks doesn't hold here: whatever a token opens ends at its `exp`, and would be opened again and again until the leeway is over.

use forebay_admission::{Identify, IdentifyError, TokenFault};
use http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use super::protocol::{RequestRefusal, TokenBearer, parse_grants};

/// How tokens are read.
pub(crate) struct Tokens {
    identify: Identify,
    claim: String,
}

impl Tokens {
    /// `claim`: the one with the grants.
    pub(crate) fn new(identify: Identify, claim: Option<&str>) -> Self {
        Tokens { identify, claim: claim.unwrap_or_default().to_owned() }
    }

    /// Who asks. A token without grants grants nothing.
    pub(crate) async fn bearer(&self, headers: &HeaderMap) -> Result<TokenBearer, RequestRefusal> {
        let token = self.identify.token(headers).await.map_err(|fault| refused(&fault))?;
        let token = token.ok_or(RequestRefusal::TokenRequired)?;
        let grants = token.claim(&self.claim).map_or_else(|| Ok([].into()), parse_grants);
        let grants =
            grants.map_err(|error| RequestRefusal::BadGrant { message: error.to_string().into() })?;
        let until = token.remaining().and_then(|left| Instant::now().checked_add(left));
        Ok(TokenBearer { grants, until })
    }
}

/// Waits for what somebody asks for, until his token expires. What comes at that moment comes too late.
pub(crate) async fn while_valid<F: Future>(
    bearer: Option<&TokenBearer>,
    waiting: F,
) -> Result<F::Output, RequestRefusal> {
    let Some(until) = bearer.and_then(|bearer| bearer.until) else { return Ok(waiting.await) };
    let outcome = timeout_at(until, waiting).await.ok();
    let in_time = outcome.filter(|_| Instant::now() < until);
    in_time.ok_or_else(|| refused(&IdentifyError::Token(TokenFault::Expired)))
}

fn refused(fault: &IdentifyError) -> RequestRefusal {
    RequestRefusal::BadToken { code: fault.as_str(), message: format!("Unauthorized - {fault}").into() }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    async fn waited<F: Future>(left: Option<Duration>, waiting: F) -> Option<&'static str> {
        let bearer = TokenBearer { grants: [].into(), until: left.map(|left| Instant::now() + left) };
        while_valid(Some(&bearer), waiting).await.err().map(|refusal| refusal.as_str())
    }

    #[tokio::test]
    async fn nothing_is_waited_for_beyond_the_token_s_end() {
        assert_eq!(waited(Some(Duration::from_millis(20)), pending::<()>()).await, Some("expired"));
        assert_eq!(waited(Some(Duration::ZERO), ready(())).await, Some("expired"), "there, but too late");
        for left in [Some(Duration::from_secs(600)), None] {
            assert_eq!(waited(left, ready(())).await, None);
        }
        assert!(while_valid(None, ready(())).await.is_ok(), "whoever needs no token");
    }
}
