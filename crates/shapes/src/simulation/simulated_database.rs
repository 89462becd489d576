//! Simulated database: rows, and the transactions that changed them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_pgoutput::Snapshot;

use super::message_bytes::{MessageBytes, SimulatedRow};
use crate::definition::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema};
use crate::encode::{LAST, LogPosition, MORE, ShapeChange};
use crate::filter::{Collation, Column, Schema};
use crate::store::disk::SimulatedRng;

/// Maximum size of a message, in bytes. A larger one deletes the shape.
pub(crate) const MESSAGE_BYTES: usize = 4000;

/// Database with two tables: one with a primary key, one without.
pub(crate) struct SimulatedDatabase {
    pub(crate) tables: Vec<Arc<TableSchema>>,
    /// All transactions, in commit order.
    pub(crate) log: Vec<SimulatedTransaction>,
    /// Rows by an id that never changes, for each table.
    rows: Vec<BTreeMap<u64, SimulatedRow>>,
    next_row: u64,
    pub(crate) lsn: u64,
}

/// Committed transaction.
pub(crate) struct SimulatedTransaction {
    pub(crate) lsn: u64,
    pub(crate) end: u64,
    pub(crate) xid: u32,
    pub(crate) changes: Vec<(usize, SimulatedChange)>,
}

/// Change of a row, by its id.
#[derive(Clone)]
pub(crate) enum SimulatedChange {
    Insert(u64, SimulatedRow),
    Update(u64, SimulatedRow, SimulatedRow),
    Delete(u64, SimulatedRow),
    Truncate,
}

