//! Invalid request: the problems of a request, by field.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// All problems of a request. The client receives them, so they contain only the client's own text
/// and fixed text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvalidRequest {
    fields: BTreeMap<&'static str, Vec<String>>,
    subset: BTreeMap<&'static str, Vec<String>>,
}

impl InvalidRequest {
    /// Returns one problem of a field of the query string.
    pub fn field(name: &'static str, problem: impl ToString) -> Self {
        let mut invalid = InvalidRequest::default();
        invalid.add(name, problem);
        invalid
    }

    /// Returns one problem of a field of the subset. `name` is its name in a body: `where`, not
    /// `subset__where`.
    pub fn subset_field(name: &'static str, problem: impl ToString) -> Self {
        let mut invalid = InvalidRequest::default();
        invalid.add_subset_field(name, problem);
        invalid
    }

    /// Adds a problem of a field of the query string.
    pub fn add(&mut self, name: &'static str, problem: impl ToString) {
        self.fields.entry(name).or_default().push(problem.to_string());
    }

    /// Adds a problem of a field of the subset.
    pub fn add_subset_field(&mut self, name: &'static str, problem: impl ToString) {
        self.subset.entry(name).or_default().push(problem.to_string());
    }

    /// Returns whether there is no problem.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.subset.is_empty()
    }
}

/// `{field: [problem, …], "subset": {field: [problem, …]}}`
impl Serialize for InvalidRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, problems) in &self.fields {
            map.serialize_entry(name, problems)?;
        }
        if !self.subset.is_empty() {
            map.serialize_entry("subset", &self.subset)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lists_its_problems() {
        let mut invalid = InvalidRequest::field("table", "can't be blank");
        invalid.add("live", "a");
        invalid.add("live", "b");
        invalid.add_subset_field("limit", "must be greater than 0");
        let json =
            r#"{"live":["a","b"],"table":["can't be blank"],"subset":{"limit":["must be greater than 0"]}}"#;
        assert_eq!(serde_json::to_string(&invalid).unwrap(), json);
        assert!(!invalid.is_empty() && InvalidRequest::default().is_empty());
    }
}
