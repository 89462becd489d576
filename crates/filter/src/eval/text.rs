//! Evaluation of functions of texts. Positions and lengths count characters, as in Postgres.
//!
//! Invariant: a result is at most [`MAX_RESULT`] bytes, or as long as the arguments together. A
//! longer one is the error of Postgres, or `0A000` if Postgres may have a result.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use forebay_values::{EvalError, SqlValue};
use md5::{Digest, Md5};

use super::EvalResult;
use super::function::Arguments;

/// Maximum bytes of a result that is longer than the arguments.
const MAX_RESULT: usize = 1 << 20;
/// Maximum bytes of a value in Postgres, with its header (MaxAllocSize).
const MAX_VALUE: i64 = 0x3fff_ffff;
const HEADER: i64 = 4;

/// Function of texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TextFunction {
    Ascii,
    BitLength,
    Chr,
    InitCap {
        /// Letters beyond ASCII are no letters, as under `C`. Otherwise they are an error.
        is_ascii_alone: bool,
    },
    Left,
    Length,
    /// Of a bpchar: trailing blanks don't count.
    LengthUnpadded,
    Md5,
    OctetLength,
    Pad(TextEnd),
    Position,
    Repeat,
    Replace,
    Reverse,
    Right,
    SplitPart,
    StartsWith,
    Substring,
    Translate,
    Trim {
        front: bool,
        back: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextEnd {
    Front,
    Back,
}

impl TextFunction {
    pub(super) fn apply(self, mut arguments: Arguments<'_>) -> EvalResult<'_> {
        let text = match self {
            TextFunction::Chr => return character(arguments.int()).map(|char| Some(char.into())),
            _ => arguments.text(),
        };
        Ok(Some(match self {
            TextFunction::Chr => unreachable!("handled above"),
            TextFunction::Ascii => number(text.chars().next().map_or(0, |first| first as usize)),
            TextFunction::BitLength => match i32::try_from(text.len() * 8) {
                Ok(bits) => SqlValue::Int(bits.into()),
                Err(_) => return Err(EvalError::out_of_range("integer")),
            },
            TextFunction::InitCap { is_ascii_alone } => capitals(&text, is_ascii_alone)?.into(),
            TextFunction::Left => cut(text, |text| (0, left_end(text, arguments.int()))),
            TextFunction::Right => cut(text, |text| (right_start(text, arguments.int()), text.len())),
            TextFunction::Length => number(text.chars().count()),
            TextFunction::LengthUnpadded => number(forebay_values::unpadded(&text).chars().count()),
            TextFunction::Md5 => Md5::digest(text.as_bytes())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
                .into(),
            TextFunction::OctetLength => number(text.len()),
            TextFunction::Pad(end) => {
                let length = arguments.int();
                let fill = arguments.optional_text().unwrap_or(Cow::Borrowed(" "));
                pad(&text, length, &fill, end)?.into()
            }
            TextFunction::Position => {
                let before = text.find(&*arguments.text());
                number(before.map_or(0, |bytes| text[..bytes].chars().count() + 1))
            }
            TextFunction::Repeat => repeat(&text, arguments.int())?.into(),
            TextFunction::Replace => {
                let (from, to) = (arguments.text(), arguments.text());
                replace(text, &from, &to)?
            }
            TextFunction::Reverse => text.chars().rev().collect::<String>().into(),
            TextFunction::SplitPart => {
                let (separator, part) = (arguments.text(), arguments.int());
                split_part(&text, &separator, part)?.to_owned().into()
            }
            TextFunction::StartsWith => SqlValue::Bool(text.starts_with(&*arguments.text())),
            TextFunction::Substring => {
                let (start, length) = (arguments.int(), arguments.optional_int());
                let (from, to) = substring(&text, start, length)?;
                cut(text, |_| (from, to))
            }
            TextFunction::Translate => {
                let (from, to) = (arguments.text(), arguments.text());
                translate(&text, &from, &to)?.into()
            }
            TextFunction::Trim { front, back } => {
                let set = arguments.optional_text().unwrap_or(Cow::Borrowed(" "));
                cut(text, |text| trim(text, &set, front, back))
            }
        }))
    }

    pub(super) fn never_fails(self) -> bool {
        match self {
            TextFunction::Ascii
            | TextFunction::Left
            | TextFunction::Length
            | TextFunction::LengthUnpadded
            | TextFunction::Md5
            | TextFunction::OctetLength
            | TextFunction::Position
            | TextFunction::Reverse
            | TextFunction::Right
            | TextFunction::StartsWith
            | TextFunction::Trim { .. } => true,
            TextFunction::BitLength
            | TextFunction::Chr
            | TextFunction::InitCap { .. }
            | TextFunction::Pad(_)
            | TextFunction::Repeat
            | TextFunction::Replace
            | TextFunction::SplitPart
            | TextFunction::Substring
            | TextFunction::Translate => false,
        }
    }

    /// Returns whether it searches for a text: a nondeterministic collation finds other bytes.
    pub(super) fn searches(self) -> bool {
        matches!(
            self,
            TextFunction::Position
                | TextFunction::Replace
                | TextFunction::SplitPart
                | TextFunction::StartsWith
        )
    }
}

fn number(count: usize) -> SqlValue<'static> {
    SqlValue::Int(count as i64)
}

/// Returns the part of the text between two byte positions.
fn cut<'v>(text: Cow<'v, str>, range: impl FnOnce(&str) -> (usize, usize)) -> SqlValue<'v> {
    let (from, to) = range(&text);
    let to = to.max(from);
    SqlValue::Text(match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[from..to]),
        Cow::Owned(text) => Cow::Owned(text[from..to].to_owned()),
    })
}

