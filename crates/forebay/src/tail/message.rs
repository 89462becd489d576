//! A message as people read it: one line, whatever the row holds.

use std::fmt;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::terminal::{Paint, Tone, shown};

/// A message of a shape's log, as far as it is shown.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    key: Option<String>,
    #[serde(default)]
    value: Columns,
    headers: Headers,
}

#[derive(Debug, Deserialize)]
struct Headers {
    operation: Option<String>,
    control: Option<String>,
    key_change_to: Option<String>,
    key_change_from: Option<String>,
}

/// In the order in which they came.
#[derive(Debug, Default)]
struct Columns(Vec<(String, Option<String>)>);

impl Message {
    /// Whether it is a row or a change of one.
    pub(super) fn is_change(&self) -> bool {
        self.headers.operation.is_some()
    }

    /// Whether it tells where the server is, not what is in the table.
    pub(super) fn is_control(&self) -> bool {
        self.headers.control.is_some()
    }

    /// For people, with its end of line.
    pub(super) fn line(&self, paint: Paint) -> String {
        let operation = self.headers.operation.as_deref().unwrap_or("message");
        let tone = match operation {
            "insert" => Tone::Good,
            "update" => Tone::Careful,
            "delete" => Tone::Bad,
            _ => Tone::Faint,
        };
        let mut line = paint.tone(tone, &format!("{:<6}", shown(operation)));
        let _ =
            write!(line, " {}", paint.tone(Tone::Strong, &short(self.key.as_deref().unwrap_or_default())));
        for (column, value) in &self.value.0 {
            let value = match value {
                None => paint.tone(Tone::Faint, "null"),
                Some(value) => quoted(value),
            };
            let _ = write!(line, "  {}={value}", paint.tone(Tone::Faint, &shown(column)));
        }
        for (what, other) in [("now", &self.headers.key_change_to), ("was", &self.headers.key_change_from)] {
            if let Some(other) = other {
                let _ = write!(line, "  {}", paint.tone(Tone::Faint, &format!("({what} {})", short(other))));
            }
        }
        line.push('\n');
        line
    }
}

/// A message as it came, on one line, for programs. What could act on a terminal is escaped as JSON allows.
pub(super) fn json_line(message: &RawValue) -> String {
    let mut line = String::with_capacity(message.get().len() + 1);
    for letter in message.get().chars() {
        match letter {
            // Between values only: inside of them JSON has no line breaks.
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

/// `"public"."items"/"1"/"b"` as `1/b`: which table is known.
fn short(key: &str) -> String {
    let values = key.split_once('/').map_or(key, |(_, values)| values);
    let parts: Vec<_> = values.split("\"/\"").map(|part| part.trim_matches('"')).collect();
    shown(&parts.join("/"))
}

/// So that columns can be told apart, and an empty text from none.
fn quoted(value: &str) -> String {
    let plain = !value.is_empty()
        && value != "null"
        && !value.chars().any(|letter| letter.is_whitespace() || matches!(letter, '"' | '=' | '\\'));
    if plain {
        shown(value)
    } else {
        format!("\"{}\"", shown(&value.replace('\\', "\\\\").replace('"', "\\\"")))
    }
}

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Columns, D::Error> {
        struct Ordered;

        impl<'de> Visitor<'de> for Ordered {
            type Value = Columns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("columns and their values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Columns, A::Error> {
                let mut columns = Vec::new();
                while let Some(column) = map.next_entry()? {
                    columns.push(column);
                }
                Ok(Columns(columns))
            }
        }

        deserializer.deserialize_map(Ordered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(json: &str) -> String {
        serde_json::from_str::<Message>(json).unwrap().line(Paint::PLAIN)
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
    fn a_row_can_not_act_on_the_terminal() {
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
        assert_eq!(value["a"], "\u{9b}2J\u{7f}\n", "a program reads the same");
    }
}
