//! Row encoder: writes the rows of one table for shapes with the same columns.

use super::json;
use crate::offset::Offset;

/// Values of a row in the order of the table's columns, as texts that Postgres sent; `None` is
/// NULL.
pub type RowValues<'a> = [Option<&'a [u8]>];

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnSchema {
    /// Name.
    pub name: String,
    /// Position in the primary key; `None`: the column isn't part of it.
    pub key_index: Option<usize>,
}

/// Position of a change in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Position (LSN) of the commit.
    pub lsn: u64,
    /// Number of the change in the transaction.
    pub op: u64,
    /// Transaction id.
    pub xid: u32,
}

/// Text between two messages. A message contains no line break.
pub const SEPARATOR: &[u8] = b",\n";

/// End of a message, with the separator. The last message of a transaction in a shape ends with
/// [`LAST`] instead.
pub const MORE: &[u8] = b"]}},\n";

/// End of the last message of a transaction in a shape, with the separator.
pub const LAST: &[u8] = b"],\"last\":true}},\n";

/// Change of a row in a shape.
#[derive(Debug, Clone, Copy)]
pub enum ShapeChange<'a> {
    /// The row enters the shape.
    Insert {
        /// The row.
        row: &'a RowValues<'a>,
        /// The row with its old key, if the key changed.
        from: Option<&'a RowValues<'a>>,
    },
    /// Values outside the key changed.
    Update {
        /// Values before.
        old: &'a RowValues<'a>,
        /// Values after.
        new: &'a RowValues<'a>,
    },
    /// The row leaves the shape.
    Delete {
        /// The row.
        row: &'a RowValues<'a>,
        /// The row with its new key, if the key changed.
        to: Option<&'a RowValues<'a>>,
    },
}

/// Encodes the rows of one table with one selection of columns.
#[derive(Debug, Clone)]
pub struct RowEncoder {
    /// `{"key":"` and the table's name, escaped.
    prefix: Vec<u8>,
    /// Indexes of the key's columns, in its order. All columns if the table has no primary key.
    key: Vec<usize>,
    columns: Vec<SelectedColumn>,
    /// `"relation":["schema","table"]`.
    relation: Vec<u8>,
    is_full: bool,
}

/// Shown column.
#[derive(Debug, Clone)]
struct SelectedColumn {
    index: usize,
    /// `"name":`, encoded.
    name: Vec<u8>,
    is_key: bool,
}

impl RowEncoder {
    /// Returns an encoder. `selected` are the indexes of the shown columns, in the table's order.
    /// With `is_full`, updates and deletes contain the whole row.
    pub fn new(
        schema: &str,
        table: &str,
        columns: &[ColumnSchema],
        selected: &[usize],
        is_full: bool,
    ) -> Self {
        let mut key: Vec<usize> =
            (0..columns.len()).filter(|index| columns[*index].key_index.is_some()).collect();
        key.sort_by_key(|index| columns[*index].key_index);
        if key.is_empty() {
            key = (0..columns.len()).collect();
        }
        let quoted = |name: &str| format!("\"{}\"", name.replace('.', "..").replace('/', "//"));
        let mut prefix = b"{\"key\":\"".to_vec();
        json::escaped(&mut prefix, format!("{}.{}", quoted(schema), quoted(table)).as_bytes());
        let mut relation = b"\"relation\":[".to_vec();
        json::value(&mut relation, Some(schema.as_bytes()));
        relation.push(b',');
        json::value(&mut relation, Some(table.as_bytes()));
        relation.push(b']');
        let column = |index: &usize| {
            let mut name = Vec::new();
            json::value(&mut name, Some(columns[*index].name.as_bytes()));
            name.push(b':');
            SelectedColumn { index: *index, name, is_key: key.contains(index) }
        };
        RowEncoder { columns: selected.iter().map(column).collect(), prefix, key, relation, is_full }
    }

    /// Appends a row of the snapshot, with the separator.
    pub fn snapshot_row(&self, out: &mut Vec<u8>, row: &RowValues<'_>) {
        self.begin(out, row);
        self.values(out, row, |_| true);
        out.extend_from_slice(b"},\"headers\":{\"operation\":\"insert\",");
        out.extend_from_slice(&self.relation);
        out.extend_from_slice(b"}}");
        out.extend_from_slice(SEPARATOR);
    }

