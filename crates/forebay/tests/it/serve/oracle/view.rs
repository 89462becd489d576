//! A shape as a strict client sees it: every message is checked against the rules, then applied.
//!
//! The rules: offsets rise; a present key isn't inserted, an absent one isn't changed; an update changes what it names; a
//! transaction ends with `last`, once; the two messages of a changed key follow each other; up-to-date comes between transactions.
//! Of tables whose rows pass through the keys of others ([`Rules::Loose`]) messages are applied as
//! the published client does: an insert
//! replaces what its key had, and a delete may find nothing.
//! Not here: HTTP (`client.rs`), and whether the rows are the right ones (`history.rs`).

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::clauses::Wanted;
use super::history::{Digest, Row, Sight};
use super::tables::{Rules, Table};

/// How many messages are shown when one is wrong.
const SHOWN: usize = 30;

#[derive(Debug)]
pub(crate) struct View {
    table: &'static Table,
    /// In the order of the rows' values.
    pub(crate) columns: Vec<String>,
    is_full: bool,
    /// Whether updates may be merged: then they may name what is as it was.
    is_merged: bool,
    pub(crate) rows: BTreeMap<String, Row>,
    pub(crate) digest: Digest,
    /// Of the last message of the log.
    pub(crate) at: (u64, u64),
    /// Whether the transaction of the last message goes on.
    is_open: bool,
    /// The keys of a delete whose insert must follow.
    moving: Option<(String, String)>,
    is_whole: bool,
    /// What its snapshot saw.
    pub(crate) sight: Sight,
    /// What the last up-to-date said.
    pub(crate) seen: u64,
    /// The rows at each up-to-date.
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) counts: Counts,
    recent: VecDeque<String>,
}

/// The rows at an up-to-date.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checkpoint {
    pub(crate) seen: u64,
    pub(crate) digest: Digest,
    /// When it was so for the last time.
    pub(crate) at: Instant,
}

/// What came.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) changes: u64,
    pub(crate) moves: u64,
    pub(crate) up_to_dates: u64,
}

impl View {
    pub(crate) fn new(wanted: &Wanted, is_merged: bool) -> Self {
        View {
            table: wanted.table,
            columns: wanted.columns.iter().map(|name| (*name).to_owned()).collect(),
            is_full: wanted.is_full,
            is_merged,
            rows: BTreeMap::new(),
            digest: Digest::default(),
            at: (0, 0),
            is_open: false,
            moving: None,
            is_whole: false,
            sight: Sight::default(),
            seen: 0,
            checkpoints: Vec::new(),
            counts: Counts::default(),
            recent: VecDeque::new(),
        }
    }

    /// Checks a message and applies it.
    pub(crate) fn apply(&mut self, message: &Value) -> Result<(), String> {
        self.note(shortened(message));
        let headers = &message["headers"];
        match (headers["control"].as_str(), headers["operation"].as_str()) {
            (Some("up-to-date"), None) => self.up_to_date(headers),
            (Some("snapshot-end"), None) => self.snapshot_end(headers),
            (None, Some(operation)) => self.change(operation, message),
            _ => Err("it is neither a change nor known control".to_owned()),
        }
    }

