//! Renders a list of open streams as a table. Pure.

use std::fmt::Write as _;

use serde_json::Value;

use crate::numbers::{duration, grouped};
use crate::terminal::{Paint, Tone, escape_controls};

/// Heads of the columns.
const HEADS: [&str; 6] = ["SINCE", "OPEN FOR", "USER", "INSTANCE", "ROUTE", "THREAD ID"];

/// Returns the whole text: a summary, what is missing, and one line for each stream. Missing fields
/// are left out.
pub(super) fn render(list: &Value, paint: Paint) -> String {
    let streams = list["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut out = summary(list, streams.len(), paint);
    let rows: Vec<[String; HEADS.len()]> = streams.iter().map(row).collect();
    if rows.is_empty() {
        return out;
    }
    let mut widths = HEADS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; HEADS.len()]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    out += &paint.tone(Tone::Faint, &line(&HEADS.map(str::to_owned)));
    rows.iter().for_each(|row| out += &line(row));
    out
}

fn summary(list: &Value, listed: usize, paint: Paint) -> String {
    let count = |key: &str| list[key].as_u64().unwrap_or(0);
    let instances = list["instances"].as_array().map_or(0, Vec::len);
    let mut out =
        format!("{} at {}", plural(count("open"), "open stream"), plural(instances as u64, "instance"));
    if count("cut_off") > 0 {
        let _ = write!(out, ", the oldest {} are listed", grouped(listed as u64));
    }
    out.push('\n');
    let silent: Vec<_> = list["silent"].as_array().into_iter().flatten().map(text).collect();
    if !silent.is_empty() {
        let line =
            format!("no answer from {}: {}\n", plural(silent.len() as u64, "instance"), silent.join(", "));
        out += &paint.tone(Tone::Bad, &line);
    }
    if let Some(why) = list["why"].as_str() {
        out += &paint.tone(Tone::Careful, &format!("{}\n", escape_controls(why)));
    }
    out
}

fn row(stream: &Value) -> [String; HEADS.len()] {
    let age = stream["since_seconds"].as_u64().unwrap_or(0).saturating_mul(1_000);
    [
        text(&stream["since"]),
        duration(age),
        text(&stream["user"]),
        text(&stream["instance"]),
        text(&stream["route"]),
        text(&stream["thread_id"]),
    ]
}

/// Returns a text without control characters; `-` if there is none.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), escape_controls)
}

fn plural(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn streams_are_a_table_and_control_characters_are_escaped() {
        let list = json!({
            "scope": "cluster", "why": "rebuilding", "open": 1_500, "cut_off": 1_498,
            "instances": [{"instance": "one", "open": 1_500}], "silent": ["two", "th\u{1b}ree"],
            "streams": [
                {"thread_id": "t-1", "user": "0123456789abcdef", "instance": "one",
                    "route": "GET /\u{7}", "since": "2001-09-09T01:46:40Z", "since_seconds": 61},
                {"thread_id": "long-thread-id", "user": null, "instance": "one", "route": null,
                    "since": "2001-09-09T01:46:41Z", "since_seconds": 60},
            ],
        });
        let expected = "\
1,500 open streams at 1 instance, the oldest 2 are listed
no answer from 2 instances: two, th\\u{1b}ree
rebuilding
SINCE                 OPEN FOR  USER              INSTANCE  ROUTE       THREAD ID
2001-09-09T01:46:40Z  1m 1s     0123456789abcdef  one       GET /\\u{7}  t-1
2001-09-09T01:46:41Z  1m 0s     -                 one       -           long-thread-id
";
        assert_eq!(render(&list, Paint::PLAIN), expected);
    }

    #[test]
    fn an_unexpected_list_is_rendered_without_its_unknown_parts() {
        for list in [json!(null), json!({"streams": 7}), json!({"streams": [null, 1, {"route": []}]})] {
            assert!(render(&list, Paint::PLAIN).starts_with("0 open streams at 0 instances\n"), "{list}");
        }
    }
}