    /// Appends a change, which ends with [`MORE`]. Appends nothing and returns `false` if no shown
    /// column has changed.
    pub fn change(&self, out: &mut Vec<u8>, change: ShapeChange<'_>, place: LogPosition) -> bool {
        match change {
            ShapeChange::Insert { row, from } => {
                self.begin(out, row);
                self.values(out, row, |_| true);
                self.end(out, "insert", place, from.map(|from| ("key_change_from", from)));
            }
            ShapeChange::Update { old, new } => {
                if !self.columns.iter().any(|column| old[column.index] != new[column.index]) {
                    return false;
                }
                self.begin(out, new);
                let differs = |column: &SelectedColumn| old[column.index] != new[column.index];
                if self.is_full {
                    self.values(out, new, |_| true);
                    out.extend_from_slice(b"},\"old_value\":{");
                    self.values(out, old, differs);
                } else {
                    self.values(out, new, |column| column.is_key || differs(column));
                }
                self.end(out, "update", place, None);
            }
            ShapeChange::Delete { row, to } => {
                self.begin(out, row);
                self.values(out, row, |column| self.is_full || column.is_key);
                self.end(out, "delete", place, to.map(|to| ("key_change_to", to)));
            }
        }
        true
    }

    /// Returns whether two rows have the same key.
    pub fn has_same_key(&self, a: &RowValues<'_>, b: &RowValues<'_>) -> bool {
        self.key.iter().all(|index| a[*index] == b[*index])
    }

    /// Appends the key of a row, in the form that messages have.
    pub(crate) fn key(&self, out: &mut Vec<u8>, row: &RowValues<'_>) {
        // The table's name, without the start of a message.
        out.extend_from_slice(&self.prefix[b"{\"key\":\"".len()..]);
        self.key_values(out, row);
    }

    fn begin(&self, out: &mut Vec<u8>, row: &RowValues<'_>) {
        out.extend_from_slice(&self.prefix);
        self.key_values(out, row);
        out.extend_from_slice(b"\",\"value\":{");
    }

    /// Appends the values of the key, for the inside of a JSON string: `/"1"/_/"a//b"`.
    fn key_values(&self, out: &mut Vec<u8>, row: &RowValues<'_>) {
        for index in &self.key {
            let Some(value) = row[*index] else {
                out.extend_from_slice(b"/_");
                continue;
            };
            out.extend_from_slice(b"/\\\"");
            let mut parts = value.split(|byte| *byte == b'/');
            json::escaped(out, parts.next().unwrap_or_default());
            for part in parts {
                out.extend_from_slice(b"//");
                json::escaped(out, part);
            }
            out.extend_from_slice(b"\\\"");
        }
    }

    fn values(&self, out: &mut Vec<u8>, row: &RowValues<'_>, is_shown: impl Fn(&SelectedColumn) -> bool) {
        let mut separator: &[u8] = b"";
        for column in self.columns.iter().filter(|column| is_shown(column)) {
            out.extend_from_slice(separator);
            out.extend_from_slice(&column.name);
            json::value(out, row[column.index]);
            separator = b",";
        }
    }

