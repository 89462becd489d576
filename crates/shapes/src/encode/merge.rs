//! Log merging: combines updates of the same row.
//!
//! Invariant: a client that has read the original log up to any offset, and reads the merged log
//! from there, ends with the same rows. No existing row is inserted, and no missing row is updated
//! or deleted.
//! Enforced by: only updates are removed. Each is combined into the next update of the same row.

use std::borrow::Cow;
use std::collections::HashMap;

/// Fields of a message, unparsed.
struct ParsedMessage<'a> {
    key: &'a [u8],
    /// Text between the braces.
    value: &'a [u8],
    old: Option<&'a [u8]>,
    operation: RowOperation,
    /// Text from `,"headers"` to the end.
    rest: &'a [u8],
}

/// Operation of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOperation {
    Insert,
    Update,
    Delete,
}

const VALUE: &[u8] = b",\"value\":{";
const OLD: &[u8] = b",\"old_value\":{";

/// Merges whole messages of a log. A combined message has the offset of the last original. Returns
/// `None` if the bytes aren't messages of a log.
pub(crate) fn merge(messages: &[u8]) -> Option<Vec<Cow<'_, [u8]>>> {
    let mut merged: Vec<Cow<'_, [u8]>> = Vec::new();
    // Last update of each row, unless an insert or a delete follows it.
    let mut updates: HashMap<&[u8], usize> = HashMap::new();
    for line in messages.split_inclusive(|byte| *byte == b'\n') {
        let message = parse(line)?;
        let mut kept = Cow::Borrowed(line);
        if message.operation != RowOperation::Update {
            // Later messages with this key are about another row.
            updates.remove(message.key);
        } else if let Some(before) = updates.insert(message.key, merged.len()) {
            let before = std::mem::take(&mut merged[before]);
            kept = Cow::Owned(merge_updates(&parse(&before)?, &message)?);
        }
        merged.push(kept);
    }
    merged.retain(|message| !message.is_empty());
    Some(merged)
}

/// Returns one update with the effect of two.
fn merge_updates(older: &ParsedMessage<'_>, newer: &ParsedMessage<'_>) -> Option<Vec<u8>> {
    let mut out = [b"{\"key\":\"", newer.key, b"\"", VALUE].concat();
    match (older.old, newer.old) {
        (Some(older), Some(newer_old)) => {
            out.extend_from_slice(newer.value);
            out.push(b'}');
            out.extend_from_slice(OLD);
            overlay(&mut out, newer_old, older)?;
        }
        _ => overlay(&mut out, older.value, newer.value)?,
    }
    out.push(b'}');
    out.extend_from_slice(newer.rest);
    Some(out)
}

/// Appends the fields of both; a field of `above` replaces the same field of `below`.
fn overlay(out: &mut Vec<u8>, below: &[u8], above: &[u8]) -> Option<()> {
    let above: Vec<_> = fields(above).collect::<Option<_>>()?;
    for field in fields(below) {
        let (name, field) = field?;
        if !above.iter().any(|(other, _)| *other == name) {
            out.extend_from_slice(field);
            out.push(b',');
        }
    }
    for (_, field) in above {
        out.extend_from_slice(field);
        out.push(b',');
    }
    out.pop_if(|byte| *byte == b',');
    Some(())
}

/// Returns the key of a message, still escaped.
pub(crate) fn row_key(line: &[u8]) -> Option<&[u8]> {
    string(line.strip_prefix(b"{\"key\":\"")?).map(|(key, _)| key)
}

/// Returns the key of a message, still escaped, and the operation.
pub(crate) fn key_change(line: &[u8]) -> Option<(&[u8], RowOperation)> {
    parse(line).map(|message| (message.key, message.operation))
}

