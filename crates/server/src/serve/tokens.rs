//! From a request's token to what its bearer may read.
//!
//! Invariant: nobody is a [`Bearer`] without a token that was verified just now and isn't past its `exp`.
//! Kept by: [`Tokens::bearer`] is the only way to make one outside of tests. The leeway that admission grants to clocks doesn't hold here: whatever
//! a token opens ends at its `exp`, and would be opened again and again until the leeway is over.

use forebay_admission::{Identify, Unidentified};
use http::HeaderMap;
use tokio::time::Instant;

use super::protocol::{Bearer, Refusal, of_claim};

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
    pub(crate) async fn bearer(&self, headers: &HeaderMap) -> Result<Bearer, Refusal> {
        let token = self.identify.token(headers).await.map_err(|fault| refused(&fault))?;
        let token = token.ok_or(Refusal::TokenRequired)?;
        let grants = token.claim(&self.claim).map_or_else(|| Ok([].into()), of_claim);
        let grants = grants.map_err(|error| Refusal::BadGrant { message: error.to_string().into() })?;
        let until = token.left().and_then(|left| Instant::now().checked_add(left));
        Ok(Bearer { grants, until })
    }
}

fn refused(fault: &Unidentified) -> Refusal {
    Refusal::BadToken { code: fault.as_str(), message: format!("Unauthorized - {fault}").into() }
}