    fn end(
        &self,
        out: &mut Vec<u8>,
        operation: &str,
        place: LogPosition,
        key_change: Option<(&str, &RowValues<'_>)>,
    ) {
        out.extend_from_slice(b"},\"headers\":{\"operation\":\"");
        out.extend_from_slice(operation.as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.relation);
        if let Some((name, row)) = key_change {
            out.extend_from_slice(format!(",\"{name}\":\"").as_bytes());
            self.key(out, row);
            out.push(b'"');
        }
        out.extend_from_slice(b",\"lsn\":\"");
        json::number(out, place.lsn);
        out.extend_from_slice(b"\",\"op_position\":");
        json::number(out, place.op);
        out.extend_from_slice(b",\"txids\":[");
        json::number(out, place.xid.into());
        out.extend_from_slice(MORE);
    }
}

/// Returns the offset of the last message. `messages` must be whole messages.
pub fn last_offset(messages: &[u8]) -> Option<Offset> {
    offset_of(&messages[last_line(messages)..])
}

/// Finds the last message that ends a transaction. Returns the index after it, and the commit
/// position of the transaction. `messages` must be whole messages.
pub fn last_commit(mut messages: &[u8]) -> Option<(usize, u64)> {
    while !messages.is_empty() {
        let start = last_line(messages);
        if messages.ends_with(LAST) {
            return Some((messages.len(), offset_of(&messages[start..])?.lsn));
        }
        messages = &messages[..start];
    }
    None
}

/// Returns the start of the last message.
fn last_line(messages: &[u8]) -> usize {
    let before = &messages[..messages.len().saturating_sub(1)];
    memchr::memrchr(b'\n', before).map_or(0, |end| end + 1)
}

/// Returns the offset of a message, read from its end.
pub(crate) fn offset_of(message: &[u8]) -> Option<Offset> {
    let end = memchr::memmem::rfind(message, b",\"txids\":[")?;
    let op = memchr::memmem::rfind(&message[..end], b"\",\"op_position\":")?;
    let lsn = memchr::memmem::rfind(&message[..op], b"\"lsn\":\"")?;
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
    let lsn = number(&message[lsn + b"\"lsn\":\"".len()..op])?;
    Some(Offset::new(lsn, number(&message[op + b"\",\"op_position\":".len()..end])?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PLACE: LogPosition = LogPosition { lsn: 26_800_584, op: 4, xid: 751 };

    fn columns(names: &[(&str, Option<usize>)]) -> Vec<ColumnSchema> {
        names.iter().map(|(name, key)| ColumnSchema { name: (*name).into(), key_index: *key }).collect()
    }

    fn orders(is_full: bool) -> RowEncoder {
        let columns = columns(&[("id", Some(0)), ("note", None), ("qty", None)]);
        RowEncoder::new("public", "orders", &columns, &[0, 1, 2], is_full)
    }

    fn row<'a>(values: &[Option<&'a str>]) -> Vec<Option<&'a [u8]>> {
        values.iter().map(|value| value.map(str::as_bytes)).collect()
    }

    fn written(encoder: &RowEncoder, change: ShapeChange<'_>) -> Value {
        let mut out = Vec::new();
        assert!(encoder.change(&mut out, change, PLACE));
        assert_eq!(offset_of(&out), Some(Offset::new(PLACE.lsn, PLACE.op)));
        parsed(&out)
    }

    fn parsed(message: &[u8]) -> Value {
        let message = message.strip_suffix(SEPARATOR).expect("a separator");
        assert!(!message.contains(&b'\n'));
        serde_json::from_slice(message).expect("a message is JSON")
    }

    fn headers(operation: &str) -> Value {
        json!({"operation": operation, "relation": ["public", "orders"], "lsn": "26800584", "op_position": 4, "txids": [751]})
    }

    #[test]
    fn a_snapshot_row_has_only_the_operation_and_relation_headers() {
        let mut out = Vec::new();
        orders(false).snapshot_row(&mut out, &row(&[Some("1"), Some("a \"b\"\n"), None]));
        let expected = json!({
            "key": "\"public\".\"orders\"/\"1\"",
            "value": {"id": "1", "note": "a \"b\"\n", "qty": null},
            "headers": {"operation": "insert", "relation": ["public", "orders"]},
        });
        assert_eq!(parsed(&out), expected);
    }

    #[test]
    fn last_offset_and_last_commit_are_read_from_messages() {
        let (encoder, row) = (orders(false), row(&[Some("1"), Some("],\"last\":true}},"), None]));
        let message = |lsn: u64, op: u64, is_last: bool| {
            let mut out = Vec::new();
            encoder.change(
                &mut out,
                ShapeChange::Insert { row: &row, from: None },
                LogPosition { lsn, op, xid: 7 },
            );
            if is_last {
                out.truncate(out.len() - MORE.len());
                out.extend_from_slice(LAST);
            }
            out
        };
        let whole = [message(5, 0, false), message(5, 2, true), message(9, 0, true)].concat();
        let open = [message(11, 0, false), message(11, 2, false)].concat();
        assert_eq!(last_offset(&whole), Some(Offset::new(9, 0)));
        assert_eq!(last_commit(&whole), Some((whole.len(), 9)));
        assert_eq!((last_offset(&open), last_commit(&open)), (Some(Offset::new(11, 2)), None));
        let both = [whole.clone(), open].concat();
        assert_eq!(last_offset(&both), Some(Offset::new(11, 2)));
        assert_eq!(last_commit(&both), Some((whole.len(), 9)));
        assert_eq!((last_offset(b""), last_commit(b"")), (None, None));
    }

