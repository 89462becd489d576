//! Shared secret, such as a password that a client sends.
//!
//! Invariant: `Debug` never prints a secret. The time of a comparison depends only on the length of
//! the secret that the client sent.

use std::fmt;
use std::hint::black_box;

/// A secret: the configured one, or the one that a client sent. Never empty.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret. Returns `None` if the text is empty: an empty secret protects nothing.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        Some(text.into()).filter(|text| !text.is_empty()).map(Secret)
    }

    /// Returns whether the client sent this secret. `None`: the client sent no secret.
    pub fn is(&self, sent: Option<&Secret>) -> bool {
        sent.is_some_and(|sent| constant_time_eq(self.0.as_bytes(), sent.0.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Compares in constant time: reads every byte of `sent`, even after a difference. `expected` must
/// not be empty.
fn constant_time_eq(expected: &[u8], sent: &[u8]) -> bool {
    let mut difference = expected.len() ^ sent.len();
    for (sent, expected) in sent.iter().zip(expected.iter().cycle()) {
        // Without `black_box`, the compiler may stop at the first difference.
        difference = black_box(difference | usize::from(sent ^ expected));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_opens() {
        let secret = Secret::new("s3cret").unwrap();
        let opens = |sent: &str| secret.is(Secret::new(sent).as_ref());
        assert!(opens("s3cret"));
        for sent in ["", "s", "s3cre", "s3cret ", "S3cret", "s3creT", "s3crets3cret", "s3cret\0", "tercs3s"] {
            assert!(!opens(sent), "{sent:?}");
        }
        assert!(!secret.is(None));
    }

    #[test]
    fn an_empty_secret_is_none() {
        assert!(Secret::new("").is_none());
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let printed = format!("{:?} {:#?}", Secret::new("s3cret"), Secret::new("s3cret"));
        assert!(!printed.contains("s3cret"), "{printed}");
    }
}
