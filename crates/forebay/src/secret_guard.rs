//! Checks the secret of the admin address.
//!
//! Invariant: the time to respond doesn't depend on the secret. Neither the configured nor the
//! presented secret is ever printed. Two `Authorization` headers count as none: a proxy may have
//! checked the other one.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_admission::Secret;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::RwLock;

/// Optional secret that requests must present. Clones share it.
#[derive(Clone)]
pub struct SecretGuard(Arc<RwLock<Option<Secret>>>);

impl SecretGuard {
    /// Creates a guard. With `None`, every request is accepted.
    pub fn new(secret: Option<Secret>) -> SecretGuard {
        SecretGuard(Arc::new(RwLock::new(secret)))
    }

    /// Replaces the secret, for the next request.
    pub fn set(&self, secret: Option<Secret>) {
        *self.0.write() = secret;
    }

    /// Returns whether the headers have the secret: as a password with any user name (`Basic`), or
    /// alone (`Bearer`).
    pub fn accepts(&self, headers: &HeaderMap) -> bool {
        let secret = self.0.read();
        secret.as_ref().is_none_or(|secret| secret.is(presented_secret(headers).as_ref()))
    }

    /// Checks that the headers have the secret as `Bearer`. A browser sends a password (`Basic`) on
    /// its own, also for other pages.
    pub(crate) fn check_bearer(&self, headers: &HeaderMap) -> BearerCheck {
        let secret = self.0.read();
        let Some(secret) = &*secret else { return BearerCheck::NoSecret };
        let scheme = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
        let is_bearer = scheme.is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        match is_bearer && secret.is(presented_secret(headers).as_ref()) {
            true => BearerCheck::Accepted,
            false => BearerCheck::Refused,
        }
    }
}

/// Result of [`SecretGuard::check_bearer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BearerCheck {
    Accepted,
    /// The secret is missing or wrong, or isn't a Bearer token.
    Refused,
    /// No secret is configured.
    NoSecret,
}

/// Returns the secret of the only `Authorization` header.
fn presented_secret(headers: &HeaderMap) -> Option<Secret> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Secret::new(credentials);
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials).ok()?).ok()?;
    let (_any_name, password) = decoded.split_once(':')?;
    Secret::new(password)
}

impl fmt::Debug for SecretGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretGuard(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(guard: &SecretGuard, lines: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(AUTHORIZATION, line.parse().unwrap());
        }
        guard.accepts(&headers)
    }

    fn basic(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn the_secret_is_accepted_as_a_password_or_alone_and_nothing_else_is() {
        let guard = SecretGuard::new(Secret::new("s3cret:x"));
        for line in ["Bearer s3cret:x", "bearer  s3cret:x ", &basic("admin:s3cret:x"), &basic(":s3cret:x")] {
            assert!(accepts(&guard, &[line]), "{line}");
        }
        let long = "x".repeat(10_000);
        for line in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer s3cret",
            "s3cret:x",
            "Basic s3cret:x",
            "Digest s3cret:x",
            "Basic ====",
            &long,
        ] {
            assert!(!accepts(&guard, &[line]), "{line}");
        }
        for text in ["s3cret:x", "admin:s3cret", "admin:", "admin", "admin:s3cret:x "] {
            assert!(!accepts(&guard, &[&basic(text)]), "{text}");
        }
        assert!(!accepts(&guard, &[]));
        assert!(!accepts(&guard, &["Bearer s3cret:x", "Bearer s3cret:x"]), "of two, none counts");
    }

    #[test]
    fn a_replaced_secret_holds_for_all_clones() {
        let guard = SecretGuard::new(None);
        let clone = guard.clone();
        assert!(accepts(&clone, &[]));
        guard.set(Secret::new("one"));
        assert!(!accepts(&clone, &[]) && accepts(&clone, &["Bearer one"]));
        guard.set(Secret::new("two"));
        assert!(!accepts(&clone, &["Bearer one"]) && accepts(&clone, &["Bearer two"]));
        assert!(!format!("{guard:?}").contains("two"));
    }
}