    /// For whoever looks for what went wrong.
    pub(crate) fn note(&mut self, line: String) {
        if self.recent.len() == SHOWN {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    /// What came last, for whoever looks for what went wrong.
    pub(crate) fn recent(&self) -> String {
        Vec::from_iter(self.recent.iter().map(String::as_str)).join("\n  ")
    }

    fn up_to_date(&mut self, headers: &Value) -> Result<(), String> {
        let seen = number(&headers["global_last_seen_lsn"])?;
        check(self.is_whole, "up-to-date before the snapshot's end")?;
        check(!self.is_open, "up-to-date inside a transaction")?;
        check(seen > self.at.0, "up-to-date doesn't lie after what was sent")?;
        check(seen >= self.seen, "up-to-date goes back")?;
        self.seen = seen;
        self.counts.up_to_dates += 1;
        let now = Checkpoint { seen, digest: self.digest, at: Instant::now() };
        match self.checkpoints.last_mut() {
            Some(last) if (last.seen, last.digest) == (seen, self.digest) => *last = now,
            _ => self.checkpoints.push(now),
        }
        Ok(())
    }

    fn snapshot_end(&mut self, headers: &Value) -> Result<(), String> {
        check(!self.is_whole, "the snapshot ends twice")?;
        number(&headers["xmin"])?;
        let running = headers["xip_list"].as_array().ok_or("the snapshot's end has no xip_list")?;
        let running = running.iter().map(number).collect::<Result<_, _>>()?;
        self.sight = Sight { xmax: number(&headers["xmax"])?, running, crash: None };
        self.is_whole = true;
        Ok(())
    }

    fn change(&mut self, operation: &str, message: &Value) -> Result<(), String> {
        let headers = &message["headers"];
        check(headers["relation"] == serde_json::json!(["public", self.table.name]), "another relation")?;
        let value = message["value"].as_object().ok_or("no value")?;
        let of_key = |name: &&str| value.get(*name).is_some_and(|value| text(value).is_ok());
        check(self.table.key.iter().all(of_key), "the key isn't whole")?;
        let key = key_of(self.table.name, self.table.key, |name| value[name].as_str());
        check(message["key"] == *key, "the key isn't that of the row")?;
        match headers.get("lsn") {
            Some(_) => self.place(headers, &key, operation)?,
            None => {
                check(!self.is_whole, "a row of the snapshot after its end")?;
                check(operation == "insert", "a row of the snapshot that isn't inserted")?;
            }
        }
        match operation {
            "insert" => self.insert(key, value),
            "update" => self.update(key, value, &message["old_value"]),
            "delete" => self.delete(&key, value),
            _ => Err("an unknown operation".to_owned()),
        }
    }

    fn is_loose(&self) -> bool {
        matches!(self.table.rules, Rules::Loose | Rules::Mixed)
    }

    /// Where in the log a change is.
    fn place(&mut self, headers: &Value, key: &str, operation: &str) -> Result<(), String> {
        check(self.is_whole, "a change before the snapshot's end")?;
        self.counts.changes += 1;
        let op = headers["op_position"].as_u64().ok_or("no op_position")?;
        let at = (number(&headers["lsn"])?, op);
        check(at > self.at, "the offset doesn't rise")?;
        check(at.0 >= self.seen, "it should have come before up-to-date")?;
        // Who was inside of a transaction when the rest of it was merged into later ones isn't told that it ended.
        let is_cut = self.is_merged && self.is_open;
        check(
            self.is_open == (at.0 == self.at.0) || is_cut,
            "`last` isn't on a transaction's last change, and only there",
        )?;
        check(headers["txids"].as_array().is_some_and(|ids| ids.len() == 1), "not one transaction")?;
        let is_last = match headers.get("last") {
            None => false,
            Some(last) => last.as_bool().ok_or("`last` isn't a boolean")?,
        };
        if !self.is_loose() {
            self.follow_key(headers, key, operation, at, is_last)?;
        }
        (self.at, self.is_open) = (at, !is_last);
        Ok(())
    }

    /// The two halves of a changed key follow each other.
    fn follow_key(
        &mut self,
        headers: &Value,
        key: &str,
        operation: &str,
        at: (u64, u64),
        is_last: bool,
    ) -> Result<(), String> {
        let named = |name: &str| headers[name].as_str().map(str::to_owned);
        match (self.moving.take(), named("key_change_from")) {
            (None, None) => {
                check(at.1.is_multiple_of(2), "an odd op that isn't the insert of a changed key")?
            }
            (Some((from, to)), Some(told)) => {
                check(operation == "insert" && at == (self.at.0, self.at.1 + 1), "no insert at the next op")?;
                check(told == from && key == to, "the insert is of another changed key")?;
                self.counts.moves += 1;
            }
            _ => return Err("half a changed key".to_owned()),
        }
        if let Some(to) = named("key_change_to") {
            check(operation == "delete" && !is_last, "a changed key must be deleted, then inserted")?;
            self.moving = Some((key.to_owned(), to));
        }
        Ok(())
    }

    fn insert(&mut self, key: String, value: &Map<String, Value>) -> Result<(), String> {
        let row = self.whole(value)?;
        self.digest.add(&row);
        match self.rows.insert(key, row) {
            None => Ok(()),
            Some(before) if self.is_loose() => {
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
        let is_exact = !self.is_merged && !self.is_loose();
        check(!is_exact || changed > 0, "an update of nothing")?;
        if !is_exact {
            // Its old values may be older than what was here.
        } else if self.is_full {
            self.whole(value)?;
            let old = old.as_object().ok_or("no old_value")?;
            check(old.len() == changed, "old_value isn't of what changed")?;
            for (name, old) in old {
                let index = self.index(name)?;
                check(
                    before[index] == text(old)? && before[index] != row[index],
                    "old_value isn't as it was",
                )?;
            }
        } else {
            let named = value.keys().filter(|name| !self.table.key.contains(&name.as_str())).count();
            check(named == changed, "an update names what didn't change")?;
        }
        self.digest.remove(&before);
        self.digest.add(&row);
        self.rows.insert(key, row);
        Ok(())
    }

    fn delete(&mut self, key: &str, value: &Map<String, Value>) -> Result<(), String> {
        let Some(row) = self.rows.remove(key) else {
            return check(self.is_loose(), "a delete of an absent key");
        };
        self.digest.remove(&row);
        match self.is_full {
            true => {
                check(self.whole(value)? == row || self.is_loose(), "a delete of another row than was there")
            }
            false => check(value.len() == self.table.key.len(), "a delete says more than the key"),
        }
    }

    /// A row with all columns.
    fn whole(&self, value: &Map<String, Value>) -> Result<Row, String> {
        check(value.len() == self.columns.len(), "not the columns that were asked for")?;
        self.columns.iter().map(|name| text(value.get(name).ok_or(format!("no {name}"))?)).collect()
    }

    fn index(&self, name: &str) -> Result<usize, String> {
        self.columns.iter().position(|own| own == name).ok_or(format!("{name} wasn't asked for"))
    }
}

/// As the protocol spells the key of a row.
pub(crate) fn key_of<'v>(table: &str, key: &[&str], value: impl Fn(&str) -> Option<&'v str>) -> String {
    let part = |name: &&str| match value(name) {
        Some(text) => format!("/\"{}\"", text.replace('/', "//")),
        None => "/_".to_owned(),
    };
    format!("\"public\".\"{table}\"{}", key.iter().map(part).collect::<String>())
}

/// What breaks a rule.
fn check(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn text(value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(format!("neither text nor null: {other}")),
    }
}

fn number(value: &Value) -> Result<u64, String> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or(format!("not a number as text: {value}"))
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
    use forebay_testkit::Dice;
    use serde_json::json;

    use super::super::tables::ITEMS;
    use super::*;

    fn view(messages: &[Value]) -> Result<View, String> {
        let mut wanted = Wanted::random(&mut Dice::new(1), 18, None);
        (wanted.table, wanted.columns, wanted.is_full) = (&ITEMS, vec!["id", "grp"], false);
        let mut view = View::new(&wanted, false);
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
    fn a_lawful_log_is_taken() {
        let log = [
            change("insert", "1", 10, 0, false),
            change("update", "1", 10, 2, true),
            up_to_date(11),
            change("delete", "1", 20, 4, true),
            up_to_date(21),
        ];
        let view = view(&log).unwrap();
        assert_eq!((view.rows.len(), view.checkpoints.len(), view.seen), (0, 2, 21));
    }

    #[test]
    fn each_rule_that_is_broken_is_named() {
        let insert = || change("insert", "1", 10, 0, true);
        for (log, word) in [
            (vec![insert(), change("insert", "1", 11, 0, true)], "present key"),
            (vec![change("update", "1", 10, 0, true)], "absent key"),
            (vec![change("delete", "1", 10, 0, true)], "absent key"),
            (vec![insert(), insert()], "doesn't rise"),
            (vec![change("insert", "1", 10, 0, false), up_to_date(11)], "inside a transaction"),
            (vec![change("insert", "1", 10, 0, false), change("insert", "2", 11, 0, true)], "`last`"),
            (vec![insert(), change("insert", "2", 10, 2, true)], "`last`"),
            (vec![insert(), up_to_date(10)], "after what was sent"),
            (vec![insert(), up_to_date(20), change("insert", "2", 19, 0, true)], "before up-to-date"),
            (vec![change("insert", "1", 10, 1, true)], "odd op"),
        ] {
            let error = view(&log).unwrap_err();
            assert!(error.contains(word), "{word:?} isn't in {error:?}");
        }
    }

    #[test]
    fn a_changed_key_has_both_its_halves() {
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
        let stranger = change("insert", "3", 20, 2, true);
        assert!(view(&[first, delete, stranger]).unwrap_err().contains("half"));
    }
}