    #[test]
    fn an_update_has_the_key_and_the_changed_columns() {
        let (old, new) = (row(&[Some("1"), Some("a"), Some("2")]), row(&[Some("1"), Some("b"), Some("2")]));
        let message = written(&orders(false), ShapeChange::Update { old: &old, new: &new });
        assert_eq!(message["value"], json!({"id": "1", "note": "b"}));
        assert_eq!(message["headers"], headers("update"));
        assert_eq!(message.get("old_value"), None);
    }

    #[test]
    fn a_full_update_has_the_whole_row_and_the_changed_old_values() {
        let (old, new) = (row(&[Some("1"), Some("a"), Some("2")]), row(&[Some("1"), None, Some("2")]));
        let message = written(&orders(true), ShapeChange::Update { old: &old, new: &new });
        assert_eq!(message["value"], json!({"id": "1", "note": null, "qty": "2"}));
        assert_eq!(message["old_value"], json!({"note": "a"}));
    }

    #[test]
    fn an_update_of_hidden_columns_writes_nothing() {
        let columns = columns(&[("id", Some(0)), ("note", None), ("qty", None)]);
        let encoder = RowEncoder::new("public", "orders", &columns, &[0, 2], false);
        let (old, new) = (row(&[Some("1"), Some("a"), Some("2")]), row(&[Some("1"), Some("b"), Some("2")]));
        let mut out = Vec::new();
        assert!(
            !encoder.change(&mut out, ShapeChange::Update { old: &old, new: &new }, PLACE) && out.is_empty()
        );
    }

    #[test]
    fn a_delete_has_the_key_or_the_whole_row() {
        let gone = row(&[Some("1"), Some("a"), None]);
        let message = written(&orders(false), ShapeChange::Delete { row: &gone, to: None });
        assert_eq!((&message["value"], &message["headers"]), (&json!({"id": "1"}), &headers("delete")));
        let message = written(&orders(true), ShapeChange::Delete { row: &gone, to: None });
        assert_eq!(message["value"], json!({"id": "1", "note": "a", "qty": null}));
    }

    #[test]
    fn both_messages_of_a_key_change_name_the_other_key() {
        let (old, new) = (row(&[Some("1"), Some("a"), None]), row(&[Some("2"), Some("a"), None]));
        let encoder = orders(false);
        assert!(!encoder.has_same_key(&old, &new) && encoder.has_same_key(&old, &old));
        let message = written(&encoder, ShapeChange::Delete { row: &old, to: Some(&new) });
        assert_eq!(message["headers"]["key_change_to"], "\"public\".\"orders\"/\"2\"");
        let message = written(&encoder, ShapeChange::Insert { row: &new, from: Some(&old) });
        assert_eq!(message["headers"]["key_change_from"], "\"public\".\"orders\"/\"1\"");
    }

    #[test]
    fn separators_within_a_key_are_doubled() {
        let columns = columns(&[("a/b", Some(1)), ("c", Some(0)), ("d", None)]);
        let encoder = RowEncoder::new("my.schema", "a/table", &columns, &[0, 1, 2], false);
        let odd = row(&[Some("x/y\"z\""), None, Some("d")]);
        let message = written(&encoder, ShapeChange::Insert { row: &odd, from: None });
        assert_eq!(message["key"], "\"my..schema\".\"a//table\"/_/\"x//y\"z\"\"");
        assert_eq!(message["value"]["a/b"], "x/y\"z\"");
    }

    #[test]
    fn without_a_primary_key_all_columns_are_the_key() {
        let columns = columns(&[("a", None), ("b", None)]);
        let encoder = RowEncoder::new("public", "logs", &columns, &[0, 1], false);
        let gone = row(&[Some("1"), None]);
        let message = written(&encoder, ShapeChange::Delete { row: &gone, to: None });
        assert_eq!(message["key"], "\"public\".\"logs\"/\"1\"/_");
        assert_eq!(message["value"], json!({"a": "1", "b": null}));
    }

    #[test]
    fn the_last_change_of_a_transaction_has_the_last_header() {
        let new = row(&[Some("1"), None, None]);
        let mut out = Vec::new();
        orders(false).change(&mut out, ShapeChange::Insert { row: &new, from: None }, PLACE);
        assert_eq!(parsed(&out)["headers"].get("last"), None);
        out.truncate(out.len() - MORE.len());
        out.extend_from_slice(LAST);
        assert_eq!(parsed(&out)["headers"]["last"], true);
        assert_eq!(offset_of(&out), Some(Offset::new(PLACE.lsn, PLACE.op)));
    }
}
