//! Names of a struct's fields, from its `Deserialize`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Returns the keys that `T` accepts, in the order of its definition.
pub(super) fn field_names<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    match T::deserialize(FieldNameProbe) {
        Err(FieldNames(fields)) => fields,
        Ok(_) => &[],
    }
}

/// A deserializer without a value. It fails with the field names that it is called with.
struct FieldNameProbe;

/// The field names, returned as the error.
#[derive(Debug)]
struct FieldNames(&'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNameProbe {
    type Error = FieldNames;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldNames> {
        Err(FieldNames(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, FieldNames> {
        Err(FieldNames(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl fmt::Display for FieldNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fields {:?}", self.0)
    }
}

impl std::error::Error for FieldNames {}

impl de::Error for FieldNames {
    fn custom<T: fmt::Display>(_: T) -> FieldNames {
        FieldNames(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_include_serde_renames() {
        #[derive(serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[derive(Default)]
        struct TwoFields {
            first: u8,
            #[serde(rename = "other")]
            second: Option<String>,
        }
        assert_eq!(field_names::<TwoFields>(), ["first", "other"]);
    }
}
