//! Header `electric-schema`: the types of a shape's columns.
//!
//! Invariant: the header is ASCII for all names. Type modifiers are decoded as Postgres does.

use http::HeaderValue;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// A column in the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaColumn {
    /// Name in pg_attribute.
    pub name: String,
    /// pg_type.typname. For an array, that of its elements.
    pub type_name: String,
    /// pg_type.oid. For an array, that of its elements.
    pub type_oid: u32,
    /// pg_attribute.atttypmod; -1 if there is none.
    pub type_modifier: i32,
    /// Number of dimensions of an array; 0 for other types.
    pub dims: u32,
    /// Position in the primary key, from 0.
    pub pk_index: Option<usize>,
    /// Whether the column is NOT NULL.
    pub not_null: bool,
}

/// Returns the value of the header: a JSON object with the columns in order.
pub fn header(columns: &[SchemaColumn]) -> HeaderValue {
    let json = serde_json::to_string(&SchemaColumns(columns)).unwrap_or_default();
    let mut ascii = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            ' '..='~' => ascii.push(character),
            // Other characters occur only in JSON strings, where they can be escaped.
            other => {
                let mut units = [0; 2];
                ascii.extend(other.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    HeaderValue::try_from(ascii).expect("all bytes that a header can't contain are escaped")
}

/// Serializes columns as a JSON object, in order.
struct SchemaColumns<'a>(&'a [SchemaColumn]);

impl Serialize for SchemaColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|column| (&column.name, column)))
    }
}

impl Serialize for SchemaColumn {
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
        match ColumnModifier::of(self.type_oid, self.type_modifier) {
            ColumnModifier::None => {}
            ColumnModifier::MaxLength(length) => map.serialize_entry("max_length", &length)?,
            ColumnModifier::Length(length) => map.serialize_entry("length", &length)?,
            ColumnModifier::Numeric { precision, scale } => {
                map.serialize_entry("precision", &precision)?;
                map.serialize_entry("scale", &scale)?;
            }
            ColumnModifier::Time { precision, fields } => {
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

/// Modifier of a type, such as the length of `varchar(5)` or the fields of `interval`.
#[derive(Debug, PartialEq, Eq)]
enum ColumnModifier {
    None,
    MaxLength(i32),
    Length(i32),
    Numeric { precision: i32, scale: i32 },
    Time { precision: Option<i32>, fields: Option<&'static str> },
}

/// Postgres' VARHDRSZ, which is added to some modifiers.
const VARHDRSZ: i32 = 4;

impl ColumnModifier {
    fn of(oid: u32, modifier: i32) -> ColumnModifier {
        match oid {
            _ if modifier < 0 => ColumnModifier::None,
            // bpchar, varchar
            1042 if modifier > VARHDRSZ => ColumnModifier::Length(modifier - VARHDRSZ),
            1043 if modifier > VARHDRSZ => ColumnModifier::MaxLength(modifier - VARHDRSZ),
            // bit, varbit
            1560 | 1562 => ColumnModifier::Length(modifier),
            // numeric: the scale has eleven bits, and may be negative since Postgres 15.
            1700 if modifier >= VARHDRSZ => {
                let bits = modifier - VARHDRSZ;
                ColumnModifier::Numeric {
                    precision: bits >> 16 & 0xffff,
                    scale: (bits & 0x7ff ^ 0x400) - 0x400,
                }
            }
            // time, timestamp, timestamptz, timetz
            1083 | 1114 | 1184 | 1266 => ColumnModifier::Time { precision: Some(modifier), fields: None },
            // interval
            1186 => {
                let precision = Some(modifier & 0xffff).filter(|precision| *precision != 0xffff);
                ColumnModifier::Time { precision, fields: interval_fields(modifier >> 16 & 0x7fff) }
            }
            _ => ColumnModifier::None,
        }
    }
}

/// Returns the fields of a restricted interval, as in its type name.
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

    fn column(type_name: &str, type_oid: u32, type_modifier: i32) -> SchemaColumn {
        SchemaColumn {
            name: "c".into(),
            type_name: type_name.into(),
            type_oid,
            type_modifier,
            dims: 0,
            pk_index: None,
            not_null: false,
        }
    }

    fn shown(column: SchemaColumn) -> Value {
        let name = column.name.clone();
        serde_json::from_slice::<Value>(header(&[column]).as_bytes()).unwrap()[name].take()
    }

    /// Modifiers from pg_attribute of a real server.
    #[test]
    fn type_modifiers_are_decoded_as_in_postgres() {
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
    fn the_header_describes_each_column() {
        let id =
            SchemaColumn { name: "id".into(), pk_index: Some(0), not_null: true, ..column("int8", 20, -1) };
        let tags = SchemaColumn { name: "a tag".into(), dims: 2, ..column("varchar", 1043, 14) };
        let expected = r#"{"id":{"type":"int8","pk_index":0,"not_null":true},"a tag":{"type":"varchar","dims":2,"max_length":10}}"#;
        assert_eq!(header(&[id, tags]), expected);
        assert_eq!(header(&[]), "{}");
    }

    #[test]
    fn non_ascii_names_are_escaped_in_the_header() {
        let name = "größe \u{1F980}\u{7f}\n\"\\";
        let value = header(&[SchemaColumn { name: name.into(), ..column("größe", 1, -1) }]);
        assert_eq!(
            value.to_str().unwrap(),
            r#"{"gr\u00f6\u00dfe \ud83e\udd80\u007f\n\"\\":{"type":"gr\u00f6\u00dfe"}}"#
        );
    }

    proptest! {
        #[test]
        fn every_name_round_trips_through_the_header(name in any::<String>(), oid in 1_040_u32..1_800, modifier: i32) {
            let column = SchemaColumn { name: name.clone(), ..column(&name, oid, modifier) };
            prop_assert_eq!(&shown(column)["type"], &Value::from(name));
        }
    }
}
