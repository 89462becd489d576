//! What is wrong with a request, field by field.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// All that is wrong with a request. It is told to whoever made the request: no word in it may come from elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invalid {
    fields: BTreeMap<&'static str, Vec<String>>,
    subset: BTreeMap<&'static str, Vec<String>>,
}

impl Invalid {
    /// A field of the query string, and what is wrong with it.
    pub fn field(name: &'static str, problem: impl ToString) -> Self {
        let mut invalid = Invalid::default();
        invalid.add(name, problem);
        invalid
    }

    /// A field of the subset, by its name in a body: `where`, not `subset__where`.
    pub fn in_subset(name: &'static str, problem: impl ToString) -> Self {
        let mut invalid = Invalid::default();
        invalid.add_to_subset(name, problem);
        invalid
    }

    /// One more.
    pub fn add(&mut self, name: &'static str, problem: impl ToString) {
        self.fields.entry(name).or_default().push(problem.to_string());
    }

    /// One more of the subset.
    pub fn add_to_subset(&mut self, name: &'static str, problem: impl ToString) {
        self.subset.entry(name).or_default().push(problem.to_string());
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.subset.is_empty()
    }
}

/// `{field: [problem, …], "subset": {field: [problem, …]}}`
impl Serialize for Invalid {
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
        let mut invalid = Invalid::field("table", "can't be blank");
        invalid.add("live", "a");
        invalid.add("live", "b");
        invalid.add_to_subset("limit", "must be greater than 0");
        let json =
            r#"{"live":["a","b"],"table":["can't be blank"],"subset":{"limit":["must be greater than 0"]}}"#;
        assert_eq!(serde_json::to_string(&invalid).unwrap(), json);
        assert!(!invalid.is_empty() && Invalid::default().is_empty());
    }
}
