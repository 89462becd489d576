//! The values of a clause's `$1`, `$2` …
//!
//! Invariant: they are numbered from 1 without a hole, and there are at most [`MAX_PARAMS`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::query::{BadText, Text};

/// The most parameters that a clause can have.
pub const MAX_PARAMS: usize = 1_000;

/// Why parameters are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParamsError {
    #[error("Parameters can only use numbers as keys")]
    NotANumber,
    #[error("Parameters must be numbered sequentially, starting from 1")]
    Hole,
    #[error("too many parameters (the most is {MAX_PARAMS})")]
    TooMany,
    #[error("params must be valid JSON")]
    NotJson,
    #[error("params must be a JSON object")]
    NotAnObject,
    #[error("parameter {0} must be a string, a number or a boolean")]
    NotAScalar(usize),
    #[error("parameter {0} {1}")]
    Bad(usize, BadText),
}

/// Of the query string's `params[1]=…`.
pub(super) fn of_query(given: &BTreeMap<String, Text>) -> Result<Vec<String>, ParamsError> {
    let values = in_order(given.iter().map(|(key, value)| (&**key, value)))?;
    let numbered = values.into_iter().zip(1..);
    numbered.map(|(value, number)| value.clone().map_err(|bad| ParamsError::Bad(number, bad))).collect()
}

/// Of a JSON object's `{"1": …}`. Numbers and booleans are their own text, digit for digit.
pub(super) fn of_json(text: &str) -> Result<Vec<String>, ParamsError> {
    let json: &RawValue = serde_json::from_str(text).map_err(|_| ParamsError::NotJson)?;
    let Given(given) = serde_json::from_str(json.get()).map_err(|_| ParamsError::NotAnObject)?;
    let values = in_order(given.iter().map(|(key, value)| (&**key, *value)))?;
    values.into_iter().zip(1..).map(|(value, number)| scalar(value, number)).collect()
}

fn scalar(value: &RawValue, number: usize) -> Result<String, ParamsError> {
    let text = match value.get().as_bytes() {
        [b'"', ..] => serde_json::from_str(value.get()).map_err(|_| ParamsError::NotJson)?,
        [b'{' | b'[' | b'n', ..] => return Err(ParamsError::NotAScalar(number)),
        _ => value.get().to_owned(),
    };
    if text.contains('\0') { Err(ParamsError::Bad(number, BadText::Nul)) } else { Ok(text) }
}

/// By their numbers, which are written in one way only: `01` isn't 1.
fn in_order<'a, V>(given: impl ExactSizeIterator<Item = (&'a str, V)>) -> Result<Vec<V>, ParamsError> {
    let count = given.len();
    if count > MAX_PARAMS {
        return Err(ParamsError::TooMany);
    }
    let mut values: Vec<Option<V>> = Vec::new();
    values.resize_with(count, || None);
    for (key, value) in given {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParamsError::NotANumber);
        }
        let number = key.parse::<usize>().ok().filter(|_| !key.starts_with('0'));
        let slot = number.and_then(|number| values.get_mut(number - 1)).ok_or(ParamsError::Hole)?;
        *slot = Some(value);
    }
    values.into_iter().collect::<Option<_>>().ok_or(ParamsError::Hole)
}