/// Returns the byte position after this many characters; the end of the text if it has fewer.
fn after(text: &str, chars: i64) -> usize {
    match usize::try_from(chars) {
        Ok(chars) => text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at),
        Err(_) => 0,
    }
}

fn left_end(text: &str, count: i64) -> usize {
    after(text, if count < 0 { text.chars().count() as i64 + count } else { count })
}

fn right_start(text: &str, count: i64) -> usize {
    match count {
        // Postgres negates it as an int4, which stays negative.
        _ if count == i64::from(i32::MIN) => 0,
        ..0 => after(text, -count),
        _ => after(text, text.chars().count() as i64 - count),
    }
}

fn substring(text: &str, start: i64, length: Option<i64>) -> Result<(usize, usize), EvalError> {
    let from = start.max(1);
    let to = match length {
        Some(..0) => return Err(EvalError::new("22011", "negative substring length not allowed")),
        // An end beyond int4 is the end of the text.
        Some(length) if start + length <= i64::from(i32::MAX) => (start + length).max(from),
        Some(_) | None => return Ok((after(text, from - 1), text.len())),
    };
    let begin = after(text, from - 1);
    Ok((begin, begin + after(&text[begin..], to - from)))
}

fn trim(text: &str, set: &str, front: bool, back: bool) -> (usize, usize) {
    // A long set is hashed, so that the time doesn't grow with the product of both lengths.
    let hashed: Option<HashSet<char>> = (set.len() > 16).then(|| set.chars().collect());
    let is_in = |char: char| match &hashed {
        Some(hashed) => hashed.contains(&char),
        None => set.contains(char),
    };
    let from = if front { text.len() - text.trim_start_matches(is_in).len() } else { 0 };
    let to = if back { text.trim_end_matches(is_in).len() } else { text.len() };
    (from, to)
}

fn character(code: i64) -> Result<String, EvalError> {
    let error = |message: String| Err(EvalError::new("54000", message));
    match u32::try_from(code) {
        Err(_) => Err(EvalError::new("22023", "character number must be positive")),
        Ok(0) => error("null character not permitted".to_owned()),
        Ok(code) if code > 0x0010_ffff => {
            error(format!("requested character too large for encoding: {code}"))
        }
        Ok(code) => match char::from_u32(code) {
            Some(char) => Ok(char.to_string()),
            None => error(format!("requested character not valid for encoding: {code}")),
        },
    }
}

fn capitals(text: &str, is_ascii_alone: bool) -> Result<String, EvalError> {
    if !is_ascii_alone && !text.is_ascii() {
        return Err(EvalError::new("0A000", "words of letters beyond ASCII depend on the collation"));
    }
    let mut is_inside = false;
    let capital = |char: char| {
        let changed = if is_inside { char.to_ascii_lowercase() } else { char.to_ascii_uppercase() };
        is_inside = char.is_ascii_alphanumeric();
        changed
    };
    Ok(text.chars().map(capital).collect())
}

/// Fails if a result of this many bytes is too long. `requested`: the bytes that
/// Postgres allocates.
fn check_length(bytes: usize, given: usize, requested: i64) -> Result<(), EvalError> {
    if requested.saturating_add(HEADER) > MAX_VALUE {
        return Err(EvalError::new("54000", "requested length too large"));
    }
    if bytes > MAX_RESULT.max(given) {
        let message = format!("the text is longer than {MAX_RESULT} bytes");
        return Err(EvalError::new("0A000", message));
    }
    Ok(())
}

