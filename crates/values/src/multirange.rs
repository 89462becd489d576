//! Multirange values (multirangetypes.c): sorted ranges with gaps between them.
//!
//! Invariant: no range is empty, and each ends before the next one begins, without touching it.

use std::cmp::Ordering;

use crate::input_error::InputError;
use crate::range::{Range, RangeOperator};
use crate::range_arithmetic::RangeArithmetic;
use crate::scalar::Scalar;
use crate::sql_value::SqlValue;

/// A multirange.
#[derive(Clone, Debug, PartialEq)]
pub struct Multirange(Vec<Range>);

impl Multirange {
    /// Parses a multirange's text, such as `{[1,5),[7,9)}`, with elements of this type.
    pub(crate) fn parse(text: &str, element: Scalar, modern: bool) -> Result<Self, InputError> {
        let text = crate::input::trim(text);
        let mut rest = blank(text.strip_prefix('{').ok_or(InputError::MultirangeSyntax)?);
        let mut ranges = Vec::new();
        if let Some(after) = rest.strip_prefix('}') {
            return if after.is_empty() { Ok(Multirange(ranges)) } else { Err(InputError::MultirangeSyntax) };
        }
        loop {
            let end = range_end(rest)?;
            let range = Range::parse(&rest[..end], element, modern)?;
            if range != Range::EMPTY {
                ranges.push(range);
            }
            rest = blank(&rest[end..]);
            match rest.as_bytes() {
                [b',', ..] => rest = blank(&rest[1..]),
                [b'}'] => return Ok(Multirange::of(ranges, element)),
                _ => return Err(InputError::MultirangeSyntax),
            }
        }
    }

    /// Sorts ranges, and joins those that overlap or touch (multirange_canonicalize).
    fn of(mut ranges: Vec<Range>, element: Scalar) -> Self {
        ranges.sort_by(Range::compare);
        let mut joined: Vec<Range> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let has_gap = |last: &Range| {
                last.relates(RangeOperator::Before, &range) && !last.relates(RangeOperator::Adjacent, &range)
            };
            match joined.last_mut() {
                Some(last) if !has_gap(last) => {
                    let both = last.combine(RangeArithmetic::Merge, &range, element);
                    *last = both.expect("the bounds are those of ranges");
                }
                _ => joined.push(range),
            }
        }
        Multirange(joined)
    }

    /// Formats a multirange whose elements have this type.
    pub(crate) fn write(&self, element: Scalar) -> String {
        let ranges: Vec<_> = self.0.iter().map(|range| range.write(element)).collect();
        format!("{{{}}}", ranges.join(","))
    }

    /// Orders by the first range, then the second, and so on.
    pub fn compare(&self, other: &Multirange) -> Ordering {
        let pairs = self.0.iter().zip(&other.0);
        let mut orders = pairs.map(|(left, right)| left.compare(right));
        orders.find(|order| order.is_ne()).unwrap_or_else(|| self.0.len().cmp(&other.0.len()))
    }

    /// Returns whether an element is in one of the ranges: `@>`.
    pub fn has_element(&self, value: &SqlValue<'_>) -> bool {
        self.0.iter().any(|range| range.has_element(value))
    }

    /// Returns whether the whole range is in one of the ranges: `@>`.
    pub fn has_range(&self, range: &Range) -> bool {
        *range == Range::EMPTY || self.0.iter().any(|whole| whole.relates(RangeOperator::Contains, range))
    }

    /// Returns whether all ranges are in the range: `<@`.
    pub fn is_within(&self, range: &Range) -> bool {
        self.0.iter().all(|part| range.relates(RangeOperator::Contains, part))
    }

    /// Returns whether one of the ranges overlaps the range: `&&`.
    pub fn overlaps_range(&self, range: &Range) -> bool {
        self.0.iter().any(|part| part.relates(RangeOperator::Overlaps, range))
    }

    /// Returns whether each range of `other` is in one of the ranges: `@>`. One pass over both.
    pub fn contains(&self, other: &Multirange) -> bool {
        let mut ranges = self.0.iter().peekable();
        other.0.iter().all(|part| {
            while ranges.next_if(|range| range.relates(RangeOperator::Before, part)).is_some() {}
            ranges.peek().is_some_and(|range| range.relates(RangeOperator::Contains, part))
        })
    }

    /// Returns whether the multiranges have an element in common: `&&`. One pass over both.
    pub fn overlaps(&self, other: &Multirange) -> bool {
        let mut ranges = self.0.iter().peekable();
        other.0.iter().any(|part| {
            while ranges.next_if(|range| range.relates(RangeOperator::Before, part)).is_some() {}
            ranges.peek().is_some_and(|range| range.relates(RangeOperator::Overlaps, part))
        })
    }
}

