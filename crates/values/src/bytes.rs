//! Byte strings (bytea): input in hexadecimal and escaped form, output in hexadecimal.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::input::hexadecimal;
use super::input_error::InputError;

/// Parses `\x0aff`, or bytes in which `\\` is a backslash and `\012` a byte in octal.
pub(crate) fn parse(text: &str) -> Result<Vec<u8>, InputError> {
    match text.strip_prefix("\\x") {
        Some(digits) => hex(digits),
        None => escaped(text.as_bytes()),
    }
}

fn hex(digits: &str) -> Result<Vec<u8>, InputError> {
    let mut out = Vec::with_capacity(digits.len() / 2);
    let digit = |char: char| u8::try_from(char).ok().and_then(hexadecimal).ok_or(InputError::HexDigit(char));
    let mut digits = digits.chars();
    while let Some(first) = digits.next() {
        if matches!(first, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let high = digit(first)?;
        out.push(high << 4 | digit(digits.next().ok_or(InputError::HexLength)?)?);
    }
    Ok(out)
}

fn escaped(text: &[u8]) -> Result<Vec<u8>, InputError> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    loop {
        rest = match rest {
            [] => return Ok(out),
            [b'\\', b'\\', after @ ..] => {
                out.push(b'\\');
                after
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            [b'\\', ..] => return Err(InputError::Escape),
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

pub(crate) fn write(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + bytes.len() * 2);
    out.push_str("\\x");
    bytes.iter().for_each(|byte| write!(out, "{byte:02x}").expect("writing to a String never fails"));
    out
}

/// Compares a row's text with bytes, without memory of its own. `None`: the text is not in the form
/// that a server writes.
pub(crate) fn compare_text(text: &[u8], bytes: &[u8]) -> Option<Ordering> {
    let (digits, []) = text.strip_prefix(b"\\x")?.as_chunks::<2>() else { return None };
    let decoded = digits.iter().map(|[high, low]| Some(hexadecimal(*high)? << 4 | hexadecimal(*low)?));
    for (index, byte) in decoded.enumerate() {
        match bytes.get(index) {
            None => return Some(Ordering::Greater),
            Some(other) if byte? != *other => return Some(byte?.cmp(other)),
            Some(_) => {}
        }
    }
    Some(digits.len().cmp(&bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_input_are_parsed() {
        for (text, bytes) in [
            ("\\x", &b""[..]),
            ("\\x00fF", b"\x00\xff"),
            ("\\x 00 ff\n", b"\x00\xff"),
            ("a\\\\b", b"a\\b"),
            ("\\001\\377", b"\x01\xff"),
            ("é", "é".as_bytes()),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(bytes), "{text}");
        }
        for text in ["\\x0", "\\x0 0", "\\xg0", "\\", "\\1", "\\400", "a\\b"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(write(b"\x00\xfe"), "\\x00fe");
    }

    #[test]
    fn texts_compare_like_the_bytes_they_stand_for() {
        let all: [&[u8]; 5] = [b"", b"\x00", b"\x00\x01", b"\x01", b"\xff"];
        for left in all {
            for right in all {
                let text = write(left);
                assert_eq!(compare_text(text.as_bytes(), right), Some(left.cmp(right)), "{left:?} {right:?}");
            }
        }
        assert_eq!(compare_text(b"abc", b"abc"), None);
    }
}