fn repeat(text: &str, count: i64) -> Result<String, EvalError> {
    let count = count.max(0);
    let bytes = count.saturating_mul(text.len() as i64);
    check_length(usize::try_from(bytes).unwrap_or(usize::MAX), text.len(), bytes)?;
    Ok(text.repeat(count as usize))
}

fn pad(text: &str, length: i64, fill: &str, end: TextEnd) -> Result<String, EvalError> {
    let length = length.max(0);
    let kept = &text[..after(text, length)];
    let chars = kept.chars().count();
    let missing = if fill.is_empty() { 0 } else { length as usize - chars };
    // Postgres reserves four bytes for each character.
    let requested = if fill.is_empty() { chars as i64 } else { length } * 4;
    check_length(kept.len() + missing.saturating_mul(4), text.len() + fill.len(), requested)?;
    let mut padded = String::with_capacity(kept.len() + missing);
    if end == TextEnd::Back {
        padded.push_str(kept);
    }
    padded.extend(fill.chars().cycle().take(missing));
    if end == TextEnd::Front {
        padded.push_str(kept);
    }
    Ok(padded)
}

fn replace<'v>(text: Cow<'v, str>, from: &str, to: &str) -> Result<SqlValue<'v>, EvalError> {
    if from.is_empty() {
        return Ok(SqlValue::Text(text));
    }
    let count = text.matches(from).count();
    let bytes = (text.len() - count * from.len()).saturating_add(count.saturating_mul(to.len()));
    check_length(bytes, text.len() + from.len() + to.len(), bytes as i64)?;
    Ok(SqlValue::Text(if count == 0 { text } else { Cow::Owned(text.replace(from, to)) }))
}

fn split_part<'t>(text: &'t str, separator: &str, part: i64) -> Result<&'t str, EvalError> {
    if part == 0 {
        return Err(EvalError::new("22023", "field position must not be zero"));
    }
    if separator.is_empty() {
        return Ok(if part == 1 || part == -1 { text } else { "" });
    }
    let index = match part {
        // From the end: the parts are still those that a search from the front finds.
        ..0 => text.split(separator).count() as i64 + part,
        _ => part - 1,
    };
    let index = usize::try_from(index);
    Ok(index.ok().and_then(|index| text.split(separator).nth(index)).unwrap_or(""))
}

fn translate(text: &str, from: &str, to: &str) -> Result<String, EvalError> {
    let mut replacements = HashMap::new();
    let mut to = to.chars();
    for char in from.chars() {
        let replacement = to.next();
        replacements.entry(char).or_insert(replacement);
    }
    let changed = |char: char| replacements.get(&char).copied().unwrap_or(Some(char));
    Ok(text.chars().filter_map(changed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bounded_before_they_are_made() {
        assert_eq!(repeat("ab", 1 << 19).map(|text| text.len()), Ok(1 << 20));
        assert_eq!(repeat("ab", (1 << 19) + 1).unwrap_err().sqlstate(), "0A000");
        assert_eq!(repeat("ab", i64::from(i32::MAX)).unwrap_err().sqlstate(), "54000");
        assert_eq!(repeat("", i64::from(i32::MAX)), Ok(String::new()));
        assert_eq!(pad("a", 1_000_000_000, " ", TextEnd::Front).unwrap_err().sqlstate(), "54000");
        assert_eq!(pad("a", 200_000_000, " ", TextEnd::Front).unwrap_err().sqlstate(), "0A000");
        assert_eq!(pad("a", 1_000_000_000, "", TextEnd::Back), Ok("a".to_owned()));
        let long = "a".repeat(1 << 12);
        assert_eq!(replace(Cow::Borrowed(&long), "a", &long).unwrap_err().sqlstate(), "0A000");
    }

    #[test]
    fn digests_are_those_of_rfc_1321() {
        let digest = |text: &str| TextFunction::Md5.apply(Arguments::new(vec![Some(text.to_owned().into())]));
        assert_eq!(digest("abc"), Ok(Some("900150983cd24fb0d6963f7d28e17f72".to_owned().into())));
    }

    #[test]
    fn positions_count_characters() {
        assert_eq!(substring("日本語", 2, Some(1)), Ok((3, 6)));
        assert_eq!(substring("abc", 0, Some(2)), Ok((0, 1)));
        assert_eq!(substring("abc", -5, Some(2)), Ok((0, 0)));
        assert_eq!(substring("abc", 2, Some(i64::from(i32::MAX))), Ok((1, 3)));
        assert_eq!(substring("abc", i64::from(i32::MIN), None), Ok((0, 3)));
        assert_eq!(left_end("éab", -1), 3);
        assert_eq!(right_start("abc", i64::from(i32::MIN)), 0);
        assert_eq!(split_part("a,b,c", ",", -2), Ok("b"));
    }
}
