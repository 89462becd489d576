//! What clients show to be let in.
//!
//! Invariant: a secret is in no output, and how long a comparison takes depends on nothing but how much a client showed.

use std::fmt;
use std::hint::black_box;

/// A secret: ours, or one that a client showed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// `None`: it is empty, and would keep nobody out.
    pub fn new(text: impl Into<String>) -> Option<Self> {
        Some(text.into()).filter(|text| !text.is_empty()).map(Secret)
    }

    /// Whether that is what was shown.
    pub fn is(&self, shown: Option<&Secret>) -> bool {
        shown.is_some_and(|shown| equal(self.0.as_bytes(), shown.0.as_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Looks at every byte of `shown`, whichever of them differ. `ours` isn't empty.
fn equal(ours: &[u8], shown: &[u8]) -> bool {
    let mut difference = ours.len() ^ shown.len();
    for (shown, ours) in shown.iter().zip(ours.iter().cycle()) {
        // Without the black box, a compiler may stop at the first difference.
        difference = black_box(difference | usize::from(shown ^ ours));
    }
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_opens() {
        let ours = Secret::new("s3cret").unwrap();
        let opens = |shown: &str| ours.is(Secret::new(shown).as_ref());
        assert!(opens("s3cret"));
        for shown in ["", "s", "s3cre", "s3cret ", "S3cret", "s3creT", "s3crets3cret", "s3cret\0", "tercs3s"]
        {
            assert!(!opens(shown), "{shown:?}");
        }
        assert!(!ours.is(None));
    }

    #[test]
    fn an_empty_secret_is_none() {
        assert!(Secret::new("").is_none());
    }

    #[test]
    fn a_secret_is_never_shown() {
        let shown = format!("{:?} {:#?}", Secret::new("s3cret"), Secret::new("s3cret"));
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
