//! The names of a struct's fields, out of its `Deserialize`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// What `T` would accept as keys, in the order of its definition.
pub(super) fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    match T::deserialize(Asking) {
        Err(Answer(fields)) => fields,
        Ok(_) => &[],
    }
}

/// A deserializer that has no value, only a question.
struct Asking;

/// The answer travels as the error.
#[derive(Debug)]
struct Answer(&'static [&'static str]);

impl<'de> Deserializer<'de> for Asking {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        Err(Answer(&[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(fields))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fields {:?}", self.0)
    }
}

impl std::error::Error for Answer {}

impl de::Error for Answer {
    fn custom<T: fmt::Display>(_: T) -> Answer {
        Answer(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_struct_tells_its_keys() {
        #[derive(serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        #[derive(Default)]
        struct Two {
            first: u8,
            #[serde(rename = "other")]
            second: Option<String>,
        }
        assert_eq!(fields_of::<Two>(), ["first", "other"]);
    }
}