/// The members of an object, of those of one name the last; one more than [`MAX_PARAMS`] if there were more.
struct Given<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de> Deserialize<'de> for Given<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Given<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if members.len() <= MAX_PARAMS || members.contains_key(&key) {
                        members.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Given(members))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::query::Query;
    use super::*;

    fn query(raw: &str) -> Result<Vec<String>, ParamsError> {
        of_query(Query::parse(raw).params())
    }

    #[test]
    fn params_are_in_the_order_of_their_numbers() {
        let many: String = (1..=12).rev().map(|number| format!("&params[{number}]=v{number}")).collect();
        let expected: Vec<_> = (1..=12).map(|number| format!("v{number}")).collect();
        assert_eq!(query(&many), Ok(expected));
        assert_eq!(query("params[1]="), Ok(vec![String::new()]), "an empty text is a value");
        assert_eq!(query(""), Ok(vec![]));
    }

    #[test]
    fn holes_and_other_keys_are_refused() {
        for raw in [
            "params[2]=a",
            "params[0]=a",
            "params[1]=a&params[3]=b",
            "params[01]=a",
            "params[99999999999999999999]=a",
        ] {
            assert_eq!(query(raw), Err(ParamsError::Hole), "{raw}");
        }
        for raw in [
            "params[a]=1",
            "params[]=1",
            "params[-1]=1",
            "params[+1]=1",
            "params[1 ]=1",
            "params[1][x]=1",
            "params[%ff]=1",
        ] {
            assert_eq!(query(raw), Err(ParamsError::NotANumber), "{raw}");
        }
        assert_eq!(query("params[1]=%ff"), Err(ParamsError::Bad(1, BadText::NotUtf8)));
    }

    #[test]
    fn there_are_no_more_than_a_thousand() {
        let many =
            |count: usize| (1..=count).map(|number| format!("&params[{number}]=x")).collect::<String>();
        assert_eq!(query(&many(MAX_PARAMS)).unwrap().len(), MAX_PARAMS);
        assert_eq!(query(&many(MAX_PARAMS + 1)), Err(ParamsError::TooMany));
        let json = |count: usize| {
            let members: Vec<_> = (1..=count).map(|number| format!("\"{number}\":1")).collect();
            of_json(&format!("{{{}}}", members.join(",")))
        };
        assert_eq!(json(MAX_PARAMS).unwrap().len(), MAX_PARAMS);
        assert_eq!(json(MAX_PARAMS + 1), Err(ParamsError::TooMany));
        assert_eq!(json(MAX_PARAMS * 20), Err(ParamsError::TooMany));
    }

    #[test]
    fn json_values_are_their_text_digit_for_digit() {
        let json = r#" {"2": 12345678901234567890.10, "1": "a\"b\u00e9", "3": true, "4": false, "5": -1e400, "6": ""} "#;
        let expected = ["a\"bé", "12345678901234567890.10", "true", "false", "-1e400", ""];
        assert_eq!(of_json(json).unwrap(), expected);
        assert_eq!(of_json(r#"{"1":"a","1":"b"}"#).unwrap(), ["b"]);
        assert_eq!(of_json("{}").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_object_of_scalars_is_refused() {
        for (json, error) in [
            ("", ParamsError::NotJson),
            ("{", ParamsError::NotJson),
            (r#"{"1":"a"} x"#, ParamsError::NotJson),
            (r#"{"1":"\ud800"}"#, ParamsError::NotJson),
            ("[]", ParamsError::NotAnObject),
            ("1", ParamsError::NotAnObject),
            ("null", ParamsError::NotAnObject),
            (r#""{}""#, ParamsError::NotAnObject),
            (r#"{"1":null}"#, ParamsError::NotAScalar(1)),
            (r#"{"1":1,"2":[1]}"#, ParamsError::NotAScalar(2)),
            (r#"{"1":{}}"#, ParamsError::NotAScalar(1)),
            (r#"{"a":1}"#, ParamsError::NotANumber),
            (r#"{"2":1}"#, ParamsError::Hole),
            (r#"{"1":"a\u0000"}"#, ParamsError::Bad(1, BadText::Nul)),
        ] {
            assert_eq!(of_json(json), Err(error), "{json}");
        }
        let deep = format!("{{\"1\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(of_json(&deep).is_err(), "no stack is deep enough for everything");
    }

    proptest! {
        #[test]
        fn every_text_survives_json(values in proptest::collection::vec("[^\0]*", 0..8)) {
            let members: serde_json::Map<_, _> =
                values.iter().enumerate().map(|(at, value)| ((at + 1).to_string(), value.clone().into())).collect();
            prop_assert_eq!(of_json(&serde_json::to_string(&members).unwrap()), Ok(values));
        }

        #[test]
        fn nothing_upsets_the_reader(json in any::<String>()) {
            let _ = of_json(&json);
        }
    }
}
