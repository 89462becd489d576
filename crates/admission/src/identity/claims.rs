//! Validation of a verified token's claims.
//!
//! Invariant: a token without `exp` is refused unless configured otherwise. A claim of the wrong
//! type is refused, never treated as missing.
//! Enforced by: [`ClaimRules::check`], a pure function that is passed the time.
//! Out of scope: signatures. They are verified before.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{IdentifyError, TokenFault, with_class};
use crate::client_identity::ClientIdentity;

/// Requirements on a token's claims.
#[derive(Debug, Clone)]
pub(super) struct ClaimRules {
    pub(super) user_claim: String,
    pub(super) class_claim: Option<String>,
    pub(super) issuers: Vec<String>,
    pub(super) audience: Audience,
    pub(super) leeway: Duration,
    pub(super) requires_exp: bool,
}

/// Requirement on the claim `aud`.
#[derive(Debug, Clone)]
pub(super) enum Audience {
    /// The token must not name an audience. RFC 7519: a recipient that is not in `aud` must reject
    /// the token.
    Absent,
    /// The token must name one of these audiences.
    OneOf(Vec<String>),
    /// Any audience, or none.
    Any,
}

/// Relevant claims of a valid token.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Subject {
    pub(super) user: String,
    pub(super) class: Option<String>,
    /// `exp`, in seconds since 1970.
    pub(super) expires_at: Option<f64>,
}

impl Subject {
    /// Returns the user with the class. Fails if the name can't be a user id.
    pub(super) fn identity(&self) -> Result<ClientIdentity, IdentifyError> {
        let client = ClientIdentity::user(&self.user).map_err(IdentifyError::Id)?;
        Ok(with_class(client, self.class.as_deref()))
    }
}

impl ClaimRules {
    /// Checks the claims. `now` is the time since 1970.
    pub(super) fn check(&self, claims: &Map<String, Value>, now: Duration) -> Result<Subject, TokenFault> {
        let (now, leeway) = (now.as_secs_f64(), self.leeway.as_secs_f64());
        let expires_at = time(claims, "exp")?;
        match expires_at {
            None if self.requires_exp => return Err(TokenFault::NoExpiry),
            // RFC 7519: the token must not be accepted on or after `exp`.
            Some(exp) if now >= exp + leeway => return Err(TokenFault::Expired),
            None | Some(_) => {}
        }
        if time(claims, "nbf")?.is_some_and(|nbf| now + leeway < nbf) {
            return Err(TokenFault::NotYetValid);
        }
        if !self.issuers.is_empty() && !claims.get("iss").is_some_and(|iss| is_one_of(iss, &self.issuers)) {
            return Err(TokenFault::WrongIssuer);
        }
        let for_us = match &self.audience {
            Audience::Any => true,
            Audience::Absent => !claims.contains_key("aud"),
            Audience::OneOf(wanted) => claims.get("aud").is_some_and(|aud| names_one_of(aud, wanted)),
        };
        if !for_us {
            return Err(TokenFault::WrongAudience);
        }
        let user = claims.get(&self.user_claim).and_then(text).ok_or(TokenFault::NoUser)?;
        let class = self.class_claim.as_ref().and_then(|name| claims.get(name)).and_then(text);
        Ok(Subject { user, class, expires_at })
    }
}

/// Returns a time claim in seconds since 1970.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<f64>, TokenFault> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or(TokenFault::Malformed),
    }
}

