//! Subset: a one-time query for part of a shape's rows.
//!
//! Invariant: a subset with a limit or offset has an order. Otherwise its rows would be arbitrary.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;

use super::invalid_request::InvalidRequest;
use super::order_by::{self, OrderByItem, OrderKey};
use super::params;
use super::query_params::{ParamText, QueryParams};
use forebay_replication::TableName;

/// Fields of a subset: the name in a body, and the name in a query string.
pub(super) const SUBSET_FIELDS: [(&str, &str); 5] = [
    ("where", "subset__where"),
    ("params", "subset__params"),
    ("order_by", "subset__order_by"),
    ("limit", "subset__limit"),
    ("offset", "subset__offset"),
];

/// Part of a shape's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subset {
    /// Where clause, in addition to the shape's. The filter parses it.
    pub clause: Option<String>,
    /// Values of `$1`, `$2` … in the clause.
    pub params: Vec<String>,
    /// Order of the rows. Not empty if present.
    pub order_by: Option<Vec<OrderByItem>>,
    /// Maximum number of rows, from 1 to `i64::MAX`, like Postgres.
    pub limit: Option<u64>,
    /// Number of rows to skip, up to `i64::MAX`.
    pub offset: Option<u64>,
}

/// Text of each field that was sent, or its problem. Includes blank fields, because they also make
/// the request a subset.
pub(super) type SubsetFields = BTreeMap<&'static str, ParamText>;

/// Why a limit or an offset is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum CountError {
    #[error("is invalid")]
    NotANumber,
    #[error("must be greater than 0")]
    NotPositive,
    #[error("must be greater than or equal to 0")]
    Negative,
    #[error("must be at most {}", i64::MAX)]
    TooLarge,
}

/// Returns the fields in the query string.
pub(super) fn fields_of_query(query: &QueryParams) -> SubsetFields {
    let field = |(name, long): (&'static str, &str)| Some((name, query.text(long)?.clone()));
    SUBSET_FIELDS.into_iter().filter_map(field).collect()
}

impl Subset {
    /// Parses the fields that were sent. Adds their problems to `invalid`.
    pub(super) fn parse(
        fields: SubsetFields,
        table: Option<&TableName>,
        queryable: Option<&[String]>,
        invalid: &mut InvalidRequest,
    ) -> Subset {
        let mut parser = SubsetParser { fields, invalid };
        let subset = Subset {
            clause: parser.parse_field("where", |text| Ok::<_, Infallible>(text.to_owned())),
            params: parser.parse_field("params", params::from_json).unwrap_or_default(),
            order_by: parser.parse_field("order_by", |text| order_by::parse(text, table)),
            limit: parser.parse_field("limit", |text| parse_count(text, 1, CountError::NotPositive)),
            offset: parser.parse_field("offset", |text| parse_count(text, 0, CountError::Negative)),
        };
        if let (Some(order), Some(queryable)) = (&subset.order_by, queryable) {
            check_queryable(order, queryable, invalid);
        }
        subset
    }
}

/// Fields of a subset, and the problems found so far.
struct SubsetParser<'a> {
    fields: SubsetFields,
    invalid: &'a mut InvalidRequest,
}

impl SubsetParser<'_> {
    /// Parses a field. Returns `None` if it is absent, blank or wrong.
    fn parse_field<T, E: ToString>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let needs_order = name == "order_by" && (self.has("limit") || self.has("offset"));
        let parsed = match self.fields.get(name) {
            Some(Err(problem)) => Err(problem.to_string()),
            Some(Ok(text)) if !text.trim().is_empty() => {
                parse(text).map(Some).map_err(|error| error.to_string())
            }
            Some(Ok(_)) | None if needs_order => {
                Err("order_by is required when limit or offset is present".into())
            }
            Some(Ok(_)) | None => Ok(None),
        };
        parsed.unwrap_or_else(|problem| {
            self.invalid.add_subset_field(name, problem);
            None
        })
    }

    fn has(&self, name: &str) -> bool {
        self.fields.get(name).is_some_and(|text| text.as_ref().map_or(true, |text| !text.trim().is_empty()))
    }
}

