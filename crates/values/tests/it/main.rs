//! Properties of all types, through the public interface.

use std::cmp::Ordering;

use forebay_values::{Scalar, SqlValue, ValueType};
use proptest::prelude::*;

/// Texts that are values of some types, for random changes.
const SEEDS: &[&str] = &[
    "t",
    "-170",
    "1.50e-3",
    "Infinity",
    "a  ",
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "2024-02-29 12:30:45.678901+05:30 BC",
    "24:00:00-15:59",
    "P1Y-2M3DT4H5M6.7S",
    "1 year -3 days 04:05:06",
    r#"{"b": [1.50, null, {"ä": "\u0041"}], "a": -0}"#,
    r"\xdeadbeef",
    r"\\a\101",
    "192.168.0.1/24",
    "2001:db8::1/64",
    "08:00:2b:01:02:03",
    "[1,5)",
    r#"["2020-01-01 00:00",)"#,
    "empty",
    "{[1,5), [7,\"9\"], empty}",
    r#"[0:1][2:2]={{1},{NULL}}"#,
    r#"{"a b",c\,d,NULL}"#,
];

fn all_types() -> Vec<ValueType> {
    let scalars: Vec<Scalar> = Scalar::all().collect();
    scalars.iter().flat_map(|scalar| [ValueType::Scalar(*scalar), ValueType::Array(*scalar)]).collect()
}

/// Returns a random text: any characters, or a value's text with some characters replaced.
fn texts() -> impl Strategy<Value = String> {
    let changed = (proptest::sample::select(SEEDS), any::<usize>(), "[-+0-9a-fTZ{}\\[\\]\",.:/\\\\ é]{0,2}");
    let changed = changed.prop_map(|(seed, at, new)| {
        let mut chars: Vec<char> = seed.chars().collect();
        let at = at % (chars.len() + 1);
        let end = chars.len().min(at + new.chars().count().min(1));
        chars.splice(at..end, new.chars());
        chars.into_iter().collect()
    });
    prop_oneof![3 => changed, 1 => any::<String>()]
}

proptest! {
    #[test]
    fn no_text_causes_a_panic_and_written_texts_are_parsed_again(text in texts(), modern: bool) {
        for kind in all_types() {
            let Ok(value) = SqlValue::parse(&text, kind, modern) else { continue };
            prop_assert_eq!(value.compare(&value, false), Ordering::Equal);
            let written = value.borrowed().into_text(kind);
            let again = SqlValue::parse(&written, kind, modern);
            let again = again.unwrap_or_else(|error| panic!("{kind} {text:?} is written as {written:?}: {error}"));
            prop_assert_eq!(again.compare(&value, false), Ordering::Equal, "{} {:?} {:?}", kind, text, written);
            let rewritten = again.into_text(kind);
            prop_assert_eq!(&rewritten, &written);
        }
    }
}

#[test]
fn every_text_of_the_list_is_a_value_of_some_type() {
    for text in SEEDS {
        let is_value = |kind: &ValueType| {
            let is_any_text = matches!(kind, ValueType::Scalar(scalar) if scalar.is_text());
            !is_any_text && SqlValue::parse(text, *kind, true).is_ok()
        };
        assert!(*text == "a  " || all_types().iter().any(is_value), "{text}");
    }
}
