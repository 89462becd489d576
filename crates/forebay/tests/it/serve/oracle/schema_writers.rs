//! Tables whose definitions change while clients follow them, and the writers that change them.
//!
//! Each group of tables has one writer thread. It changes rows, then a definition or the
//! publication, then rows again, and records the tables after each commit (`schema_journal.rs`).
//! At its end it makes one more such change and writes no row after it. So the server must detect
//! the change without the help of a row.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::TestRng;
use parking_lot::RwLock;
use tokio::time::Instant;

use super::super::support::ServeFixture;
use super::history::{OracleRow, parse_number};
use super::schema_journal::{SchemaJournal, StreamVisibility, TableContents, TableState};
use super::tables::{self, GENERATED, MessageRules, OracleTable};

/// Returns a table whose definition changes.
const fn table(name: &'static str, rules: MessageRules) -> OracleTable {
    OracleTable {
        name,
        family: "",
        leaves: &[],
        columns: &["id", "label"],
        key: &["id"],
        clauses: &[],
        rules,
    }
}

pub(crate) static LEDGER_TABLES: [OracleTable; 3] = [
    table("ledger_0", MessageRules::Changing),
    table("ledger_1", MessageRules::Changing),
    table("ledger_2", MessageRules::Mixed),
];
pub(crate) static TREE_TABLES: [OracleTable; 4] = [
    table("tree", MessageRules::Mixed),
    table("tree_1", MessageRules::Mixed),
    table("tree_2", MessageRules::Mixed),
    table("tree_3", MessageRules::Mixed),
];

/// Returns the tables that clients request.
pub(crate) fn requested() -> &'static [&'static OracleTable] {
    static REQUESTED: OnceLock<Vec<&'static OracleTable>> = OnceLock::new();
    REQUESTED.get_or_init(|| tables::selected_by_environment(LEDGER_TABLES.iter().chain(&TREE_TABLES)))
}

const CREATE_TREE: &str = "CREATE TABLE tree (id int PRIMARY KEY, label text) PARTITION BY RANGE (id);
    CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (0) TO (40);
    CREATE TABLE tree_2 PARTITION OF tree FOR VALUES FROM (40) TO (80);
    CREATE TABLE tree_3 (id int PRIMARY KEY, label text);
    INSERT INTO tree SELECT n * 9, 'first' FROM generate_series(0, 8) n; INSERT INTO tree_3 VALUES (80, 'first')";

/// A change of a definition or of the publication. A run of 10 s must have at least six kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SchemaChange {
    /// Rewrites the values of a column, whose type stays the same.
    Rewrite,
    /// Changes the type of a column, and changes it back.
    Retype,
    /// Renames a column.
    Rename,
    /// Drops the table and creates another of the same name.
    Replace,
    /// Truncates the table, or a partition.
    Truncate,
    /// Moves the table to another schema, and back.
    Move,
    /// Renames a label of an enum.
    RenameValue,
    /// Adds an attribute to a composite type.
    AddAttribute,
    /// Removes the table from the publication, and adds it again.
    Unpublish,
    /// Publishes only some operations, rows or columns for a while.
    Narrow,
    /// Attaches or detaches a partition.
    Attach,
}

/// The writer threads of all groups.
pub(crate) struct SchemaWriters {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<SchemaChange>>>,
}

impl SchemaWriters {
    /// Creates the tables and starts their writers.
    ///
    /// `is_shared`: the publication also has the tables of the row writers, so no writer narrows
    /// the whole publication.
    pub(crate) fn start(
        fixture: &ServeFixture,
        seed: u64,
        version: u32,
        is_shared: bool,
        journal: &Arc<SchemaJournal>,
    ) -> SchemaWriters {
        let stop = Arc::new(AtomicBool::new(false));
        let (marks, publication) = (Arc::new(AtomicU64::new(0)), Arc::new(RwLock::new(())));
        let mut threads = Vec::new();
        fixture.sql("CREATE SCHEMA away");
        for group in 0..=LEDGER_TABLES.len() {
            let mut writer = SchemaWriter {
                postgres: fixture.postgres,
                database: fixture.database.clone(),
                publication: fixture.slot.clone(),
                is_shared,
                version,
                // The label is hashed with the seed. Another would change what a seed generates.
                rng: TestRng::of(seed, "surgeon", group),
                journal: Arc::clone(journal),
                marks: Arc::clone(&marks),
                narrowing: Arc::clone(&publication),
                tables: LEDGER_TABLES.get(group).map_or(&TREE_TABLES[..], std::slice::from_ref),
                group,
                amount: "amount",
                spot: 2,
                number: 0,
                is_unpublished: false,
                unpublished_until: None,
                done: Vec::new(),
            };
            writer.commit(&writer.first(), StreamVisibility::Delayed);
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || writer.run(&stop)));
        }
        SchemaWriters { stop, threads }
    }

    /// Waits until all writers have made their last change, and returns all changes.
    pub(crate) fn stop(self) -> Vec<SchemaChange> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a schema writer doesn't panic"))
            .collect()
    }
}

