//! Body of a POST: the fields of a subset, or the parameters of a shape.
//!
//! A body with `table` has the parameters of a shape. Any other body is a subset of the shape in
//! the query string.
//! Invariant: no parameter of a shape counts twice. One that is in the query string and in the body
//! is refused, so a proxy can rely on what it adds to the query string.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::invalid_request::InvalidRequest;
use super::names::{MAX_COLUMNS, MAX_NAME_BYTES};
use super::params;
use super::query_params::{PARAM_NAMES, ParamText, ParamTextError, QueryParams};
use super::subset::{SUBSET_FIELDS, SubsetFields};

/// Maximum length of a request body, in bytes.
pub const MAX_BODY_BYTES: usize = 8 << 20;

const TWICE: &str = "can't be in the query string and in the body";

/// A body that was read.
#[derive(Debug)]
pub(super) enum PostBody {
    /// Fields of a subset. The query string has the parameters of the shape.
    Subset(SubsetFields),
    /// Parameters of a shape, together with those of the query string; and the fields of
    /// `subset`, if the body has it.
    Shape(QueryParams, Option<SubsetFields>),
}

/// Why a body is refused as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PostBodyError {
    #[error("must be valid JSON")]
    NotJson,
    #[error("must be a JSON object with each field once")]
    NotAnObject,
    #[error("subset must be a JSON object with each field once")]
    SubsetNotAnObject,
}

impl PostBody {
    /// Parses a body. Adds problems of single parameters to `invalid`.
    ///
    /// # Errors
    /// Returns the problem of the body as a whole.
    pub(super) fn parse(
        body: &[u8],
        query: &QueryParams,
        invalid: &mut InvalidRequest,
    ) -> Result<PostBody, PostBodyError> {
        let json = serde_json::from_slice(body).map_err(|_| PostBodyError::NotJson)?;
        let body = BodyMembers::parse(json).ok_or(PostBodyError::NotAnObject)?;
        let subset = match body.get("subset") {
            Some(subset) => Some(BodyMembers::parse(subset).ok_or(PostBodyError::SubsetNotAnObject)?),
            None => None,
        };
        if body.get("table").is_none() {
            return Ok(PostBody::Subset(subset.unwrap_or(body).subset_fields()));
        }
        let merged = merge(query, &body, invalid);
        let subset = subset.map(|subset| subset.subset_fields());
        for &name in subset.iter().flat_map(SubsetFields::keys) {
            if merged.text(&format!("subset__{name}")).is_some() {
                invalid.add_subset_field(name, TWICE);
            }
        }
        Ok(PostBody::Shape(merged, subset))
    }
}

/// Returns the parameters of the query string and of the body.
fn merge(query: &QueryParams, body: &BodyMembers<'_>, invalid: &mut InvalidRequest) -> QueryParams {
    let mut merged = query.without_secrets();
    for name in PARAM_NAMES {
        let Some(json) = body.get(name) else { continue };
        let is_twice = match name {
            "params" => query.text(name).is_some() || !query.params().is_empty(),
            name => query.text(name).is_some(),
        };
        if is_twice {
            invalid.add(name, TWICE);
        } else if name == "params" {
            let text = field_text(name, json).map_err(|problem| problem.to_string());
            match text.and_then(|text| params::from_json(&text).map_err(|problem| problem.to_string())) {
                Ok(values) => merged.set_params(values),
                Err(problem) => invalid.add(name, problem),
            }
        } else {
            merged.set(name, field_text(name, json));
        }
    }
    merged
}

/// Members of a JSON object that are fields of a body, by name. A null counts as absent.
struct BodyMembers<'a>(BTreeMap<&'static str, &'a RawValue>);

impl<'a> BodyMembers<'a> {
    /// Parses an object with each field once.
    fn parse(json: &'a RawValue) -> Option<Self> {
        serde_json::from_str(json.get()).ok()
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied().filter(|json| json.get() != "null")
    }

    fn subset_fields(&self) -> SubsetFields {
        let field = |name| Some((name, field_text(name, self.get(name)?)));
        SUBSET_FIELDS.into_iter().filter_map(|(name, _)| field(name)).collect()
    }
}

/// Returns the name of a field of a body; `None`: it is ignored.
fn field_name(name: &str) -> Option<&'static str> {
    let of_subset = SUBSET_FIELDS.iter().map(|(name, _)| *name).chain(["subset"]);
    PARAM_NAMES.into_iter().chain(of_subset).find(|known| *known == name)
}

impl<'de> Deserialize<'de> for BodyMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyMembersVisitor;

        impl<'de> Visitor<'de> for BodyMembersVisitor {
            type Value = BodyMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BodyMembers<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    let Some(name) = field_name(&name) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    if members.insert(name, map.next_value()?).is_some() {
                        return Err(A::Error::duplicate_field(name));
                    }
                }
                Ok(BodyMembers(members))
            }
        }

        deserializer.deserialize_map(BodyMembersVisitor)
    }
}

/// Returns a field as text, as in a query string.
fn field_text(name: &str, json: &RawValue) -> ParamText {
    let is_list = matches!(name, "columns" | "queryable_columns");
    let takes_json = match name {
        "params" | "subset__params" => true,
        "where" | "order_by" | "subset__where" | "subset__order_by" | "table" | "handle" => false,
        _ => !json.get().starts_with(['{', '[']),
    };
    let text = match json.get().as_bytes() {
        [b'"', ..] => serde_json::from_str(json.get()).map_err(|_| ParamTextError::Type)?,
        [b'[', ..] if is_list && json.get().len() <= MAX_LIST_BYTES => quoted_list(json)?,
        _ if takes_json => return Ok(json.get().to_owned()),
        _ => return Err(ParamTextError::Type),
    };
    if text.contains('\0') { Err(ParamTextError::Nul) } else { Ok(text) }
}