fn parse(line: &[u8]) -> Option<ParsedMessage<'_>> {
    let (key, rest) = string(line.strip_prefix(b"{\"key\":\"")?)?;
    let (value, rest) = object(rest.strip_prefix(VALUE)?)?;
    let (old, rest) = match rest.strip_prefix(OLD) {
        Some(rest) => object(rest).map(|(old, rest)| (Some(old), rest))?,
        None => (None, rest),
    };
    let operation = rest.strip_prefix(b",\"headers\":{\"operation\":\"")?;
    let operation = match operation.get(..7)? {
        b"insert\"" => RowOperation::Insert,
        b"update\"" => RowOperation::Update,
        b"delete\"" => RowOperation::Delete,
        _ => return None,
    };
    Some(ParsedMessage { key, value, old, operation, rest })
}

/// Returns the text before and the text after the closing brace of an object.
fn object(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = text;
    while rest.first() != Some(&b'}') {
        let (_, field, after) = field(rest)?;
        rest = match after.first()? {
            b',' => &after[1..],
            b'}' => after,
            _ => return None,
        };
        debug_assert!(!field.is_empty());
    }
    let len = text.len() - rest.len();
    Some((&text[..len], &rest[1..]))
}

/// Returns the fields of an object, each as its name and its whole text.
fn fields(mut object: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    std::iter::from_fn(move || {
        if object.is_empty() {
            return None;
        }
        let Some((name, field, after)) = field(object) else {
            object = b"";
            return Some(None);
        };
        object = after.strip_prefix(b",").unwrap_or(after);
        Some(Some((name, field)))
    })
}

/// Returns the name and the whole text of the first field, and the text after it.
fn field(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = string(text.strip_prefix(b"\"")?)?;
    let rest = rest.strip_prefix(b":")?;
    let after = match rest.strip_prefix(b"\"") {
        Some(value) => string(value)?.1,
        None => rest.strip_prefix(b"null")?,
    };
    Some((name, &text[..text.len() - after.len()], after))
}