/// Where clause in SQL, and the same in Rust. `None`: it fails on the row.
pub(crate) type SimulatedClause = (Option<&'static str>, fn(&SimulatedRow) -> Option<bool>);

pub(crate) const CLAUSES: [SimulatedClause; 6] = [
    (None, |_| Some(true)),
    (Some("qty > 5"), |row| Some(quantity(row).is_some_and(|quantity| quantity > 5))),
    (Some("qty = 3 OR qty = 4"), |row| {
        Some(quantity(row).is_some_and(|quantity| quantity == 3 || quantity == 4))
    }),
    (Some("note LIKE 'a%'"), |row| Some(row[2].as_ref().is_some_and(|note| note.starts_with('a')))),
    (Some("10 / qty >= 2"), |row| match quantity(row) {
        Some(0) => None,
        quantity => Some(quantity.is_some_and(|quantity| 10 / quantity >= 2)),
    }),
    (Some("upper(note) LIKE 'A%'"), |row| Some(row[2].as_deref().is_some_and(upper_starts_with_a))),
];

/// Returns what Postgres answers for the last clause, which only it can evaluate on notes with an
/// `ß`.
pub(crate) fn upper_starts_with_a(note: &str) -> bool {
    note.starts_with('a')
}

fn quantity(row: &SimulatedRow) -> Option<i64> {
    row[1].as_ref().map(|text| text.parse().expect("qty is a number"))
}

/// Returns a table with the columns id, qty and note.
pub(crate) fn table(oid: u32, name: &str, key: Vec<usize>) -> TableSchema {
    let columns =
        vec![Column::new("id", 23, "int4"), Column::new("qty", 23, "int4"), Column::new("note", 25, "text")];
    TableSchema {
        oid,
        membership: 1,
        schema: "public".into(),
        name: name.into(),
        types: Schema {
            table: Some(name.into()),
            columns,
            database_collation: Collation::C,
            server_version: 15,
        },
        stream_types: vec![(23, -1), (23, -1), (25, -1)],
        notes: Vec::new(),
        numbers: Vec::new(),
        lineage: String::new(),
        key,
        key_is_deferrable: false,
        state: None,
    }
}

/// Returns a table in which the other case of some letters of `note` depends on Postgres.
pub(crate) fn collated_table(oid: u32, name: &str, key: Vec<usize>) -> TableSchema {
    let mut table = table(oid, name, key);
    table.types.columns[2].column_type.collation = Some(Collation::Libc("en_US.UTF-8".to_owned()));
    table
}

/// Returns a random definition, and the indexes of its table and clause.
pub(crate) fn definition(
    tables: &[Arc<TableSchema>],
    rng: &mut SimulatedRng,
) -> (usize, usize, ShapeDefinition) {
    let (table, clause) = (rng.between(0, tables.len() - 1), rng.between(0, CLAUSES.len() - 1));
    // The table without a key needs all columns.
    let columns = (table == 0 && rng.coin()).then(|| vec!["id".to_owned(), "qty".to_owned()]);
    let replica = if rng.coin() { ReplicaMode::Default } else { ReplicaMode::Full };
    let options =
        ShapeOptions { clause: CLAUSES[clause].0.map(str::to_owned), columns, replica, log: LogMode::Full };
    (table, clause, ShapeDefinition { table: Arc::clone(&tables[table]), options })
}

impl SimulatedDatabase {
    pub(crate) fn new(lsn: u64) -> Self {
        let tables = [collated_table(100, "items", vec![0]), collated_table(200, "events", vec![])];
        let tables: Vec<_> = tables.into_iter().map(Arc::new).collect();
        let rows = vec![BTreeMap::new(); tables.len()];
        SimulatedDatabase { tables, log: Vec::new(), rows, next_row: 0, lsn }
    }

    /// Commits a random transaction.
    pub(crate) fn commit(&mut self, rng: &mut SimulatedRng) {
        let count = match rng.between(0, 9) {
            0 => 0,
            1 => rng.between(10, 40),
            _ => rng.between(1, 5),
        };
        let mut changes = Vec::new();
        for _ in 0..count {
            let table = rng.between(0, self.tables.len() - 1);
            changes.extend(self.change(table, rng).map(|change| (table, change)));
        }
        // Often, a transaction begins where the one before ended.
        let lsn = self.lsn + if rng.coin() { 0 } else { rng.between(1, 50) as u64 };
        let xid = 700 + (self.log.len() as u32 ^ 1);
        self.lsn = lsn + 8;
        self.log.push(SimulatedTransaction { lsn, end: self.lsn, xid, changes });
    }

    fn change(&mut self, table: usize, rng: &mut SimulatedRng) -> Option<SimulatedChange> {
        let rows = &mut self.rows[table];
        let any = rows.keys().copied().nth(rng.between(0, rows.len().max(1) - 1));
        match (rng.between(0, 299), any) {
            (0, _) => {
                rows.clear();
                Some(SimulatedChange::Truncate)
            }
            (1..140, _) | (_, None) => {
                self.next_row += 1;
                // In the table without a key, rows may be equal.
                let twin = any.filter(|_| self.tables[table].key.is_empty() && rng.between(0, 9) == 0);
                let row = twin.map_or_else(|| row(self.next_row, rng), |id| rows[&id].clone());
                self.rows[table].insert(self.next_row, row.clone());
                Some(SimulatedChange::Insert(self.next_row, row))
            }
            (140..250, Some(id)) => {
                let old = rows.get(&id)?.clone();
                let mut new = row(id, rng);
                // Often the key stays, and sometimes all values do.
                let kept = if rng.between(0, 9) == 0 { 3 } else { usize::from(rng.between(0, 4) > 0) };
                new[..kept].clone_from_slice(&old[..kept]);
                rows.insert(id, new.clone());
                Some(SimulatedChange::Update(id, old, new))
            }
            (_, Some(id)) => rows.remove(&id).map(|old| SimulatedChange::Delete(id, old)),
        }
    }

    /// Returns the rows of a table after the first `count` transactions.
    pub(crate) fn rows_after(&self, count: usize, table: usize) -> Vec<SimulatedRow> {
        let mut rows = BTreeMap::new();
        let changes = self.log[..count].iter().flat_map(|transaction| &transaction.changes);
        for (_, change) in changes.filter(|(other, _)| *other == table) {
            match change.clone() {
                SimulatedChange::Insert(id, new) | SimulatedChange::Update(id, _, new) => {
                    drop(rows.insert(id, new))
                }
                SimulatedChange::Delete(id, _) => drop(rows.remove(&id)),
                SimulatedChange::Truncate => rows.clear(),
            }
        }
        rows.into_values().collect()
    }

    /// Returns a snapshot that sees the first `count` transactions, and the current LSN.
    pub(crate) fn snapshot(&self, count: usize, rng: &mut SimulatedRng) -> (Snapshot, u64) {
        // The next transaction to commit may have begun before others that have committed.
        let running = (self.log.len()..self.log.len() + 1).map(|index| 700 + (index as u64 ^ 1));
        let unseen = self.log[count..].iter().map(|transaction| u64::from(transaction.xid));
        let unseen: Vec<_> = unseen.chain(running).collect();
        let next = 700 + self.log.len() as u64 + 2;
        let xmin = unseen.iter().copied().min().unwrap_or(next);
        let seen =
            self.log[..count].iter().map(|transaction| u64::from(transaction.xid)).max().unwrap_or(699);
        // The unseen transactions were running, or hadn't begun.
        let xmax = if xmin > seen && rng.coin() { xmin } else { next };
        let xip = unseen.into_iter().filter(|xid| *xid < xmax).collect();
        (Snapshot { xmin: xmin.min(xmax), xmax, xip }, self.lsn)
    }

    /// Returns the messages of a transaction. A change has the index of its table, which must be
    /// described before it.
    pub(crate) fn messages(&self, index: usize) -> Vec<(Option<usize>, MessageBytes)> {
        let SimulatedTransaction { lsn, end, xid, changes } = &self.log[index];
        let mut messages = vec![(None, MessageBytes::begin(*lsn, *xid))];
        messages.extend(changes.iter().map(|(table, change)| {
            let oid = self.tables[*table].oid;
            let message = match change {
                SimulatedChange::Insert(_, new) => MessageBytes::insert(oid, new),
                SimulatedChange::Update(_, old, new) => MessageBytes::update(oid, old, new),
                SimulatedChange::Delete(_, old) => MessageBytes::delete(oid, old),
                SimulatedChange::Truncate => MessageBytes::truncate(&[oid]),
            };
            (Some(*table), message)
        }));
        messages.push((None, MessageBytes::commit(*lsn, *end)));
        messages
    }

    /// Returns the rows of a table before a transaction. Empty unless the table has no key and the
    /// transaction updates or deletes rows.
    fn equal_rows(&self, index: usize, table: usize) -> EqualRows {
        let is_needed = self.log[index].changes.iter().any(|(other, change)| {
            *other == table && matches!(change, SimulatedChange::Update(..) | SimulatedChange::Delete(..))
        });
        let is_needed = is_needed && self.tables[table].key.is_empty();
        EqualRows(is_needed.then(|| self.rows_after(index, table)))
    }

    /// Returns the messages that a shape's log gets from a transaction; `None`: the shape is
    /// deleted.
    pub(crate) fn expected_messages(
        &self,
        index: usize,
        table: usize,
        clause: usize,
        definition: &ShapeDefinition,
    ) -> Option<Vec<u8>> {
        let (mut out, mut op, encoder) = (Vec::new(), 0, definition.encoder());
        let transaction = &self.log[index];
        let mut equal_rows = self.equal_rows(index, table);
        for (other, change) in &transaction.changes {
            let (old, new) = match change {
                SimulatedChange::Insert(_, new) => (None, Some(new)),
                SimulatedChange::Update(_, old, new) => (Some(old), Some(new)),
                SimulatedChange::Delete(_, old) => (Some(old), None),
                SimulatedChange::Truncate if *other == table => return None,
                SimulatedChange::Truncate => continue,
            };
            op += 2;
            if *other != table {
                continue;
            }
            // A row on which the clause fails is not in the shape.
            let within =
                |row: Option<&SimulatedRow>| row.is_some_and(|row| CLAUSES[clause].1(row) == Some(true));
            let place = |op: u64| LogPosition { lsn: transaction.lsn, op, xid: transaction.xid };
            let (here, next) = (place(op - 2), place(op - 1));
            let (old, new) = (old.map(values), new.map(values));
            let (was, is) = (within(change.before()), within(change.after()));
            if equal_rows.next(change) && was && !(is && change.before() == change.after()) {
                return None;
            }
            let size = |row: &Option<Vec<Option<&[u8]>>>| -> usize {
                row.iter().flatten().flatten().map(|value| value.len()).sum()
            };
            if (was || is) && size(&old) + size(&new) > MESSAGE_BYTES {
                return None;
            }
            let before = out.len();
            match (was.then_some(old).flatten(), is.then_some(new).flatten()) {
                (None, None) => {}
                (None, Some(row)) => {
                    encoder.change(&mut out, ShapeChange::Insert { row: &row, from: None }, here);
                }
                (Some(row), None) => {
                    encoder.change(&mut out, ShapeChange::Delete { row: &row, to: None }, here);
                }
                (Some(old), Some(new)) if encoder.has_same_key(&old, &new) => {
                    encoder.change(&mut out, ShapeChange::Update { old: &old, new: &new }, here);
                }
                (Some(old), Some(new)) => {
                    encoder.change(&mut out, ShapeChange::Delete { row: &old, to: Some(&new) }, here);
                    encoder.change(&mut out, ShapeChange::Insert { row: &new, from: Some(&old) }, next);
                }
            }
            if out.len() - before > MESSAGE_BYTES {
                return None;
            }
        }
        if !out.is_empty() {
            out.truncate(out.len() - MORE.len());
            out.extend_from_slice(LAST);
        }
        Some(out)
    }
}

/// Rows of a table without a key, some of which may be equal; `None`: they aren't needed.
struct EqualRows(Option<Vec<SimulatedRow>>);

impl EqualRows {
    /// Applies a change. Returns whether it removes one of several equal rows.
    fn next(&mut self, change: &SimulatedChange) -> bool {
        let Some(rows) = &mut self.0 else { return false };
        let has_equal = |old: &SimulatedRow| rows.iter().filter(|row| *row == old).count() > 1;
        let removes_equal = change.before().is_some_and(has_equal);
        if let Some(at) = change.before().and_then(|old| rows.iter().position(|row| row == old)) {
            rows.swap_remove(at);
        }
        rows.extend(change.after().cloned());
        removes_equal
    }
}

impl SimulatedChange {
    fn before(&self) -> Option<&SimulatedRow> {
        match self {
            SimulatedChange::Update(_, old, _) | SimulatedChange::Delete(_, old) => Some(old),
            SimulatedChange::Insert(..) | SimulatedChange::Truncate => None,
        }
    }

    fn after(&self) -> Option<&SimulatedRow> {
        match self {
            SimulatedChange::Insert(_, new) | SimulatedChange::Update(_, _, new) => Some(new),
            SimulatedChange::Delete(..) | SimulatedChange::Truncate => None,
        }
    }
}

pub(crate) fn values(row: &SimulatedRow) -> Vec<Option<&[u8]>> {
    row.iter().map(|value| value.as_ref().map(String::as_bytes)).collect()
}

fn row(id: u64, rng: &mut SimulatedRng) -> SimulatedRow {
    let quantity = (rng.between(0, 9) > 0).then(|| rng.between(0, 60).min(11).to_string());
    let quantity = quantity.filter(|text| text != "0" || rng.between(0, 9) == 0);
    let width = match rng.between(0, 499) {
        0 => MESSAGE_BYTES + 1,
        1..50 => 300,
        _ => rng.between(0, 30),
    };
    let note = (rng.between(0, 9) > 0).then(|| ["a", "b\n\"/", "aß", "ß"][rng.between(0, 3)].repeat(width));
    vec![Some((id * 10 + rng.between(0, 9) as u64).to_string()), quantity, note]
}