/// Returns a string, or an integer as text.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if number.is_u64() || number.is_i64() => Some(number.to_string()),
        Value::Number(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_one_of(value: &Value, wanted: &[String]) -> bool {
    value.as_str().is_some_and(|value| wanted.iter().any(|wanted| wanted == value))
}

/// Returns whether an audience, which may be a list, contains one of `wanted`.
fn names_one_of(value: &Value, wanted: &[String]) -> bool {
    match value {
        Value::Array(values) => values.iter().any(|value| is_one_of(value, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            is_one_of(value, wanted)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn rules() -> ClaimRules {
        ClaimRules {
            user_claim: "sub".into(),
            class_claim: None,
            issuers: Vec::new(),
            audience: Audience::Absent,
            leeway: Duration::from_secs(30),
            requires_exp: true,
        }
    }

    fn check(rules: &ClaimRules, claims: Value) -> Result<String, TokenFault> {
        let Value::Object(claims) = claims else { panic!("claims are an object") };
        rules.check(&claims, NOW).map(|subject| subject.user)
    }

    #[test]
    fn a_token_is_valid_until_its_expiry_plus_the_leeway() {
        let check = |exp: Value| check(&rules(), json!({"sub": "ada", "exp": exp}));
        assert_eq!(check(json!(1_000_001)), Ok("ada".into()));
        assert_eq!(check(json!(999_971)), Ok("ada".into()));
        assert_eq!(check(json!(999_970)), Err(TokenFault::Expired));
        assert_eq!(check(json!(999_970.5)), Ok("ada".into()));
        assert_eq!(check(json!(0)), Err(TokenFault::Expired));
        assert_eq!(check(json!(-5)), Err(TokenFault::Expired));
    }

    #[test]
    fn a_token_without_expiry_is_refused_unless_allowed() {
        let mut rules = rules();
        assert_eq!(check(&rules, json!({"sub": "ada"})), Err(TokenFault::NoExpiry));
        rules.requires_exp = false;
        assert_eq!(check(&rules, json!({"sub": "ada"})), Ok("ada".into()));
        assert_eq!(check(&rules, json!({"sub": "ada", "exp": 1})), Err(TokenFault::Expired));
    }

    #[test]
    fn a_time_of_the_wrong_type_is_malformed() {
        let mut rules = rules();
        rules.requires_exp = false;
        for claims in [
            json!({"sub": "ada", "exp": "never"}),
            json!({"sub": "ada", "exp": null}),
            json!({"sub": "ada", "nbf": [1]}),
        ] {
            assert_eq!(check(&rules, claims), Err(TokenFault::Malformed));
        }
    }

    #[test]
    fn a_token_is_refused_before_its_nbf() {
        let check = |nbf: u64| check(&rules(), json!({"sub": "ada", "exp": 2_000_000, "nbf": nbf}));
        assert_eq!(check(1_000_030), Ok("ada".into()));
        assert_eq!(check(1_000_031), Err(TokenFault::NotYetValid));
    }

    #[test]
    fn issuer_and_audience_are_checked_when_configured() {
        let mut rules = rules();
        let token = |more: Value| {
            let mut claims = json!({"sub": "ada", "exp": 2_000_000});
            claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            claims
        };
        assert_eq!(check(&rules, token(json!({"iss": "x"}))), Ok("ada".into()));
        assert_eq!(check(&rules, token(json!({"aud": "them"}))), Err(TokenFault::WrongAudience));
        rules.audience = Audience::Any;
        assert_eq!(check(&rules, token(json!({"aud": "them"}))), Ok("ada".into()));
        rules.issuers = vec!["us".into(), "them".into()];
        assert_eq!(check(&rules, token(json!({}))), Err(TokenFault::WrongIssuer));
        assert_eq!(check(&rules, token(json!({"iss": ["us"]}))), Err(TokenFault::WrongIssuer));
        assert_eq!(check(&rules, token(json!({"iss": "them"}))), Ok("ada".into()));
        rules.audience = Audience::OneOf(vec!["streams".into()]);
        assert_eq!(check(&rules, token(json!({"iss": "us"}))), Err(TokenFault::WrongAudience));
        assert_eq!(check(&rules, token(json!({"iss": "us", "aud": ["a", "streams"]}))), Ok("ada".into()));
        assert_eq!(check(&rules, token(json!({"iss": "us", "aud": "streams"}))), Ok("ada".into()));
        assert_eq!(
            check(&rules, token(json!({"iss": "us", "aud": {"a": 1}}))),
            Err(TokenFault::WrongAudience)
        );
    }

    #[test]
    fn the_user_is_a_string_or_integer_claim() {
        let mut rules = rules();
        rules.class_claim = Some("plan".into());
        let claims = |sub: Value| json!({"sub": sub, "uid": 7, "exp": 2_000_000, "plan": "free"});
        for not_a_user in [json!(null), json!(1.5), json!(["ada"]), json!({}), json!(true)] {
            assert_eq!(check(&rules, claims(not_a_user)), Err(TokenFault::NoUser));
        }
        rules.user_claim = "uid".into();
        let all = claims(json!("ada"));
        let subject = rules.check(all.as_object().unwrap(), NOW).unwrap();
        assert_eq!(
            subject,
            Subject { user: "7".into(), class: Some("free".into()), expires_at: Some(2_000_000.0) }
        );
    }
}