/// Returns the inside of a string whose opening quote is consumed, and the text after its end.
fn string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((&text[..at], &text[at + 1..]));
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;
    use crate::encode::{ColumnSchema, LogPosition, RowEncoder, ShapeChange, offset_of};
    use crate::offset::Offset;

    type MergeRows = BTreeMap<String, Map<String, Value>>;

    /// Applies a message to a client's rows. Panics if a client couldn't apply it.
    fn take(rows: &mut MergeRows, message: &[u8], is_full: bool) {
        let message: Value = serde_json::from_slice(message.strip_suffix(b",\n").unwrap()).unwrap();
        let key = message["key"].as_str().unwrap().to_owned();
        let value = message["value"].as_object().unwrap().clone();
        match message["headers"]["operation"].as_str().unwrap() {
            "insert" => assert_eq!(rows.insert(key, value), None, "the inserted row exists"),
            "update" => {
                let row = rows.get_mut(&key).expect("the updated row exists");
                if is_full {
                    for (name, old) in message["old_value"].as_object().unwrap() {
                        assert!(row.contains_key(name), "{old}");
                    }
                    assert_eq!(row.len(), value.len());
                }
                row.extend(value);
            }
            "delete" => assert!(rows.remove(&key).is_some(), "the deleted row is missing"),
            other => panic!("{other}"),
        }
    }

    /// Returns a log of random changes of few rows, with special characters in names and values.
    fn log(steps: &[(u8, u8, Option<String>)], is_full: bool) -> Vec<u8> {
        let column = |name: &str, key_index| ColumnSchema { name: name.into(), key_index };
        let columns = [column("id", Some(0)), column("a\"}", None), column("b\\", None)];
        let layout = RowEncoder::new("public", "t", &columns, &[0, 1, 2], is_full);
        let mut rows: BTreeMap<u8, [Option<String>; 3]> = BTreeMap::new();
        let mut out = Vec::new();
        for (index, (id, kind, text)) in steps.iter().enumerate() {
            let (id, place) =
                (id % 4, LogPosition { lsn: 1 + index as u64 / 3, op: index as u64 % 3 * 2, xid: 7 });
            let new = |old: Option<&[Option<String>; 3]>| {
                let mut row = old.cloned().unwrap_or([Some(format!("{id}/\"")), None, None]);
                row[1 + usize::from(kind % 2)] = text.clone();
                row
            };
            let bytes = |row: &[Option<String>; 3]| -> Vec<Option<Vec<u8>>> {
                row.iter().map(|value| value.clone().map(String::into_bytes)).collect()
            };
            let old = rows.get(&id).cloned();
            match &old {
                None => drop(rows.insert(id, new(None))),
                Some(_) if kind % 5 == 0 => drop(rows.remove(&id)),
                Some(row) => drop(rows.insert(id, new(Some(row)))),
            }
            let (old, new) = (old.as_ref().map(bytes), rows.get(&id).map(bytes));
            let view = |row: &Option<Vec<Option<Vec<u8>>>>| -> Vec<Option<Vec<u8>>> {
                row.clone().unwrap_or_default()
            };
            let (old_row, new_row) = (view(&old), view(&new));
            let old_row: Vec<_> = old_row.iter().map(Option::as_deref).collect();
            let new_row: Vec<_> = new_row.iter().map(Option::as_deref).collect();
            let change = match (old, new) {
                (None, _) => ShapeChange::Insert { row: &new_row, from: None },
                (Some(_), Some(_)) => ShapeChange::Update { old: &old_row, new: &new_row },
                (Some(_), None) => ShapeChange::Delete { row: &old_row, to: None },
            };
            layout.change(&mut out, change, place);
        }
        out
    }

    proptest! {
        #[test]
        fn reading_the_merged_log_from_any_offset_leads_to_the_same_rows(
            steps in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<Option<String>>()), 0..40),
            is_full: bool,
        ) {
            let whole = log(&steps, is_full);
            let merged = merge(&whole).expect("the bytes are messages");
            let lines: Vec<_> = whole.split_inclusive(|byte| *byte == b'\n').collect();
            prop_assert!(merged.len() <= lines.len());
            let mut known = MergeRows::new();
            let mut places = vec![Offset::SNAPSHOT_END];
            places.extend(lines.iter().map(|line| offset_of(line).unwrap()));
            let mut end = MergeRows::new();
            lines.iter().for_each(|line| take(&mut end, line, is_full));
            for (read, place) in places.into_iter().enumerate() {
                if read > 0 {
                    take(&mut known, lines[read - 1], is_full);
                }
                let mut rows = known.clone();
                for message in merged.iter().filter(|message| offset_of(message).unwrap() > place) {
                    take(&mut rows, message, is_full);
                }
                prop_assert_eq!(&rows, &end, "after {}", place);
            }
        }

        #[test]
        fn random_bytes_are_refused(noise: Vec<u8>) {
            prop_assert!(noise.is_empty() || merge(&noise).is_none());
        }
    }

    #[test]
    fn many_updates_of_one_row_become_few_messages() {
        let steps: Vec<_> =
            (0..1000).map(|index| (1, 1 + index as u8 % 4, Some(index.to_string()))).collect();
        let whole = log(&steps, false);
        let merged = merge(&whole).unwrap();
        let deletes =
            merged.iter().filter(|message| message.windows(8).any(|part| part == b"\"delete\"")).count();
        assert!(merged.len() <= 2 + 3 * deletes && merged.len() < 1000, "{} messages", merged.len());
        assert_eq!(
            offset_of(merged.last().unwrap()),
            offset_of(whole.split_inclusive(|byte| *byte == b'\n').next_back().unwrap())
        );
    }

    #[test]
    fn a_merged_full_update_has_the_old_values_of_the_first() {
        let steps =
            [(1, 1, Some("a".to_owned())), (1, 1, Some("b".into())), (1, 2, Some("c".into())), (1, 1, None)];
        let whole = log(&steps, true);
        let merged = merge(&whole).unwrap();
        assert_eq!(merged.len(), 2);
        let update: Value = serde_json::from_slice(merged[1].strip_suffix(b",\n").unwrap()).unwrap();
        assert_eq!(update["old_value"], serde_json::json!({"b\\": "a", "a\"}": null}));
        assert_eq!(update["value"], serde_json::json!({"id": "1/\"", "b\\": null, "a\"}": "c"}));
    }
}
