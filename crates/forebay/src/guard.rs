//! The operators' secret: what the admin address asks for.
//!
//! Invariant: how long an answer takes says nothing about the secret, and neither it nor what was shown is ever printed. Of two `Authorization`
//! headers none counts: a proxy before us may have believed the other.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forebay_admission::Secret;
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Asks for a secret, if there is one. Clones share it.
#[derive(Clone)]
pub struct Guard(Arc<RwLock<Option<Secret>>>);

impl Guard {
    /// `None`: nobody is asked.
    pub fn new(secret: Option<Secret>) -> Guard {
        Guard(Arc::new(RwLock::new(secret)))
    }

    /// Asks for another one from now on.
    pub fn set(&self, secret: Option<Secret>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = secret;
    }

    /// Whether these headers show it: as a password, with any user name (`Basic`), or alone (`Bearer`).
    pub fn opens(&self, headers: &HeaderMap) -> bool {
        let secret = self.0.read().unwrap_or_else(PoisonError::into_inner);
        secret.as_ref().is_none_or(|secret| secret.is(shown(headers).as_ref()))
    }
}

fn shown(headers: &HeaderMap) -> Option<Secret> {
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

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(guard: &Guard, lines: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(AUTHORIZATION, line.parse().unwrap());
        }
        guard.opens(&headers)
    }

    fn basic(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn the_secret_opens_as_a_password_or_alone_and_nothing_else_does() {
        let guard = Guard::new(Secret::new("s3cret:x"));
        for line in ["Bearer s3cret:x", "bearer  s3cret:x ", &basic("admin:s3cret:x"), &basic(":s3cret:x")] {
            assert!(opens(&guard, &[line]), "{line}");
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
            assert!(!opens(&guard, &[line]), "{line}");
        }
        for text in ["s3cret:x", "admin:s3cret", "admin:", "admin", "admin:s3cret:x "] {
            assert!(!opens(&guard, &[&basic(text)]), "{text}");
        }
        assert!(!opens(&guard, &[]));
        assert!(!opens(&guard, &["Bearer s3cret:x", "Bearer s3cret:x"]), "of two, none counts");
    }

    #[test]
    fn it_can_be_changed_for_all_who_ask() {
        let guard = Guard::new(None);
        let asked = guard.clone();
        assert!(opens(&asked, &[]));
        guard.set(Secret::new("one"));
        assert!(!opens(&asked, &[]) && opens(&asked, &["Bearer one"]));
        guard.set(Secret::new("two"));
        assert!(!opens(&asked, &["Bearer one"]) && opens(&asked, &["Bearer two"]));
        assert!(!format!("{guard:?}").contains("two"));
    }
}
