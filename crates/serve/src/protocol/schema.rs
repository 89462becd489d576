//! The types of a shape's columns, for clients: the header `electric-schema`.
//!
//! Invariant: the header is ASCII, whatever names there are, and what a type's modifier says is what Postgres means by it.

use http::HeaderValue;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A column, as clients get to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnShown {
    /// As pg_attribute has it.
    pub name: String,
    /// pg_type.typname, an array's element's.
    pub type_name: String,
    /// pg_type.oid, an array's element's.
    pub type_oid: u32,
    /// pg_attribute.atttypmod; -1: none.
    pub type_modifier: i32,
    /// How many dimensions an array has; 0: it is none.
    pub dims: u32,
    /// Its place in the primary key, from 0.
    pub pk_index: Option<usize>,
    /// Whether it is never NULL.
    pub not_null: bool,
}

/// The header's value: an object of the columns, in their order.
pub fn header(columns: &[ColumnShown]) -> HeaderValue {
    let json = serde_json::to_string(&Columns(columns)).unwrap_or_default();
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => ascii.push(character),
            // Only in strings, where an escape stands for it.
            other => {
                let mut units = [0; 2];
                ascii.extend(other.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    HeaderValue::try_from(ascii).expect("what a header can't have is escaped")
}

struct Columns<'a>(&'a [ColumnShown]);

impl Serialize for Columns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|column| (&column.name, column)))
    }
}

impl Serialize for ColumnShown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.type_name)?;
        if self.dims > 0 {
            map.serialize_entry("dims", &self.dims)?;
        }
        if let Some(index) = self.pk_index {
            map.serialize_entry("pk_index", &index)?;
        }
        if self.not_null {
            map.serialize_entry("not_null", &true)?;
        }
        match Modifier::of(self.type_oid, self.type_modifier) {
            Modifier::None => {}
            Modifier::MaxLength(length) => map.serialize_entry("max_length", &length)?,
            Modifier::Length(length) => map.serialize_entry("length", &length)?,
            Modifier::Numeric { precision, scale } => {
                map.serialize_entry("precision", &precision)?;
                map.serialize_entry("scale", &scale)?;
            }
            Modifier::Time { precision, fields } => {
                if let Some(precision) = precision {
                    map.serialize_entry("precision", &precision)?;
                }
                if let Some(fields) = fields {
                    map.serialize_entry("fields", fields)?;
                }
            }
        }
        map.end()
    }
}

