//! Strings of jsonb texts: escapes (escape_json), and the order of keys.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::Malformed;

/// Returns the text of a string in quotes, in the spelling that Postgres writes.
pub fn unescape(quoted: &str) -> Result<Cow<'_, str>, Malformed> {
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(Malformed)?;
    if !inner.contains('\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let (mut text, mut rest) = (String::with_capacity(inner.len()), inner);
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escaped = rest[at + 1..].chars().next().ok_or(Malformed)?;
        rest = &rest[at + 1 + escaped.len_utf8()..];
        text.push(match escaped {
            '"' | '\\' | '/' => escaped,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let digits = rest.get(..4).ok_or(Malformed)?;
                rest = &rest[4..];
                u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).ok_or(Malformed)?
            }
            _ => return Err(Malformed),
        });
    }
    text.push_str(rest);
    Ok(Cow::Owned(text))
}

/// Appends a string in quotes, in the spelling that Postgres writes.
pub(crate) fn escape(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
        out.push_str(&rest[..at]);
        let byte = rest.as_bytes()[at];
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                out.push_str("\\u00");
                for digit in [control >> 4, control & 15] {
                    out.push(char::from_digit(u32::from(digit), 16).expect("it is below 16"));
                }
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

/// Orders keys as jsonb stores them: by length in bytes, then by bytes.
pub(crate) fn key_order(left: &str, right: &str) -> Ordering {
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

/// Compares a key in quotes with a key.
pub(super) fn compare_key(quoted: &str, key: &str) -> Result<Ordering, Malformed> {
    Ok(key_order(&unescape(quoted)?, key))
}