/// Parses a count of at least `least`. `too_small` is the error for a smaller one.
fn parse_count(text: &str, least: i64, too_small: CountError) -> Result<u64, CountError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CountError::NotANumber);
    }
    match text.parse::<i64>() {
        Ok(count) if count >= least => Ok(count.unsigned_abs()),
        Err(_) if !text.starts_with('-') => Err(CountError::TooLarge),
        Ok(_) | Err(_) => Err(too_small),
    }
}

fn check_queryable(order: &[OrderByItem], queryable: &[String], invalid: &mut InvalidRequest) {
    let columns = order.iter().filter_map(|item| match &item.key {
        OrderKey::Column(name) => Some(name),
        // A position denotes a selected column. Selected columns are queryable.
        OrderKey::Position(_) => None,
    });
    if let Some(problem) = describe_not_queryable(columns, queryable) {
        invalid.add_subset_field("order_by", problem);
    }
}

/// Returns a text that names the columns that are not queryable, if any.
pub(super) fn describe_not_queryable<'a>(
    columns: impl Iterator<Item = &'a String>,
    queryable: &[String],
) -> Option<String> {
    let queryable: HashSet<_> = queryable.iter().collect();
    let others: Vec<_> = columns.filter(|column| !queryable.contains(column)).map(String::as_str).collect();
    (!others.is_empty()).then(|| format!("The following columns are not queryable: {}", others.join(", ")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::post_body::PostBody;
    use super::*;

    fn check(fields: SubsetFields) -> Result<Subset, serde_json::Value> {
        let mut invalid = InvalidRequest::default();
        let table = TableName::new("public", "items");
        let queryable = ["id".to_owned(), "name".to_owned()];
        let subset = Subset::parse(fields, Some(&table), Some(&queryable), &mut invalid);
        if invalid.is_empty() {
            Ok(subset)
        } else {
            Err(serde_json::to_value(invalid).unwrap()["subset"].take())
        }
    }

    fn query(raw: &str) -> Result<Subset, serde_json::Value> {
        check(fields_of_query(&QueryParams::parse(raw)))
    }

    fn body(json: &str) -> Result<Subset, serde_json::Value> {
        let (query, mut invalid) = (QueryParams::default(), InvalidRequest::default());
        let Ok(PostBody::Subset(fields)) = PostBody::parse(json.as_bytes(), &query, &mut invalid) else {
            panic!("{json} is no subset")
        };
        check(fields)
    }

    fn by(column: &str, descending: bool) -> Option<Vec<OrderByItem>> {
        Some(vec![OrderByItem { key: OrderKey::Column(column.into()), descending, nulls: None }])
    }

    #[test]
    fn a_body_and_a_query_string_are_equivalent() {
        let expected = Subset {
            clause: Some("id > $1".into()),
            params: vec!["3".into()],
            order_by: by("id", true),
            limit: Some(10),
            offset: Some(0),
        };
        let raw = "subset__where=id+>+$1&subset__params={\"1\":\"3\"}&subset__order_by=id+desc&subset__limit=10&subset__offset=0";
        assert_eq!(query(raw), Ok(expected.clone()));
        let bare = r#"{"where":"id > $1","params":{"1":3},"order_by":"id DESC","limit":10,"offset":0}"#;
        assert_eq!(body(bare), Ok(expected.clone()));
        let text = r#"{"where":"id > $1","params":"{\"1\":3}","order_by":"id DESC","limit":"10","offset":"0","x":[1]}"#;
        assert_eq!(body(text), Ok(expected.clone()));
        assert_eq!(body(&format!(r#"{{"subset":{bare}}}"#)), Ok(expected.clone()));
        assert_eq!(body(&format!(r#"{{"where":"other","subset":{bare}}}"#)), Ok(expected));
    }

    #[test]
    fn blank_and_null_fields_count_as_absent() {
        let blank = "subset__where=+&subset__params=&subset__order_by=&subset__limit=&subset__offset=";
        assert_eq!(query(blank), Ok(Subset::default()));
        let null = r#"{"subset":null,"where":null,"params":null,"order_by":null,"limit":null,"offset":null}"#;
        assert_eq!(body(null), Ok(Subset::default()));
        assert_eq!(body("{}"), Ok(Subset::default()));
    }

    #[test]
    fn each_field_of_a_subset_is_validated() {
        const REQUIRED: &str = "order_by is required when limit or offset is present";
        for (raw, problems) in [
            ("subset__limit=1", json!({"order_by": [REQUIRED]})),
            ("subset__offset=0&subset__order_by=+", json!({"order_by": [REQUIRED]})),
            ("subset__limit=0&subset__order_by=id", json!({"limit": ["must be greater than 0"]})),
            (
                "subset__limit=-99999999999999999999&subset__order_by=id",
                json!({"limit": ["must be greater than 0"]}),
            ),
            ("subset__limit=x&subset__order_by=id", json!({"limit": ["is invalid"]})),
            ("subset__limit=1.5&subset__order_by=id", json!({"limit": ["is invalid"]})),
            ("subset__limit=%2B1&subset__order_by=id", json!({"limit": ["is invalid"]})),
            (
                "subset__limit=9223372036854775808&subset__order_by=id",
                json!({"limit": ["must be at most 9223372036854775807"]}),
            ),
            (
                "subset__offset=-1&subset__order_by=id",
                json!({"offset": ["must be greater than or equal to 0"]}),
            ),
            ("subset__params=[]", json!({"params": ["params must be a JSON object"]})),
            ("subset__params={", json!({"params": ["params must be valid JSON"]})),
            (
                "subset__params={\"2\":1}",
                json!({"params": ["Parameters must be numbered sequentially, starting from 1"]}),
            ),
            (
                "subset__order_by=lower(id)&subset__limit=-&subset__where=%ff",
                json!({
                    "order_by": ["only columns and constants, ASC, DESC and NULLS FIRST or LAST are supported in order_by, not \"(\""],
                    "limit": ["is invalid"],
                    "where": ["must be valid UTF-8"],
                }),
            ),
            (
                "subset__order_by=id,secret",
                json!({"order_by": ["The following columns are not queryable: secret"]}),
            ),
        ] {
            assert_eq!(query(raw), Err(problems), "{raw}");
        }
        assert_eq!(
            query("subset__order_by=1,items.name").map(|subset| subset.order_by.unwrap().len()),
            Ok(2)
        );
        assert_eq!(
            query("subset__limit=9223372036854775807&subset__order_by=id").unwrap().limit,
            Some(i64::MAX as u64)
        );
    }

    #[test]
    fn fields_of_a_body_have_fixed_types() {
        for (json, problems) in [
            (r#"{"where":1}"#, json!({"where": ["is invalid"]})),
            (r#"{"where":"a\u0000"}"#, json!({"where": ["can't contain a NUL character"]})),
            (r#"{"order_by":["id"]}"#, json!({"order_by": ["is invalid"]})),
            (r#"{"order_by":"id","limit":true}"#, json!({"limit": ["is invalid"]})),
            (r#"{"order_by":"id","limit":1e2}"#, json!({"limit": ["is invalid"]})),
            (r#"{"params":[1]}"#, json!({"params": ["params must be a JSON object"]})),
        ] {
            assert_eq!(body(json), Err(problems), "{json}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_body_parser(bytes in proptest::collection::vec(any::<u8>(), 0..64), json in "[{}\\[\\]\":,0-9a-z]{0,40}") {
            for body in [&*bytes, json.as_bytes()] {
                let _ = PostBody::parse(body, &QueryParams::default(), &mut InvalidRequest::default());
            }
        }
    }
}
