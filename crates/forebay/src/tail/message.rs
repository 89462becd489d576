//! Formats a message of the shape protocol as one line.

use std::fmt;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::terminal::{Paint, Tone, escape_controls};

/// Message of a shape's log: the fields that are printed.
#[derive(Debug, Deserialize)]
pub(super) struct TailMessage {
    key: Option<String>,
    #[serde(default)]
    value: OrderedColumns,
    headers: MessageHeaders,
}

#[derive(Debug, Deserialize)]
struct MessageHeaders {
    operation: Option<String>,
    control: Option<String>,
    key_change_to: Option<String>,
    key_change_from: Option<String>,
}

/// Columns and values, in the order of the message.
#[derive(Debug, Default)]
struct OrderedColumns(Vec<(String, Option<String>)>);

impl TailMessage {
    /// Returns whether the message is a row or a change.
    pub(super) fn is_change(&self) -> bool {
        self.headers.operation.is_some()
    }

    /// Returns whether the message is a control message.
    pub(super) fn is_control(&self) -> bool {
        self.headers.control.is_some()
    }

    /// Returns the line for a terminal, with its line end.
    pub(super) fn line(&self, paint: Paint) -> String {
        let operation = self.headers.operation.as_deref().unwrap_or("message");
        let tone = match operation {
            "insert" => Tone::Good,
            "update" => Tone::Careful,
            "delete" => Tone::Bad,
            _ => Tone::Faint,
        };
        let mut line = paint.tone(tone, &format!("{:<6}", escape_controls(operation)));
        let _ = write!(
            line,
            " {}",
            paint.tone(Tone::Strong, &short_key(self.key.as_deref().unwrap_or_default()))
        );
        for (column, value) in &self.value.0 {
            let value = match value {
                None => paint.tone(Tone::Faint, "null"),
                Some(value) => quoted_value(value),
            };
            let _ = write!(line, "  {}={value}", paint.tone(Tone::Faint, &escape_controls(column)));
        }
        for (what, other) in [("now", &self.headers.key_change_to), ("was", &self.headers.key_change_from)] {
            if let Some(other) = other {
                let _ =
                    write!(line, "  {}", paint.tone(Tone::Faint, &format!("({what} {})", short_key(other))));
            }
        }
        line.push('\n');
        line
    }
}

/// Returns the message as one line of JSON. Control characters are escaped as JSON allows.
pub(super) fn json_line(message: &RawValue) -> String {
    let mut line = String::with_capacity(message.get().len() + 1);
    for letter in message.get().chars() {
        match letter {
            // These occur only between values: JSON strings have no raw line breaks.
            '\n' | '\r' | '\t' => line.push(' '),
            letter if letter.is_control() => {
                let _ = write!(line, "\\u{:04x}", u32::from(letter));
            }
            letter => line.push(letter),
        }
    }
    line.push('\n');
    line
}

/// Returns a key without its table: `"public"."items"/"1"/"b"` as `1/b`.
fn short_key(key: &str) -> String {
    let values = key.split_once('/').map_or(key, |(_, values)| values);
    let parts: Vec<_> = values.split("\"/\"").map(|part| part.trim_matches('"')).collect();
    escape_controls(&parts.join("/"))
}

/// Quotes a value if needed, so that columns are separable, and an empty text differs from null.
fn quoted_value(value: &str) -> String {
    let plain = !value.is_empty()
        && value != "null"
        && !value.chars().any(|letter| letter.is_whitespace() || matches!(letter, '"' | '=' | '\\'));
    if plain {
        escape_controls(value)
    } else {
        format!("\"{}\"", escape_controls(&value.replace('\\', "\\\\").replace('"', "\\\"")))
    }
}

impl<'de> Deserialize<'de> for OrderedColumns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderedColumns, D::Error> {
        /// Collects the entries of a JSON object in order.
        struct ColumnsVisitor;

        impl<'de> Visitor<'de> for ColumnsVisitor {
            type Value = OrderedColumns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("columns and their values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedColumns, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(OrderedColumns(columns))
            }
        }

        deserializer.deserialize_map(ColumnsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(json: &str) -> String {
        serde_json::from_str::<TailMessage>(json).unwrap().line(Paint::PLAIN)
    }

    #[test]
    fn a_change_is_one_line_in_the_order_of_its_columns() {
        let insert = r#"{"key":"\"public\".\"items\"/\"1\"/\"b\"","value":{"z":"1","name":"a b","note":null,"empty":""},
            "headers":{"operation":"insert","relation":["public","items"]}}"#;
        assert_eq!(line(insert), "insert 1/b  z=1  name=\"a b\"  note=null  empty=\"\"\n");
        let delete = r#"{"key":"\"public\".\"items\"/\"1\"","value":{"id":"1"},
            "headers":{"operation":"delete","key_change_to":"\"public\".\"items\"/\"2\""}}"#;
        assert_eq!(line(delete), "delete 1  id=1  (now 2)\n");
    }

    #[test]
    fn control_characters_of_a_row_are_escaped() {
        let row = r#"{"key":"\"public\".\"t\"/\"\u001b[2J\"","value":{"a\u001bb":"\u001b]0;x\u0007","c":"x\ny\"=\\"},
            "headers":{"operation":"insert"}}"#;
        let printed = line(row);
        assert_eq!(
            printed, "insert \\u{1b}[2J  a\\u{1b}b=\\u{1b}]0;x\\u{7}  c=\"x\\ny\\\"=\\\\\"\n",
            "one line, no escape"
        );
        let raw: Box<RawValue> = serde_json::from_str("{\"a\":\n\"\u{9b}2J\u{7f}\\n\"}").unwrap();
        let printed = json_line(&raw);
        assert_eq!(printed, "{\"a\": \"\\u009b2J\\u007f\\n\"}\n");
        let value: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(value["a"], "\u{9b}2J\u{7f}\n", "a JSON parser gets the same value");
    }
}