fn blank(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
}

/// Returns where the range ends with which the text begins.
fn range_end(text: &str) -> Result<usize, InputError> {
    const EMPTY: &str = "empty";
    if text.get(..EMPTY.len()).is_some_and(|word| word.eq_ignore_ascii_case(EMPTY)) {
        return Ok(EMPTY.len());
    }
    if !text.starts_with(['[', '(']) {
        return Err(InputError::MultirangeSyntax);
    }
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            // A blank after a backslash doesn't end the escape.
            b' ' | b'\t'..=b'\r' => {}
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            // Two quotation marks end a quoted part and begin another.
            b'"' => is_quoted = !is_quoted,
            b']' | b')' if !is_quoted => return Ok(at + 1),
            _ => {}
        }
    }
    Err(InputError::MultirangeSyntax)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(text: &str) -> Multirange {
        Multirange::parse(text, Scalar::Int4, false).unwrap_or_else(|error| panic!("{text}: {error:?}"))
    }

    #[test]
    fn ranges_are_sorted_and_joined() {
        for (text, written) in [
            (" { } ", "{}"),
            ("{[7,9),[1,5)}", "{[1,5),[7,9)}"),
            ("{[1,5),[5,9),empty}", "{[1,9)}"),
            ("{[1,5], EMPTY , (5,9)}", "{[1,9)}"),
            ("{(,3),[2,),[1,1)}", "{(,)}"),
            ("{[\"1\",\"5\")}", "{[1,5)}"),
        ] {
            assert_eq!(ints(text).write(Scalar::Int4), written, "{text}");
        }
        for text in ["", "{", "{[1,5)", "{[1,5),}", "{,}", "{[1,5)}x", "[1,5)", "{[1,5) [6,7)}", "{[1,\"5)}"]
        {
            let parsed = Multirange::parse(text, Scalar::Int4, false);
            assert_eq!(parsed, Err(InputError::MultirangeSyntax), "{text}");
        }
        assert_eq!(Multirange::parse("{[5,1)}", Scalar::Int4, false), Err(InputError::RangeOrder));
    }

    #[test]
    fn containment_and_overlap_consider_all_ranges() {
        for (left, right, contains, overlaps) in [
            ("{[1,5),[7,9)}", "{[2,3),[8,9)}", true, true),
            ("{[1,5),[7,9)}", "{[2,3),[4,8)}", false, true),
            ("{[1,5),[7,9)}", "{[5,7)}", false, false),
            ("{[1,5),[7,9)}", "{}", true, false),
            ("{}", "{[1,2)}", false, false),
            ("{(,)}", "{(,1),[3,)}", true, true),
            ("{[1,2),[3,4),[5,6)}", "{[5,6)}", true, true),
        ] {
            assert_eq!(ints(left).contains(&ints(right)), contains, "{left} @> {right}");
            assert_eq!(ints(left).overlaps(&ints(right)), overlaps, "{left} && {right}");
            assert_eq!(ints(right).overlaps(&ints(left)), overlaps, "{right} && {left}");
        }
        assert!(ints("{[1,5),[7,9)}").has_element(&SqlValue::Int(7)));
        assert!(!ints("{[1,5),[7,9)}").has_element(&SqlValue::Int(5)));
        assert!(ints("{}").compare(&ints("{[1,2)}")).is_lt());
        assert!(ints("{[1,2),[3,4)}").compare(&ints("{[1,3)}")).is_lt());
    }
}
