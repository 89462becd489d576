//! lower() and upper(), restricted to letters on which all collation providers agree.
//!
//! Under `C`, only ASCII letters change. Each other provider has its own table, for its own version
//! of Unicode. The C library maps character by character. ICU depends on context (`Σ`) and may
//! return more characters (`ß`).
//!
//! Invariant: a letter is mapped only if all providers map it alike ([`is_settled`]). Any other
//! letter in a row is an error.
//! Enforced by: `tests/it/letters.rs` tries every character on real servers.

use std::borrow::Cow;

use crate::collation::Collation;
use crate::eval_error::EvalError;

/// Which letters change case under a collation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Casing {
    /// ASCII letters. All other letters stay as they are.
    AsciiAlone,
    /// ASCII letters. Other letters are an error.
    AsciiSure,
    /// Letters on which all providers agree. Other letters are an error.
    Settled,
}

/// Case to which letters are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterCase {
    /// lower()
    Lower,
    /// upper()
    Upper,
}

impl Casing {
    /// Returns the letters that change. `None`: even ASCII letters differ (Turkish: `I` and `ı`).
    pub fn of(collation: &Collation) -> Option<Self> {
        let name = match collation {
            Collation::C => return Some(Casing::AsciiAlone),
            Collation::Builtin => return Some(Casing::Settled),
            Collation::Nondeterministic => return None,
            Collation::Libc(name) | Collation::Icu(name) => name.to_ascii_lowercase(),
        };
        match name.split(['-', '_', '.', '@']).next().unwrap_or_default() {
            "tr" | "az" | "lt" | "tur" | "aze" | "lit" => None,
            // ICU drops accents of Greek capitals and has special rules for Armenian and Dutch.
            "el" | "ell" | "gre" | "hy" | "hye" | "arm" | "nl" | "nld" | "dut" => Some(Casing::AsciiSure),
            _ => Some(Casing::Settled),
        }
    }

    /// Maps a text to a case.
    ///
    /// # Errors
    /// Fails if the result depends on the collation provider.
    pub fn apply<'a>(self, text: Cow<'a, str>, case: LetterCase) -> Result<Cow<'a, str>, EvalError> {
        let change = |char: char| match case {
            LetterCase::Lower => char.to_ascii_lowercase(),
            LetterCase::Upper => char.to_ascii_uppercase(),
        };
        if text.is_ascii() || self == Casing::AsciiAlone {
            return Ok(if text.chars().all(|char| change(char) == char) {
                text
            } else {
                Cow::Owned(text.chars().map(change).collect())
            });
        }
        let mapped = text.chars().map(|char| match char {
            _ if char.is_ascii() => Ok(change(char)),
            _ if self == Casing::Settled && is_settled(char) => Ok(map(char, case)),
            _ => Err(EvalError::new(
                "0A000",
                "the other case of a letter is not the same under all collations",
            )),
        });
        mapped.collect::<Result<String, _>>().map(Cow::Owned)
    }
}

fn map(char: char, case: LetterCase) -> char {
    let only = match case {
        LetterCase::Lower => char.to_lowercase().next(),
        LetterCase::Upper => char.to_uppercase().next(),
    };
    only.unwrap_or(char)
}

/// Returns whether all providers agree on the other case of this character.
///
/// True of characters without case, and of Latin, Greek and Cyrillic letters whose other case is
/// one letter that does not depend on context.
pub(crate) fn is_settled(char: char) -> bool {
    let single = |mut chars: Box<dyn Iterator<Item = char>>| chars.next().is_some() && chars.next().is_none();
    let caseless = char.to_lowercase().eq([char]) && char.to_uppercase().eq([char]);
    if char.is_ascii() || caseless {
        return true;
    }
    let alphabet = matches!(char, '\u{b5}'..='\u{17e}' | '\u{386}'..='\u{3ce}' | '\u{400}'..='\u{481}' | '\u{48a}'..='\u{513}');
    alphabet
        && !matches!(char, 'İ' | 'ı' | 'Σ' | 'ς' | 'σ')
        && single(Box::new(char.to_lowercase()))
        && single(Box::new(char.to_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_change_only_where_all_collations_agree() {
        let lower = |casing: Casing, text: &'static str| casing.apply(Cow::Borrowed(text), LetterCase::Lower);
        assert_eq!(lower(Casing::AsciiAlone, "ÄB").unwrap(), "Äb");
        assert_eq!(lower(Casing::Settled, "ÄB日Ж").unwrap(), "äb日ж");
        assert!(lower(Casing::Settled, "ΑΣ").is_err());
        assert!(lower(Casing::AsciiSure, "ÄB").is_err());
        assert_eq!(Casing::of(&Collation::Libc("tr_TR.UTF-8".to_owned())), None);
    }
}
