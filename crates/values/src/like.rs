//! LIKE (like_match.c): `%` matches any text, `_` matches one character, `\` escapes the next
//! character.

use crate::eval_error::EvalError;

/// Maximum length of the part of a pattern between two `%` that is searched for in any text.
const MAX_SOUGHT_BYTES: usize = 256;
/// Maximum number of bytes that are compared again, in vain, for a pattern with a longer part.
const MAX_RETRIED_BYTES: usize = 1 << 24;

/// Returns whether the whole text matches the pattern.
///
/// Backtracks only to the last `%`, and over a bounded number of bytes.
///
/// # Errors
/// Fails if the pattern ends with its escape character, or if the search takes too long (`0A000`);
/// see [`is_bounded`].
pub fn matches(text: &str, pattern: &str) -> Result<bool, EvalError> {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let (mut t, mut p) = (0, 0);
    let mut retries = MAX_RETRIED_BYTES + (text.len() + 1) * (MAX_SOUGHT_BYTES + 1);
    // Positions after the last `%` in the pattern, and in the text where matching was last tried.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if t >= text.len() {
            // The rest of the pattern must match the empty text.
            return Ok(pattern[p..].iter().all(|byte| *byte == b'%'));
        }
        let matched = match pattern.get(p) {
            None => false,
            Some(b'%') => {
                while let Some(wildcard @ (b'%' | b'_')) = pattern.get(p) {
                    if *wildcard == b'_' {
                        if t >= text.len() {
                            return Ok(false);
                        }
                        t += char_length(text[t]);
                    }
                    p += 1;
                }
                match pattern.get(p) {
                    None => return Ok(true),
                    Some(b'\\') if p + 1 >= pattern.len() => return Err(trailing_escape()),
                    Some(_) => {}
                }
                retry = Some((p, t));
                if t >= text.len() {
                    return Ok(false);
                }
                continue;
            }
            Some(b'_') => {
                t += char_length(text[t]);
                p += 1;
                continue;
            }
            Some(b'\\') => {
                p += 1;
                match pattern.get(p) {
                    None => return Err(trailing_escape()),
                    Some(byte) => *byte == text[t],
                }
            }
            Some(byte) => *byte == text[t],
        };
        if matched {
            (t, p) = (t + 1, p + 1);
            continue;
        }
        match &mut retry {
            None => return Ok(false),
            Some((after, tried)) => {
                let retried = p - *after + 1;
                retries = retries.checked_sub(retried).ok_or_else(too_long)?;
                *tried += char_length(text[*tried]);
                (t, p) = (*tried, *after);
                if t >= text.len() {
                    return Ok(false);
                }
            }
        }
    }
}

/// Returns whether a search for the pattern takes a bounded time per byte of any text. If not,
/// [`matches()`] may fail with `0A000`.
pub fn is_bounded(pattern: &str) -> bool {
    let (mut sought, mut bytes) = (0, pattern.bytes());
    while let Some(byte) = bytes.next() {
        sought = if byte == b'%' { 0 } else { sought + 1 };
        if byte == b'\\' {
            sought += usize::from(bytes.next().is_some());
        }
        if sought > MAX_SOUGHT_BYTES {
            return false;
        }
    }
    true
}

/// Replaces the pattern's escape character by `\` (like_escape).
///
/// # Errors
/// Fails if `escape` has several characters.
pub fn with_escape(pattern: &str, escape: &str) -> Result<String, EvalError> {
    let mut chars = escape.chars();
    let escape = chars.next();
    if chars.next().is_some() {
        return Err(EvalError::new("22025", "invalid escape string"));
    }
    if escape == Some('\\') {
        return Ok(pattern.to_owned());
    }
    let (mut out, mut escaped) = (String::with_capacity(pattern.len() + 8), false);
    for char in pattern.chars() {
        if Some(char) == escape && !escaped {
            out.push('\\');
            escaped = true;
            continue;
        }
        if char == '\\' && !escaped {
            out.push('\\');
        }
        out.push(char);
        escaped = false;
    }
    Ok(out)
}

/// Returns the prefix of all matches, and whether the pattern is just that prefix and a final `%`.
pub fn prefix(pattern: &str) -> (String, bool) {
    let (mut out, mut chars) = (String::new(), pattern.chars());
    while let Some(char) = chars.next() {
        match char {
            '%' => return (out, chars.as_str().is_empty()),
            '_' => return (out, false),
            '\\' => out.extend(chars.next()),
            char => out.push(char),
        }
    }
    (out, false)
}

fn char_length(first: u8) -> usize {
    match first {
        0xf0.. => 4,
        0xe0.. => 3,
        0xc0.. => 2,
        _ => 1,
    }
}

fn too_long() -> EvalError {
    EvalError::new("0A000", "LIKE of a text and a pattern this long is not evaluated")
}

fn trailing_escape() -> EvalError {
    EvalError::new("22025", "LIKE pattern must not end with escape character")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_count_characters() {
        for (text, pattern, result) in [
            ("", "", true),
            ("", "%", true),
            ("", "_", false),
            ("aé", "a_", true),
            ("é", "__", false),
            ("abc", "%b%", true),
            ("aXbXc", "a%b%c", true),
            ("ab", "a%b_", false),
            ("a%", "a\\%", true),
            ("ab", "a\\%", false),
            ("aaab", "%ab", true),
            ("日本語", "%本_", true),
        ] {
            assert_eq!(matches(text, pattern), Ok(result), "{text} LIKE {pattern}");
        }
        assert!(matches("a", "a%\\").is_ok());
        assert!(matches("a", "\\").is_err());
    }

    #[test]
    fn many_wildcards_neither_recurse_nor_explode() {
        let pattern = "%a".repeat(20_000);
        assert_eq!(matches(&"a".repeat(19_999), &pattern), Ok(false));
        assert_eq!(matches(&"a".repeat(20_000), &pattern), Ok(true));
    }

    #[test]
    fn a_long_search_is_refused_after_a_bounded_number_of_steps() {
        let text = "a".repeat(100_000);
        let pattern = |sought: usize| format!("%{}b", "a".repeat(sought - 1));
        assert!(is_bounded(&pattern(256)) && is_bounded(&"%_a\\%".repeat(10_000)));
        assert_eq!(matches(&text, &pattern(256)), Ok(false));
        for long in [pattern(257), format!("%{}b", "\\%".repeat(128)), format!("%{}b", "_a".repeat(128))] {
            assert!(!is_bounded(&long));
        }
        assert_eq!(matches(&text, &pattern(50_000)).unwrap_err().sqlstate(), "0A000");
        assert_eq!(matches(&text, &format!("{}b%", "a".repeat(60_000))), Ok(false), "nothing is retried");
        assert_eq!(matches(&text, &format!("%{}", "a".repeat(100_000))), Ok(true));
    }

    #[test]
    fn another_escape_character_becomes_a_backslash() {
        assert_eq!(with_escape("a#%b\\", "#").unwrap(), "a\\%b\\\\");
        assert_eq!(with_escape("a\\%", "").unwrap(), "a\\\\%");
        assert!(with_escape("a", "##").is_err());
    }

    #[test]
    fn prefixes_end_at_the_first_wildcard() {
        assert_eq!(prefix("ab%"), ("ab".to_owned(), true));
        assert_eq!(prefix("a\\%b_c%"), ("a%b".to_owned(), false));
        assert_eq!(prefix("ab"), ("ab".to_owned(), false));
    }
}
