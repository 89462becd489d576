//! The rows of one shape in a client. Each message is checked against the rules, then applied.
//!
//! The rules for messages:
//! - Rows of the snapshot come first, as inserts without a position. Then comes one `snapshot-end`,
//!   then changes.
//! - The positions of changes (`lsn`, `op_position`) increase.
//! - An insert has a key that the client doesn't have. An update or a delete has a key that it has.
//! - An update has the key and exactly the changed columns. With `replica=full` it has all columns,
//!   and `old_value` has the old values of the changed ones.
//! - A delete has only the key. With `replica=full` it has the whole old row.
//! - `last` is on the last change of a transaction, and only there.
//! - A changed key is a delete with `key_change_to`, directly followed by an insert with
//!   `key_change_from`.
//! - An up-to-date comes between two transactions. Its position is after the last change, and never
//!   decreases.
//!
//! While the server compacts logs, an update may also have unchanged columns, and `last` may be
//! missing.
//!
//! With [`MessageRules::MovingKeys`] and [`MessageRules::Mixed`], messages are applied as the
//! published client does: an insert replaces the row of its key, and a delete may find none.
//!
//! Out of scope: HTTP (`oracle_client.rs`), and whether the rows are right (`history.rs`).

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::history::{OracleRow, OracleSnapshot, RowsDigest};
use super::oracle_request::OracleRequest;
use super::tables::{MessageRules, OracleTable};

/// Number of messages and actions in a failure report.
const MAX_RECENT: usize = 30;

/// The rows of one shape in a client, and its position in the log.
#[derive(Debug)]
pub(crate) struct ClientView {
    table: &'static OracleTable,
    /// The selected columns, in the order of the values in `rows`.
    pub(crate) columns: Vec<String>,
    /// Whether the request has `replica=full`.
    is_full: bool,
    /// Whether the server compacts logs. Merged updates may name columns that didn't change.
    is_compacting: bool,
    /// The rows, by key.
    pub(crate) rows: BTreeMap<String, OracleRow>,
    pub(crate) digest: RowsDigest,
    /// `lsn` and `op_position` of the last change.
    pub(crate) at: (u64, u64),
    /// Whether more changes of the last change's transaction must follow.
    is_in_transaction: bool,
    /// Old and new key of the last delete, if an insert with the new key must follow.
    pending_key_change: Option<(String, String)>,
    /// Whether the snapshot is complete.
    has_snapshot: bool,
    /// Transactions that the snapshot saw.
    pub(crate) snapshot: OracleSnapshot,
    /// Position in the last up-to-date.
    pub(crate) seen: u64,
    /// The states at the up-to-dates.
    pub(crate) observed_states: Vec<ObservedState>,
    pub(crate) counts: MessageCounts,
    /// The last messages and actions, for a failure report.
    recent: VecDeque<String>,
}

/// The rows at an up-to-date.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedState {
    /// Position in the up-to-date.
    pub(crate) seen: u64,
    pub(crate) digest: RowsDigest,
    /// When the last up-to-date with this position and these rows arrived.
    pub(crate) at: Instant,
}

/// Numbers of messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MessageCounts {
    pub(crate) changes: u64,
    /// Changed keys.
    pub(crate) moves: u64,
    pub(crate) up_to_dates: u64,
}

impl ClientView {
    pub(crate) fn new(request: &OracleRequest, is_compacting: bool) -> Self {
        ClientView {
            table: request.table,
            columns: request.columns.iter().map(|name| (*name).to_owned()).collect(),
            is_full: request.is_full,
            is_compacting,
            rows: BTreeMap::new(),
            digest: RowsDigest::default(),
            at: (0, 0),
            is_in_transaction: false,
            pending_key_change: None,
            has_snapshot: false,
            snapshot: OracleSnapshot::default(),
            seen: 0,
            observed_states: Vec::new(),
            counts: MessageCounts::default(),
            recent: VecDeque::new(),
        }
    }

    /// Checks a message and applies it.
    ///
    /// # Errors
    /// Names the rule that the message breaks.
    pub(crate) fn apply(&mut self, message: &Value) -> Result<(), String> {
        self.note(shortened(message));
        let headers = &message["headers"];
        match (headers["control"].as_str(), headers["operation"].as_str()) {
            (Some("up-to-date"), None) => self.up_to_date(headers),
            (Some("snapshot-end"), None) => self.snapshot_end(headers),
            (None, Some(operation)) => self.change(operation, message),
            _ => Err("neither a change nor a known control message".to_owned()),
        }
    }

