//! Values of `$1`, `$2` … in a where clause.
//!
//! Invariant: the values are numbered from 1 without gaps. There are at most [`MAX_PARAMS`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::query_params::{ParamText, ParamTextError};

/// Maximum number of parameters of a clause.
pub const MAX_PARAMS: usize = 10_000;

/// Why parameters are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParamsError {
    #[error("Parameters can only use numbers as keys")]
    NotANumber,
    #[error("Parameters must be numbered sequentially, starting from 1")]
    Gap,
    #[error("too many parameters (the most is {MAX_PARAMS})")]
    TooMany,
    #[error("params must be valid JSON")]
    NotJson,
    #[error("params must be a JSON object")]
    NotAnObject,
    #[error("parameter {0} must be a string, a number or a boolean")]
    NotAScalar(usize),
    #[error("parameter {0} {1}")]
    Text(usize, ParamTextError),
}

/// Returns the values of `params[1]=…` in a query string.
pub(super) fn from_query(members: &BTreeMap<String, ParamText>) -> Result<Vec<String>, ParamsError> {
    let values = ordered_values(members.iter().map(|(key, value)| (&**key, value)))?;
    let numbered = values.into_iter().zip(1..);
    numbered.map(|(value, number)| value.clone().map_err(|bad| ParamsError::Text(number, bad))).collect()
}

/// Returns the values of a JSON object `{"1": …}`. Numbers and booleans keep their exact text.
pub(super) fn from_json(text: &str) -> Result<Vec<String>, ParamsError> {
    let json: &RawValue = serde_json::from_str(text).map_err(|_| ParamsError::NotJson)?;
    let ParamMembers(members) = serde_json::from_str(json.get()).map_err(|_| ParamsError::NotAnObject)?;
    let values = ordered_values(members.iter().map(|(key, value)| (&**key, *value)))?;
    values.into_iter().zip(1..).map(|(value, number)| scalar(value, number)).collect()
}

fn scalar(value: &RawValue, number: usize) -> Result<String, ParamsError> {
    let text = match value.get().as_bytes() {
        [b'"', ..] => serde_json::from_str(value.get()).map_err(|_| ParamsError::NotJson)?,
        [b'{' | b'[' | b'n', ..] => return Err(ParamsError::NotAScalar(number)),
        _ => value.get().to_owned(),
    };
    if text.contains('\0') { Err(ParamsError::Text(number, ParamTextError::Nul)) } else { Ok(text) }
}

/// Orders values by their numbers. Leading zeros are refused: `01` is not 1.
fn ordered_values<'a, V>(
    members: impl ExactSizeIterator<Item = (&'a str, V)>,
) -> Result<Vec<V>, ParamsError> {
    let count = members.len();
    if count > MAX_PARAMS {
        return Err(ParamsError::TooMany);
    }
    let mut values: Vec<Option<V>> = Vec::new();
    values.resize_with(count, || None);
    for (key, value) in members {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParamsError::NotANumber);
        }
        let number = key.parse::<usize>().ok().filter(|_| !key.starts_with('0'));
        let slot = number.and_then(|number| values.get_mut(number - 1)).ok_or(ParamsError::Gap)?;
        *slot = Some(value);
    }
    values.into_iter().collect::<Option<_>>().ok_or(ParamsError::Gap)
}

/// Members of a JSON object. If a name is repeated, the last one counts. Holds [`MAX_PARAMS`] + 1
/// members if there were more.
struct ParamMembers<'a>(BTreeMap<Cow<'a, str>, &'a RawValue>);

impl<'de> Deserialize<'de> for ParamMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParamMembersVisitor;

        impl<'de> Visitor<'de> for ParamMembersVisitor {
            type Value = ParamMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParamMembers<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if members.len() <= MAX_PARAMS || members.contains_key(&key) {
                        members.insert(key, map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(ParamMembers(members))
            }
        }

        deserializer.deserialize_map(ParamMembersVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::query_params::QueryParams;
    use super::*;

    fn query(raw: &str) -> Result<Vec<String>, ParamsError> {
        from_query(QueryParams::parse(raw).params())
    }

    #[test]
    fn params_are_ordered_by_number() {
        let many: String = (1..=12).rev().map(|number| format!("&params[{number}]=v{number}")).collect();
        let expected: Vec<_> = (1..=12).map(|number| format!("v{number}")).collect();
        assert_eq!(query(&many), Ok(expected));
        assert_eq!(query("params[1]="), Ok(vec![String::new()]), "an empty text is a value");
        assert_eq!(query(""), Ok(vec![]));
    }

    #[test]
    fn gaps_and_other_keys_are_refused() {
        for raw in [
            "params[2]=a",
            "params[0]=a",
            "params[1]=a&params[3]=b",
            "params[01]=a",
            "params[99999999999999999999]=a",
        ] {
            assert_eq!(query(raw), Err(ParamsError::Gap), "{raw}");
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
        assert_eq!(query("params[1]=%ff"), Err(ParamsError::Text(1, ParamTextError::NotUtf8)));
    }

    #[test]
    fn there_are_at_most_a_thousand_params() {
        let many =
            |count: usize| (1..=count).map(|number| format!("&params[{number}]=x")).collect::<String>();
        assert_eq!(query(&many(MAX_PARAMS)).unwrap().len(), MAX_PARAMS);
        assert_eq!(query(&many(MAX_PARAMS + 1)), Err(ParamsError::TooMany));
        let json = |count: usize| {
            let members: Vec<_> = (1..=count).map(|number| format!("\"{number}\":1")).collect();
            from_json(&format!("{{{}}}", members.join(",")))
        };
        assert_eq!(json(MAX_PARAMS).unwrap().len(), MAX_PARAMS);
        assert_eq!(json(MAX_PARAMS + 1), Err(ParamsError::TooMany));
        assert_eq!(json(MAX_PARAMS * 20), Err(ParamsError::TooMany));
    }

    #[test]
    fn json_numbers_keep_their_exact_text() {
        let json = r#" {"2": 12345678901234567890.10, "1": "a\"b\u00e9", "3": true, "4": false, "5": -1e400, "6": ""} "#;
        let expected = ["a\"bé", "12345678901234567890.10", "true", "false", "-1e400", ""];
        assert_eq!(from_json(json).unwrap(), expected);
        assert_eq!(from_json(r#"{"1":"a","1":"b"}"#).unwrap(), ["b"]);
        assert_eq!(from_json("{}").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn only_an_object_of_scalars_is_accepted() {
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
            (r#"{"2":1}"#, ParamsError::Gap),
            (r#"{"1":"a\u0000"}"#, ParamsError::Text(1, ParamTextError::Nul)),
        ] {
            assert_eq!(from_json(json), Err(error), "{json}");
        }
        let deep = format!("{{\"1\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(from_json(&deep).is_err(), "deep nesting is refused before the stack overflows");
    }

    proptest! {
        #[test]
        fn every_text_round_trips_through_json(values in proptest::collection::vec("[^\0]*", 0..8)) {
            let members: serde_json::Map<_, _> =
                values.iter().enumerate().map(|(at, value)| ((at + 1).to_string(), value.clone().into())).collect();
            prop_assert_eq!(from_json(&serde_json::to_string(&members).unwrap()), Ok(values));
        }

        #[test]
        fn no_text_panics_the_params_parser(json in any::<String>()) {
            let _ = from_json(&json);
        }
    }
}