/// Maximum length of a JSON list of columns, in bytes: of as many names as a shape may have, with
/// each byte escaped.
const MAX_LIST_BYTES: usize = MAX_COLUMNS * (6 * MAX_NAME_BYTES + 4);

/// Returns a list of exact column names as in a query string: quoted, with commas between them.
fn quoted_list(json: &RawValue) -> ParamText {
    let names: Vec<String> = serde_json::from_str(json.get()).map_err(|_| ParamTextError::Type)?;
    let quoted = names.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\"")));
    Ok(quoted.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(raw: &str, body: &str) -> Result<PostBody, PostBodyError> {
        PostBody::parse(body.as_bytes(), &QueryParams::parse(raw), &mut InvalidRequest::default())
    }

    #[test]
    fn a_list_of_columns_has_a_maximum_length() {
        let list = |count: usize| format!("[{}]", vec!["\"a\""; count].join(","));
        let parse = |json: String| {
            let json = RawValue::from_string(json).unwrap();
            field_text("columns", &json).map(|text| text.len())
        };
        assert_eq!(parse(list(MAX_COLUMNS)), Ok(4 * MAX_COLUMNS - 1));
        assert_eq!(parse(list(200_000)), Err(ParamTextError::Type));
    }

    #[test]
    fn fields_of_a_subset_have_fixed_types() {
        let fields = |body: &str| match parse("", body) {
            Ok(PostBody::Subset(fields)) => fields,
            other => panic!("{body}: {other:?}"),
        };
        for (body, name, value) in [
            (r#"{"where":1}"#, "where", Err(ParamTextError::Type)),
            (r#"{"where":"a\u0000"}"#, "where", Err(ParamTextError::Nul)),
            (r#"{"order_by":["id"]}"#, "order_by", Err(ParamTextError::Type)),
            (r#"{"limit":[1]}"#, "limit", Err(ParamTextError::Type)),
            (r#"{"limit":10}"#, "limit", Ok("10".to_owned())),
            (r#"{"limit":"10"}"#, "limit", Ok("10".to_owned())),
            (r#"{"params":[1]}"#, "params", Ok("[1]".to_owned())),
            (r#"{"where":"b","subset":{"where":"a"}}"#, "where", Ok("a".to_owned())),
        ] {
            assert_eq!(fields(body), [(name, value)].into(), "{body}");
        }
        for body in ["{}", r#"{"where":null,"subset":null,"table":null}"#, r#"{"x":1,"x":2}"#] {
            assert_eq!(fields(body), SubsetFields::new(), "{body}");
        }
    }

    #[test]
    fn a_body_is_an_object_with_each_field_once() {
        for body in ["[]", "1", "null", "\"{}\"", r#"{"where":"a","where":"b"}"#, r#"{"table":1,"table":1}"#]
        {
            assert_eq!(parse("", body).unwrap_err(), PostBodyError::NotAnObject, "{body}");
        }
        for body in [r#"{"subset":[]}"#, r#"{"subset":{"limit":1,"limit":1}}"#, r#"{"table":"t","subset":1}"#]
        {
            assert_eq!(parse("", body).unwrap_err(), PostBodyError::SubsetNotAnObject, "{body}");
        }
        for body in ["", "{", "{} x", "{\"where\":\"\u{1}\"}"] {
            assert_eq!(parse("", body).unwrap_err(), PostBodyError::NotJson, "{body}");
        }
        let not_text =
            PostBody::parse(b"{\"where\":\"\xff\"}", &QueryParams::default(), &mut InvalidRequest::default());
        assert_eq!(not_text.unwrap_err(), PostBodyError::NotJson);
        let deep = format!("{{\"subset\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse("", &deep).is_err(), "deep nesting is refused before the stack overflows");
    }

    #[test]
    fn a_parameter_of_a_shape_is_in_the_query_string_or_in_the_body() {
        for (raw, body, expected) in [
            ("table=u", r#"{"table":"t"}"#, json!({"table": [TWICE]})),
            ("where=a", r#"{"table":"t","where":"b"}"#, json!({"where": [TWICE]})),
            ("live=false", r#"{"table":"t","live":true}"#, json!({"live": [TWICE]})),
            ("params[1]=a", r#"{"table":"t","params":{"1":"b"}}"#, json!({"params": [TWICE]})),
            (
                "subset__limit=1",
                r#"{"table":"t","subset":{"limit":1}}"#,
                json!({"subset": {"limit": [TWICE]}}),
            ),
            (
                "",
                r#"{"table":"t","subset__limit":2,"subset":{"limit":1}}"#,
                json!({"subset": {"limit": [TWICE]}}),
            ),
            ("secret=a&where=a&x=1", r#"{"table":"t","x":2}"#, json!({})),
        ] {
            let mut invalid = InvalidRequest::default();
            PostBody::parse(body.as_bytes(), &QueryParams::parse(raw), &mut invalid).unwrap();
            assert_eq!(serde_json::to_value(invalid).unwrap(), expected, "{raw} {body}");
        }
    }
}