    /// Stores a line for a failure report.
    pub(crate) fn note(&mut self, line: String) {
        if self.recent.len() == MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    /// Returns the last messages and actions, for a failure report.
    pub(crate) fn recent(&self) -> String {
        Vec::from_iter(self.recent.iter().map(String::as_str)).join("\n  ")
    }

    fn up_to_date(&mut self, headers: &Value) -> Result<(), String> {
        let seen = number(&headers["global_last_seen_lsn"])?;
        check(self.has_snapshot, "up-to-date before snapshot-end")?;
        check(!self.is_in_transaction, "up-to-date inside a transaction")?;
        check(seen > self.at.0, "up-to-date isn't after the last change")?;
        check(seen >= self.seen, "the position of up-to-date decreases")?;
        self.seen = seen;
        self.counts.up_to_dates += 1;
        let now = ObservedState { seen, digest: self.digest, at: Instant::now() };
        match self.observed_states.last_mut() {
            Some(last) if (last.seen, last.digest) == (seen, self.digest) => *last = now,
            _ => self.observed_states.push(now),
        }
        Ok(())
    }

    fn snapshot_end(&mut self, headers: &Value) -> Result<(), String> {
        check(!self.has_snapshot, "a second snapshot-end")?;
        number(&headers["xmin"])?;
        let running = headers["xip_list"].as_array().ok_or("snapshot-end without xip_list")?;
        let running = running.iter().map(number).collect::<Result<_, _>>()?;
        self.snapshot = OracleSnapshot { xmax: number(&headers["xmax"])?, running, crash: None };
        self.has_snapshot = true;
        Ok(())
    }

    fn change(&mut self, operation: &str, message: &Value) -> Result<(), String> {
        let headers = &message["headers"];
        check(
            headers["relation"] == serde_json::json!(["public", self.table.name]),
            "the relation of another table",
        )?;
        let value = message["value"].as_object().ok_or("no value")?;
        let of_key = |name: &&str| value.get(*name).is_some_and(|value| text(value).is_ok());
        check(self.table.key.iter().all(of_key), "a key column is missing")?;
        let key = key_of(self.table.name, self.table.key, |name| value[name].as_str());
        check(message["key"] == *key, "the key doesn't match the row")?;
        match headers.get("lsn") {
            Some(_) => self.check_position(headers, &key, operation)?,
            None => {
                check(!self.has_snapshot, "a row of the snapshot after snapshot-end")?;
                check(operation == "insert", "a row of the snapshot that isn't an insert")?;
            }
        }
        match operation {
            "insert" => self.insert(key, value),
            "update" => self.update(key, value, &message["old_value"]),
            "delete" => self.delete(&key, value),
            _ => Err("an unknown operation".to_owned()),
        }
    }

    /// Returns whether messages may contradict the rows before them.
    fn is_lenient(&self) -> bool {
        matches!(self.table.rules, MessageRules::MovingKeys | MessageRules::Mixed)
    }

    /// Checks the position of a change in the log, and stores it.
    fn check_position(&mut self, headers: &Value, key: &str, operation: &str) -> Result<(), String> {
        check(self.has_snapshot, "a change before snapshot-end")?;
        self.counts.changes += 1;
        let op = headers["op_position"].as_u64().ok_or("no op_position")?;
        let at = (number(&headers["lsn"])?, op);
        check(at > self.at, "the offset doesn't rise")?;
        check(at.0 >= self.seen, "the change belongs before up-to-date")?;
        // Compaction may merge the rest of a transaction into later ones. Then a client in the
        // middle of it gets no `last`.
        let is_cut = self.is_compacting && self.is_in_transaction;
        check(
            self.is_in_transaction == (at.0 == self.at.0) || is_cut,
            "`last` is not exactly on the last change of a transaction",
        )?;
        check(
            headers["txids"].as_array().is_some_and(|ids| ids.len() == 1),
            "txids doesn't have exactly one transaction",
        )?;
        let is_last = match headers.get("last") {
            None => false,
            Some(last) => last.as_bool().ok_or("`last` isn't a boolean")?,
        };
        if !self.is_lenient() {
            self.check_key_change(headers, key, operation, at, is_last)?;
        }
        (self.at, self.is_in_transaction) = (at, !is_last);
        Ok(())
    }

    /// Checks that the delete and the insert of a changed key follow each other.
    fn check_key_change(
        &mut self,
        headers: &Value,
        key: &str,
        operation: &str,
        at: (u64, u64),
        is_last: bool,
    ) -> Result<(), String> {
        let named = |name: &str| headers[name].as_str().map(str::to_owned);
        match (self.pending_key_change.take(), named("key_change_from")) {
            (None, None) => {
                check(at.1.is_multiple_of(2), "an odd op_position that isn't the insert of a changed key")?
            }
            (Some((from, to)), Some(named)) => {
                check(
                    operation == "insert" && at == (self.at.0, self.at.1 + 1),
                    "no insert at the next op_position",
                )?;
                check(named == from && key == to, "the insert is of another changed key")?;
                self.counts.moves += 1;
            }
            _ => return Err("only one half of a changed key".to_owned()),
        }
        if let Some(to) = named("key_change_to") {
            check(
                operation == "delete" && !is_last,
                "key_change_to on a message that isn't a delete before an insert",
            )?;
            self.pending_key_change = Some((key.to_owned(), to));
        }
        Ok(())
    }

    fn insert(&mut self, key: String, value: &Map<String, Value>) -> Result<(), String> {
        let row = self.whole_row(value)?;
        self.digest.add(&row);
        match self.rows.insert(key, row) {
            None => Ok(()),
            Some(before) if self.is_lenient() => {
                self.digest.remove(&before);
                Ok(())
            }
            Some(_) => Err("an insert of a present key".to_owned()),
        }
    }

    fn update(&mut self, key: String, value: &Map<String, Value>, old: &Value) -> Result<(), String> {
        let before = self.rows.get(&key).ok_or("an update of an absent key")?.clone();
        let mut row = before.clone();
        for (name, new) in value {
            row[self.index(name)?] = text(new)?;
        }
        let changed = row.iter().zip(&before).filter(|(new, old)| new != old).count();
        let is_exact = !self.is_compacting && !self.is_lenient();
        check(!is_exact || changed > 0, "an update without a change")?;
        if !is_exact {
            // Nothing to check: the old values may be older than the client's row.
        } else if self.is_full {
            self.whole_row(value)?;
            let old = old.as_object().ok_or("no old_value")?;
            check(old.len() == changed, "old_value doesn't have exactly the changed columns")?;
            for (name, old) in old {
                let index = self.index(name)?;
                check(
                    before[index] == text(old)? && before[index] != row[index],
                    "old_value has a wrong value",
                )?;
            }
        } else {
            let named = value.keys().filter(|name| !self.table.key.contains(&name.as_str())).count();
            check(named == changed, "an update names a column that didn't change")?;
        }
        self.digest.remove(&before);
        self.digest.add(&row);
        self.rows.insert(key, row);
        Ok(())
    }

    fn delete(&mut self, key: &str, value: &Map<String, Value>) -> Result<(), String> {
        let Some(row) = self.rows.remove(key) else {
            return check(self.is_lenient(), "a delete of an absent key");
        };
        self.digest.remove(&row);
        match self.is_full {
            true => check(self.whole_row(value)? == row || self.is_lenient(), "a delete with wrong values"),
            false => check(value.len() == self.table.key.len(), "a delete with more than the key"),
        }
    }

    /// Returns a row. Fails if it doesn't have exactly the selected columns.
    fn whole_row(&self, value: &Map<String, Value>) -> Result<OracleRow, String> {
        check(value.len() == self.columns.len(), "not exactly the requested columns")?;
        self.columns.iter().map(|name| text(value.get(name).ok_or(format!("no {name}"))?)).collect()
    }

    /// Returns the index of a column.
    fn index(&self, name: &str) -> Result<usize, String> {
        self.columns.iter().position(|own| own == name).ok_or(format!("column {name} wasn't requested"))
    }
}

/// Returns the key of a row as the protocol spells it.
pub(crate) fn key_of<'v>(table: &str, key: &[&str], value: impl Fn(&str) -> Option<&'v str>) -> String {
    let part = |name: &&str| match value(name) {
        Some(text) => format!("/\"{}\"", text.replace('/', "//")),
        None => "/_".to_owned(),
    };
    format!("\"public\".\"{table}\"{}", key.iter().map(part).collect::<String>())
}