/// What stands in parentheses after a type's name, or after `interval`.
#[derive(Debug, PartialEq, Eq)]
enum Modifier {
    None,
    MaxLength(i32),
    Length(i32),
    Numeric { precision: i32, scale: i32 },
    Time { precision: Option<i32>, fields: Option<&'static str> },
}

/// Postgres' VARHDRSZ, which some modifiers have added to them.
const HEADER: i32 = 4;

impl Modifier {
    fn of(oid: u32, modifier: i32) -> Modifier {
        match oid {
            _ if modifier < 0 => Modifier::None,
            // bpchar, varchar
            1042 if modifier > HEADER => Modifier::Length(modifier - HEADER),
            1043 if modifier > HEADER => Modifier::MaxLength(modifier - HEADER),
            // bit, varbit
            1560 | 1562 => Modifier::Length(modifier),
            // numeric: the scale has eleven bits, and may be negative since 15.
            1700 if modifier >= HEADER => {
                let bits = modifier - HEADER;
                Modifier::Numeric { precision: bits >> 16 & 0xffff, scale: (bits & 0x7ff ^ 0x400) - 0x400 }
            }
            // time, timestamp, timestamptz, timetz
            1083 | 1114 | 1184 | 1266 => Modifier::Time { precision: Some(modifier), fields: None },
            1186 => {
                let precision = Some(modifier & 0xffff).filter(|precision| *precision != 0xffff);
                Modifier::Time { precision, fields: interval_fields(modifier >> 16 & 0x7fff) }
            }
            _ => Modifier::None,
        }
    }
}

/// Those of an interval that has not all of them, as its type is written.
fn interval_fields(range: i32) -> Option<&'static str> {
    const YEAR: i32 = 1 << 2;
    const MONTH: i32 = 1 << 1;
    const DAY: i32 = 1 << 3;
    const HOUR: i32 = 1 << 10;
    const MINUTE: i32 = 1 << 11;
    const SECOND: i32 = 1 << 12;
    const FIELDS: [(i32, &str); 13] = [
        (YEAR, "YEAR"),
        (MONTH, "MONTH"),
        (DAY, "DAY"),
        (HOUR, "HOUR"),
        (MINUTE, "MINUTE"),
        (SECOND, "SECOND"),
        (YEAR | MONTH, "YEAR TO MONTH"),
        (DAY | HOUR, "DAY TO HOUR"),
        (DAY | HOUR | MINUTE, "DAY TO MINUTE"),
        (DAY | HOUR | MINUTE | SECOND, "DAY TO SECOND"),
        (HOUR | MINUTE, "HOUR TO MINUTE"),
        (HOUR | MINUTE | SECOND, "HOUR TO SECOND"),
        (MINUTE | SECOND, "MINUTE TO SECOND"),
    ];
    FIELDS.iter().find(|(mask, _)| *mask == range).map(|(_, fields)| *fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn column(type_name: &str, type_oid: u32, type_modifier: i32) -> ColumnShown {
        ColumnShown {
            name: "c".into(),
            type_name: type_name.into(),
            type_oid,
            type_modifier,
            dims: 0,
            pk_index: None,
            not_null: false,
        }
    }

    fn shown(column: ColumnShown) -> Value {
        let name = column.name.clone();
        serde_json::from_slice::<Value>(header(&[column]).as_bytes()).unwrap()[name].take()
    }

    /// Modifiers as a real server has them in pg_attribute.
    #[test]
    fn modifiers_are_read_as_postgres_writes_them() {
        for (type_name, oid, modifier, expected) in [
            ("int4", 23, -1, json!({})),
            ("text", 25, -1, json!({})),
            ("varchar", 1043, -1, json!({})),
            ("varchar", 1043, 9, json!({"max_length": 5})),
            ("bpchar", 1042, 7, json!({"length": 3})),
            ("bpchar", 1042, -1, json!({})),
            ("bit", 1560, 8, json!({"length": 8})),
            ("varbit", 1562, 8, json!({"length": 8})),
            ("varbit", 1562, -1, json!({})),
            ("numeric", 1700, -1, json!({})),
            ("numeric", 1700, 655_366, json!({"precision": 10, "scale": 2})),
            ("numeric", 1700, 327_684, json!({"precision": 5, "scale": 0})),
            ("numeric", 1700, 133_122, json!({"precision": 2, "scale": -2})),
            ("numeric", 1700, 65_537_004, json!({"precision": 1000, "scale": 1000})),
            ("timestamp", 1114, 3, json!({"precision": 3})),
            ("timestamptz", 1184, 0, json!({"precision": 0})),
            ("time", 1083, 6, json!({"precision": 6})),
            ("timetz", 1266, -1, json!({})),
            ("date", 1082, -1, json!({})),
            ("interval", 1186, -1, json!({})),
            ("interval", 1186, 2_147_418_115, json!({"precision": 3})),
            ("interval", 1186, 2_147_418_112, json!({"precision": 0})),
            ("interval", 1186, 327_679, json!({"fields": "YEAR"})),
            ("interval", 1186, 196_607, json!({"fields": "MONTH"})),
            ("interval", 1186, 589_823, json!({"fields": "DAY"})),
            ("interval", 1186, 67_174_399, json!({"fields": "HOUR"})),
            ("interval", 1186, 134_283_263, json!({"fields": "MINUTE"})),
            ("interval", 1186, 268_500_991, json!({"fields": "SECOND"})),
            ("interval", 1186, 268_435_460, json!({"fields": "SECOND", "precision": 4})),
            ("interval", 1186, 458_751, json!({"fields": "YEAR TO MONTH"})),
            ("interval", 1186, 67_698_687, json!({"fields": "DAY TO HOUR"})),
            ("interval", 1186, 201_916_415, json!({"fields": "DAY TO MINUTE"})),
            ("interval", 1186, 470_351_871, json!({"fields": "DAY TO SECOND"})),
            ("interval", 1186, 470_286_338, json!({"fields": "DAY TO SECOND", "precision": 2})),
            ("interval", 1186, 201_392_127, json!({"fields": "HOUR TO MINUTE"})),
            ("interval", 1186, 469_827_583, json!({"fields": "HOUR TO SECOND"})),
            ("interval", 1186, 402_718_719, json!({"fields": "MINUTE TO SECOND"})),
            ("mood", 16_400, 7, json!({})),
        ] {
            let mut expected = expected;
            expected["type"] = type_name.into();
            assert_eq!(shown(column(type_name, oid, modifier)), expected, "{type_name} {modifier}");
        }
    }

    #[test]
    fn what_is_said_is_what_is_so() {
        let id =
            ColumnShown { name: "id".into(), pk_index: Some(0), not_null: true, ..column("int8", 20, -1) };
        let tags = ColumnShown { name: "a tag".into(), dims: 2, ..column("varchar", 1043, 14) };
        let expected = r#"{"id":{"type":"int8","pk_index":0,"not_null":true},"a tag":{"type":"varchar","dims":2,"max_length":10}}"#;
        assert_eq!(header(&[id, tags]), expected);
        assert_eq!(header(&[]), "{}");
    }

    #[test]
    fn names_of_all_the_world_fit_a_header() {
        let name = "größe \u{1F980}\u{7f}\n\"\\";
        let value = header(&[ColumnShown { name: name.into(), ..column("größe", 1, -1) }]);
        assert_eq!(
            value.to_str().unwrap(),
            r#"{"gr\u00f6\u00dfe \ud83e\udd80\u007f\n\"\\":{"type":"gr\u00f6\u00dfe"}}"#
        );
    }

    proptest! {
        #[test]
        fn every_schema_survives_its_header(name in any::<String>(), oid in 1_040_u32..1_800, modifier: i32) {
            let column = ColumnShown { name: name.clone(), ..column(&name, oid, modifier) };
            prop_assert_eq!(&shown(column)["type"], &Value::from(name));
        }
    }
}