/// Returns whether a script may fail with this error.
///
/// These errors are expected: the server changed the publication first, a name is taken or missing,
/// a deadlock, a shutdown of Postgres, a lost connection (an error without a code).
///
/// `XX000` is Postgres' code for internal errors, so only one text is expected: the server and a
/// writer changed the options of the publication at once. Postgres locks tables for such a change,
/// but not the publication.
fn is_expected(error: &str) -> bool {
    const CODES: [&str; 8] = ["42710", "42704", "42P10", "42P16", "40P01", "55000", "22023", "23505"];
    let code = error.strip_suffix(')').and_then(|error| error.rsplit_once('(')).map(|(_, code)| code);
    let code = code.filter(|code| code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    match code {
        None => true,
        Some("XX000") => error.contains("tuple concurrently updated"),
        Some(code) => CODES.contains(&code) || code.starts_with("57"),
    }
}

/// The writer of one group of tables.
struct SchemaWriter {
    postgres: &'static Postgres,
    database: String,
    publication: String,
    is_shared: bool,
    version: u32,
    rng: TestRng,
    journal: Arc<SchemaJournal>,
    /// The next id in `marks`. All writers share it.
    marks: Arc<AtomicU64>,
    /// Held for reading while rows are written, and for writing while the whole publication is
    /// narrowed.
    narrowing: Arc<RwLock<()>>,
    tables: &'static [OracleTable],
    group: usize,
    /// Current name of the column `amount`.
    amount: &'static str,
    /// Number of attributes of the composite type.
    spot: usize,
    /// Number of scripts so far, for distinct values.
    number: u64,
    /// Whether the table is not fully published, so that the stream lacks changes.
    is_unpublished: bool,
    /// Until this time, the server may not have published a replaced or attached table.
    unpublished_until: Option<Instant>,
    /// Changes so far.
    done: Vec<SchemaChange>,
}

impl SchemaWriter {
    fn run(mut self, stop: &AtomicBool) -> Vec<SchemaChange> {
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..self.rng.between(2, 14) {
                self.write_rows();
                self.pause(40);
            }
            self.change_schema();
            self.pause(300);
        }
        self.change_schema();
        self.done
    }

    fn pause(&mut self, at_most: usize) {
        thread::sleep(Duration::from_millis(self.rng.below(at_most) as u64));
    }

    fn table(&self) -> &'static str {
        self.tables[0].name
    }

    fn is_tree(&self) -> bool {
        self.group == LEDGER_TABLES.len()
    }

    /// Returns the script that creates types, tables and first rows.
    fn first(&self) -> String {
        if self.is_tree() {
            return CREATE_TREE.to_owned();
        }
        let group = self.group;
        format!(
            "CREATE TYPE mood_{group} AS ENUM ('happy', 'sad'); CREATE DOMAIN dom_{group} AS mood_{group};
             CREATE TYPE spot_{group} AS (mood mood_{group}, n int); {}",
            self.create()
        )
    }

    /// Returns the script that creates a ledger table with its first rows.
    fn create(&self) -> String {
        let (table, group, amount, number) = (self.table(), self.group, self.amount, self.number);
        let generated = GENERATED.0;
        format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, {amount} int, label text, mood mood_{group}, moods mood_{group}[],
                dom dom_{group}, spot spot_{group}, body text, {generated} int GENERATED ALWAYS AS (id * 2) STORED);
             ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL;
             INSERT INTO {table} (id, {amount}, label, mood) SELECT n * 7, n, 'made {number}', NULL FROM generate_series(1, 9) n"
        )
    }

    /// Commits a random change of rows.
    fn write_rows(&mut self) {
        let sql = if self.is_tree() { self.tree_rows() } else { self.ledger_rows() };
        let lock = Arc::clone(&self.narrowing);
        let held = lock.read();
        let visibility =
            if self.is_unpublished { StreamVisibility::Delayed } else { StreamVisibility::Visible };
        self.commit(&sql, visibility);
        drop(held);
    }

    /// Returns a random change of rows of a ledger table.
    fn ledger_rows(&mut self) -> String {
        self.number += 1;
        let (table, group, amount, number) = (self.table(), self.group, self.amount, self.number);
        let (id, k) = (self.rng.below(60), self.rng.below(5));
        match self.rng.below(8) {
            0..=2 => format!(
                "INSERT INTO {table} (id, {amount}, label, mood, moods, dom, spot.mood, spot.n, body)
                 SELECT {id}, {k}, 'l{number}', m, ARRAY[m, m], m, m, {k}, repeat(md5('{number}'), 100)
                 FROM (SELECT (enum_range(NULL::mood_{group}))[1 + {k} % 2] m) m
                 ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label, mood = EXCLUDED.mood"
            ),
            3 | 4 => format!("UPDATE {table} SET {amount} = {amount} + 1 WHERE id % 5 = {k}"),
            5 => format!("UPDATE {table} SET label = 'l{number}' WHERE id < {id}"),
            6 => format!("DELETE FROM {table} WHERE id = {id}"),
            _ => format!(
                "UPDATE {table} SET id = id + 60, label = 'l{number}' WHERE id = {id}
                 AND NOT EXISTS (SELECT FROM {table} WHERE id = {id} + 60)"
            ),
        }
    }

    /// Returns a random change of rows of the partitioned table or of `tree_3`.
    fn tree_rows(&mut self) -> String {
        self.number += 1;
        let (number, id) = (self.number, self.rng.below(if self.is_attached() { 120 } else { 80 }));
        match self.rng.below(8) {
            0..=2 => format!(
                "INSERT INTO tree VALUES ({id}, 'l{number}') ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label"
            ),
            3 => format!("UPDATE tree SET label = 'l{number}' WHERE id % 5 = {}", id % 5),
            4 => format!("DELETE FROM tree WHERE id BETWEEN {id} AND {id} + 2"),
            5 => format!(
                "INSERT INTO tree_3 VALUES ({}, 'l{number}') ON CONFLICT (id) DO UPDATE SET label = EXCLUDED.label",
                80 + id % 40
            ),
            6 => format!("DELETE FROM tree_3 WHERE id % 7 = {}", id % 7),
            _ => format!(
                "UPDATE tree SET id = id - 40 WHERE id = {id} AND id >= 40 AND NOT EXISTS (SELECT FROM tree WHERE id = {id} - 40)"
            ),
        }
    }

    fn is_attached(&self) -> bool {
        let sql = "SELECT relispartition FROM pg_class WHERE oid = 'tree_3'::regclass";
        self.query_value(sql).as_deref() == Some("t")
    }

    /// Returns the possible changes of this group. A change that is listed twice is twice as
    /// frequent.
    ///
    /// `FOREBAY_CHANGES` selects some, such as `Rewrite,Rename`.
    fn possible_changes(&self) -> Vec<SchemaChange> {
        use SchemaChange::{
            AddAttribute, Attach, Move, Narrow, Rename, RenameValue, Replace, Retype, Rewrite, Truncate,
            Unpublish,
        };
        let all: &[SchemaChange] = match self.group {
            0 => &[Rewrite, Retype, Rename, Replace, Truncate, Move],
            1 => &[Unpublish, Narrow, Unpublish, Narrow, Rewrite, Move, Replace],
            2 => &[RenameValue, AddAttribute, RenameValue, AddAttribute, Rewrite, Retype, Truncate],
            _ => &[Attach, Attach, Truncate],
        };
        let names = std::env::var("FOREBAY_CHANGES").ok();
        let is_named = |change: &&SchemaChange| {
            names.as_ref().is_none_or(|names| names.split(',').any(|name| name == format!("{change:?}")))
        };
        all.iter().filter(is_named).copied().collect()
    }

    /// Commits a change of a definition or of the publication.
    fn change_schema(&mut self) {
        let changes = self.possible_changes();
        if changes.is_empty() {
            return;
        }
        // Each change happens once, in order, before changes are random.
        let change = match changes.get(self.done.len()) {
            Some(change) => *change,
            None => self.rng.pick(&changes),
        };
        let table = self.table();
        match change {
            SchemaChange::Rewrite => {
                let amount = self.amount;
                self.commit(
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE int USING {amount} + 1000"),
                    StreamVisibility::Delayed,
                );
            }
            SchemaChange::Retype => {
                let amount = self.amount;
                self.commit_and_revert(
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE bigint"),
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE int"),
                );
            }
            SchemaChange::Rename => {
                let to = if self.amount == "amount" { "sum" } else { "amount" };
                if self.commit(
                    &format!("ALTER TABLE {table} RENAME {} TO {to}", self.amount),
                    StreamVisibility::Delayed,
                ) {
                    self.amount = to;
                }
            }
            SchemaChange::Replace => {
                let create = self.create();
                self.commit(&format!("DROP TABLE {table}; {create}"), StreamVisibility::Delayed);
                self.unpublished_until = Some(Instant::now() + self.journal.max_detection_delay);
            }
            SchemaChange::Truncate if self.is_tree() => {
                self.commit("TRUNCATE tree_1", StreamVisibility::Hidden);
            }
            SchemaChange::Truncate => {
                let visibility = if self.may_be_unpublished() {
                    StreamVisibility::Delayed
                } else {
                    StreamVisibility::Visible
                };
                self.commit(&format!("TRUNCATE {table}"), visibility);
            }
            SchemaChange::Move => {
                if self.commit(&format!("ALTER TABLE {table} SET SCHEMA away"), StreamVisibility::Delayed) {
                    self.pause(600);
                    while !self.commit(
                        &format!("ALTER TABLE away.{table} SET SCHEMA public"),
                        StreamVisibility::Delayed,
                    ) {}
                }
            }
            SchemaChange::RenameValue => self.rename_value(),
            SchemaChange::AddAttribute => self.add_attribute(),
            SchemaChange::Unpublish => self.unpublish(),
            SchemaChange::Narrow => self.narrow(),
            SchemaChange::Attach if self.is_attached() => {
                self.commit("ALTER TABLE tree DETACH PARTITION tree_3", StreamVisibility::Delayed);
                self.unpublished_until = Some(Instant::now() + self.journal.max_detection_delay);
            }
            SchemaChange::Attach => {
                self.commit(
                    "ALTER TABLE tree ATTACH PARTITION tree_3 FOR VALUES FROM (80) TO (120)",
                    StreamVisibility::Delayed,
                );
                self.unpublished_until = Some(Instant::now() + self.journal.max_detection_delay);
            }
        }
        self.done.push(change);
    }

    fn rename_value(&mut self) {
        let (group, is_sad) = (self.group, self.rng.percent(50));
        let (from, to) = if is_sad { ("sad", "blue") } else { ("happy", "glad") };
        let rename = format!("ALTER TYPE mood_{group} RENAME VALUE '{from}' TO '{to}'");
        if !self.commit(&rename, StreamVisibility::Hidden) {
            self.commit(
                &format!("ALTER TYPE mood_{group} RENAME VALUE '{to}' TO '{from}'"),
                StreamVisibility::Hidden,
            );
        }
    }

    fn add_attribute(&mut self) {
        let (group, more) = (self.group, self.spot + 1);
        if self.spot < 6
            && self.commit(
                &format!("ALTER TYPE spot_{group} ADD ATTRIBUTE a{more} int"),
                StreamVisibility::Hidden,
            )
        {
            self.spot = more;
        }
    }

    /// Commits a change, writes some rows, and commits the reverse change.
    fn commit_and_revert(&mut self, change: &str, reverse: &str) {
        if self.commit(change, StreamVisibility::Delayed) {
            for _ in 0..self.rng.below(3) {
                self.write_rows();
                self.pause(300);
            }
            while !self.commit(reverse, StreamVisibility::Delayed) {}
        }
    }

    /// Removes the table from the publication, writes rows, and adds the table again: in one
    /// transaction, or within about a second.
    fn unpublish(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let remove = format!("ALTER PUBLICATION {publication} DROP TABLE {table}");
        if self.rng.percent(40) {
            let (one, other) = (self.ledger_rows(), self.ledger_rows());
            let script =
                format!("{remove}; {one}; {other}; ALTER PUBLICATION {publication} ADD TABLE {table}");
            self.commit(&script, StreamVisibility::Delayed);
        } else if self.commit(&remove, StreamVisibility::Delayed) {
            self.write_unpublished_rows();
        }
        self.publish();
    }

    /// Publishes only inserts, only some rows or only some columns for a while.
    fn narrow(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let republish = |rest: &str| {
            format!(
                "ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication} ADD TABLE {table} {rest}"
            )
        };
        let is_whole = !self.is_shared && self.rng.percent(50);
        if is_whole {
            let lock = Arc::clone(&self.narrowing);
            let held = lock.write();
            self.commit(
                &format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"),
                StreamVisibility::Delayed,
            );
            self.is_unpublished = true;
            for _ in 0..self.rng.between(1, 4) {
                let sql = self.ledger_rows();
                self.commit(&sql, StreamVisibility::Delayed);
                self.pause(150);
            }
            let wide =
                format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')");
            while !self.commit(&wide, StreamVisibility::Delayed) {}
            self.is_unpublished = false;
            drop(held);
            return;
        }
        let narrowed =
            if self.rng.percent(60) { republish("WHERE (id < 20)") } else { republish("(id, label)") };
        if self.commit(&narrowed, StreamVisibility::Delayed) {
            self.write_unpublished_rows();
        }
        self.publish();
    }

    /// Writes rows that the stream doesn't fully contain.
    fn write_unpublished_rows(&mut self) {
        self.is_unpublished = true;
        for _ in 0..self.rng.between(1, 4) {
            self.write_rows();
            self.pause(250);
        }
        self.is_unpublished = false;
    }

    /// Publishes the whole table again, unless the server has done so already.
    fn publish(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let is_whole = format!(
            "SELECT bool_or(r.prqual IS NULL AND r.prattrs IS NULL) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = '{publication}' AND r.prrelid = '{table}'::regclass"
        );
        loop {
            match self.query_value(&is_whole).as_deref() {
                Some("t") => return,
                Some(_) => {
                    let script = format!(
                        "ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication} ADD TABLE {table}"
                    );
                    self.commit(&script, StreamVisibility::Delayed);
                }
                None => {
                    self.commit(
                        &format!("ALTER PUBLICATION {publication} ADD TABLE {table}"),
                        StreamVisibility::Delayed,
                    );
                }
            }
        }
    }

    /// Returns whether the server may not have published a replaced or attached table yet.
    fn may_be_unpublished(&self) -> bool {
        self.unpublished_until.is_some_and(|until| Instant::now() < until)
    }

    /// Runs a script as one transaction, and records the tables after it. `false`: it was rolled
    /// back.
    fn commit(&mut self, sql: &str, visibility: StreamVisibility) -> bool {
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        let script = format!("{sql}; INSERT INTO marks VALUES ({mark}, pg_current_xact_id()::text::bigint)");
        let done = self.postgres.execute(&self.database, &script);
        // If the connection broke during the commit, the mark shows whether the commit succeeded.
        let xid = self.query_value(&format!("SELECT xid FROM marks WHERE id = {mark}"));
        let Some(xid) = xid else {
            let error = done.expect_err("a committed script has a mark").to_string();
            assert!(is_expected(&error), "{sql}: {error}");
            return false;
        };
        let done = Instant::now();
        for (index, table) in self.tables.iter().enumerate() {
            let contents = self.contents(table.name);
            let is_last = index + 1 == self.tables.len();
            let before = self.journal.states.lock().get(table.name).and_then(|states| states.last().cloned());
            let is_same = before.is_some_and(|before| before.contents == contents);
            let visibility = match visibility {
                // A script that changed no row leaves nothing in the stream.
                StreamVisibility::Visible if is_same || is_last && self.may_be_unpublished() => {
                    StreamVisibility::Delayed
                }
                visibility => visibility,
            };
            let sql = sql.chars().take(160).collect();
            self.journal
                .record(table.name, TableState { xid: parse_number(&xid), visibility, done, sql, contents });
        }
        true
    }

    /// Reads the published columns and all rows of a table. `None`: the table doesn't exist.
    fn contents(&self, table: &str) -> Option<TableContents> {
        let published = if self.version >= GENERATED.1 { "true" } else { "attgenerated = ''" };
        let columns = self.query(&format!(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('public.{table}') AND attnum > 0
             AND NOT attisdropped AND {published} ORDER BY attname COLLATE \"C\""
        ));
        let columns: Vec<String> = columns.into_iter().filter_map(|row| row.into_iter().next()?).collect();
        if columns.is_empty() {
            return None;
        }
        let rows = self.query(&format!("SELECT {} FROM public.{table}", columns.join(", ")));
        Some(TableContents { columns, rows })
    }

    /// Returns the first value of a query.
    fn query_value(&self, sql: &str) -> Option<String> {
        self.query(sql).into_iter().next()?.into_iter().next()?
    }

    /// Runs a query, and retries for up to 60 s while Postgres is unreachable.
    fn query(&self, sql: &str) -> Vec<OracleRow> {
        let started = Instant::now();
        loop {
            match self.postgres.query(&self.database, sql) {
                Ok(rows) => return rows,
                Err(error) => {
                    assert!(started.elapsed() < Duration::from_secs(60), "{sql}: {error}");
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}