/// Returns `violation` as an error unless the rule holds.
fn check(holds: bool, violation: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(violation.to_owned()) }
}

/// Reads a value of a column: a string or null.
fn text(value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(format!("neither a string nor null: {other}")),
    }
}

/// Reads a number that is a JSON string.
fn number(value: &Value) -> Result<u64, String> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or(format!("not a number in a string: {value}"))
}

fn shortened(message: &Value) -> String {
    let text = message.to_string();
    match text.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use forebay_testkit::TestRng;
    use serde_json::json;

    use super::super::tables::ITEMS;
    use super::*;

    fn view(messages: &[Value]) -> Result<ClientView, String> {
        let mut request = OracleRequest::random(&mut TestRng::new(1), 18, None);
        (request.table, request.columns, request.is_full) = (&ITEMS, vec!["id", "grp"], false);
        let mut view = ClientView::new(&request, false);
        view.apply(
            &json!({"headers": {"control": "snapshot-end", "xmin": "1", "xmax": "1", "xip_list": []}}),
        )?;
        messages.iter().try_for_each(|message| view.apply(message))?;
        Ok(view)
    }

    fn change(operation: &str, id: &str, lsn: u64, op: u64, is_last: bool) -> Value {
        let value = match operation {
            "delete" => json!({"id": id}),
            _ => json!({"id": id, "grp": format!("{lsn}/{op}")}),
        };
        let mut headers = json!({"operation": operation, "relation": ["public", "items"], "lsn": lsn.to_string(),
            "op_position": op, "txids": [7]});
        if is_last {
            headers["last"] = json!(true);
        }
        json!({"key": format!("\"public\".\"items\"/\"{id}\""), "value": value, "headers": headers})
    }

    fn up_to_date(seen: u64) -> Value {
        json!({"headers": {"control": "up-to-date", "global_last_seen_lsn": seen.to_string()}})
    }

    #[test]
    fn a_log_that_keeps_the_rules_is_applied() {
        let log = [
            change("insert", "1", 10, 0, false),
            change("update", "1", 10, 2, true),
            up_to_date(11),
            change("delete", "1", 20, 4, true),
            up_to_date(21),
        ];
        let view = view(&log).unwrap();
        assert_eq!((view.rows.len(), view.observed_states.len(), view.seen), (0, 2, 21));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let insert = || change("insert", "1", 10, 0, true);
        for (log, words) in [
            (vec![insert(), change("insert", "1", 11, 0, true)], "present key"),
            (vec![change("update", "1", 10, 0, true)], "absent key"),
            (vec![change("delete", "1", 10, 0, true)], "absent key"),
            (vec![insert(), insert()], "doesn't rise"),
            (vec![change("insert", "1", 10, 0, false), up_to_date(11)], "inside a transaction"),
            (vec![change("insert", "1", 10, 0, false), change("insert", "2", 11, 0, true)], "`last`"),
            (vec![insert(), change("insert", "2", 10, 2, true)], "`last`"),
            (vec![insert(), up_to_date(10)], "after the last change"),
            (vec![insert(), up_to_date(20), change("insert", "2", 19, 0, true)], "before up-to-date"),
            (vec![change("insert", "1", 10, 1, true)], "odd op_position"),
        ] {
            let error = view(&log).unwrap_err();
            assert!(error.contains(words), "{words:?} isn't in {error:?}");
        }
    }

    #[test]
    fn a_changed_key_is_a_delete_and_an_insert() {
        let pair = || {
            let mut delete = change("delete", "1", 20, 0, false);
            delete["headers"]["key_change_to"] = json!("\"public\".\"items\"/\"2\"");
            let mut insert = change("insert", "2", 20, 1, true);
            insert["headers"]["key_change_from"] = json!("\"public\".\"items\"/\"1\"");
            (delete, insert)
        };
        let first = change("insert", "1", 10, 0, true);
        let (delete, insert) = pair();
        assert_eq!(view(&[first.clone(), delete.clone(), insert]).unwrap().counts.moves, 1);
        let other = change("insert", "3", 20, 2, true);
        assert!(view(&[first, delete, other]).unwrap_err().contains("half"));
    }
}
