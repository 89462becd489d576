//! JSON strings and numbers.

/// Letter after the backslash for each byte that must be escaped: bytes below 0x20, the quote and
/// the backslash. 0: not escaped.
const ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        escapes[byte] = b'u';
        byte += 1;
    }
    escapes[b'\n' as usize] = b'n';
    escapes[b'\r' as usize] = b'r';
    escapes[b'\t' as usize] = b't';
    escapes[0x08] = b'b';
    escapes[0x0c] = b'f';
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes
};

/// Appends a value: a quoted string, or `null` for `None`.
pub(super) fn value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        None => out.extend_from_slice(b"null"),
        Some(bytes) => {
            out.push(b'"');
            escaped(out, bytes);
            out.push(b'"');
        }
    }
}

/// Appends the inside of a string.
pub(super) fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(at) = first_escaped(rest) {
        out.extend_from_slice(&rest[..at]);
        let byte = rest[at];
        match ESCAPES[usize::from(byte)] {
            b'u' => {
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
            escape => out.extend_from_slice(&[b'\\', escape]),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Returns the index of the first byte that must be escaped. Checks eight bytes at a time, because
/// most texts have none.
fn first_escaped(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let is_plain = |word: &[u8; 8]| {
        let word = u64::from_ne_bytes(*word);
        // The top bit of a byte is set if it is below 0x20, the quote or the backslash. The byte
        // after such a byte may be a false positive.
        let below = |bytes: u64, least: u8| bytes.wrapping_sub(ONES * u64::from(least)) & !bytes;
        let same = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        (below(word, 0x20) | same(b'"') | same(b'\\')) & TOPS == 0
    };
    let (words, _) = bytes.as_chunks::<8>();
    let plain = words.iter().position(|word| !is_plain(word)).unwrap_or(words.len()) * 8;
    let found = bytes[plain..].iter().position(|byte| ESCAPES[usize::from(*byte)] != 0)?;
    Some(plain + found)
}

/// Appends a number without quotes.
pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_string_round_trips(text in any::<String>()) {
            let mut out = Vec::new();
            value(&mut out, Some(text.as_bytes()));
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn every_number_is_written_like_to_string(figure in any::<u64>()) {
            let mut out = Vec::new();
            number(&mut out, figure);
            prop_assert_eq!(String::from_utf8(out).unwrap(), figure.to_string());
        }
    }

    #[test]
    fn a_byte_is_escaped_at_any_position() {
        for byte in 0..=u8::MAX {
            for place in 0..24 {
                let mut bytes = [b'~'; 24];
                bytes[place] = byte;
                let expected = (ESCAPES[usize::from(byte)] != 0).then_some(place);
                assert_eq!(first_escaped(&bytes), expected, "{byte} at {place}");
            }
        }
    }

    #[test]
    fn every_byte_that_needs_it_is_escaped() {
        let all: String = (0..0x80).map(char::from).collect();
        let mut out = Vec::new();
        value(&mut out, Some(all.as_bytes()));
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), all);
    }
}
