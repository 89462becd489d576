//! Tables whose definitions change under their shapes, and the writers that do it.
//!
//! Each group of tables has one writer, a thread: rows, then a definition, then rows again; each
//! commit is noted (`journal.rs`).
//! It ends with a change of a definition, so that no row follows which would tell of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_sandbox::Postgres;
use forebay_testkit::Dice;
use tokio::time::Instant;

use super::super::support::Place;
use super::history::{Row, number};
use super::journal::{Contents, Journal, Kind, State};
use super::tables::{self, GENERATED, Rules, Table};

const fn table(name: &'static str, rules: Rules) -> Table {
    Table { name, family: "", leaves: &[], columns: &["id", "label"], key: &["id"], clauses: &[], rules }
}

pub(crate) static LEDGERS: [Table; 3] =
    [table("ledger_0", Rules::Changing), table("ledger_1", Rules::Changing), table("ledger_2", Rules::Mixed)];
pub(crate) static TREE: [Table; 4] = [
    table("tree", Rules::Mixed),
    table("tree_1", Rules::Mixed),
    table("tree_2", Rules::Mixed),
    table("tree_3", Rules::Mixed),
];

/// The tables that clients ask for.
pub(crate) fn asked() -> &'static [&'static Table] {
    static ASKED: OnceLock<Vec<&'static Table>> = OnceLock::new();
    ASKED.get_or_init(|| tables::chosen(LEDGERS.iter().chain(&TREE)))
}

const TREE_ROWS: &str = "CREATE TABLE tree (id int PRIMARY KEY, label text) PARTITION BY RANGE (id);
    CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (0) TO (40);
    CREATE TABLE tree_2 PARTITION OF tree FOR VALUES FROM (40) TO (80);
    CREATE TABLE tree_3 (id int PRIMARY KEY, label text);
    INSERT INTO tree SELECT n * 9, 'first' FROM generate_series(0, 8) n; INSERT INTO tree_3 VALUES (80, 'first')";

/// What is done to a definition, by name: each is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Change {
    Rewrite,
    Retype,
    Rename,
    Replace,
    Truncate,
    Move,
    RenameValue,
    AddAttribute,
    Unpublish,
    Narrow,
    Attach,
}

/// The writers of all groups.
pub(crate) struct Surgeons {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Change>>>,
}

impl Surgeons {
    /// Makes the tables and starts their writers. `is_shared`: other tables are in the publication,
    /// too, and it isn't narrowed as a whole.
    pub(crate) fn start(
        place: &Place,
        seed: u64,
        version: u32,
        is_shared: bool,
        journal: &Arc<Journal>,
    ) -> Surgeons {
        let stop = Arc::new(AtomicBool::new(false));
        let (marks, publication) = (Arc::new(AtomicU64::new(0)), Arc::new(RwLock::new(())));
        let mut threads = Vec::new();
        place.sql("CREATE SCHEMA away");
        for group in 0..=LEDGERS.len() {
            let mut surgeon = Surgeon {
                postgres: place.postgres,
                database: place.database.clone(),
                publication: place.slot.clone(),
                is_shared,
                version,
                dice: Dice::of(seed, "surgeon", group),
                journal: Arc::clone(journal),
                marks: Arc::clone(&marks),
                narrowing: Arc::clone(&publication),
                tables: LEDGERS.get(group).map_or(&TREE[..], std::slice::from_ref),
                group,
                amount: "amount",
                spot: 2,
                number: 0,
                is_quiet: false,
                quiet_until: None,
                done: Vec::new(),
            };
            surgeon.commit(&surgeon.first(), Kind::Quiet);
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || surgeon.run(&stop)));
        }
        Surgeons { stop, threads }
    }

    /// Returns what was done.
    pub(crate) fn stop(self) -> Vec<Change> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("a surgeon ends well")).collect()
    }
}

/// A publication that the server changed first, a name that is taken or gone, a deadlock, a server
/// that shuts down; or, without a
/// code, a connection that was lost.
fn is_expected(error: &str) -> bool {
    const CODES: [&str; 9] =
        ["42710", "42704", "42P10", "42P16", "40P01", "XX000", "55000", "22023", "23505"];
    let code = error.strip_suffix(')').and_then(|error| error.rsplit_once('(')).map(|(_, code)| code);
    let code = code.filter(|code| code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    code.is_none_or(|code| CODES.contains(&code) || code.starts_with("57"))
}

struct Surgeon {
    postgres: &'static Postgres,
    database: String,
    publication: String,
    is_shared: bool,
    version: u32,
    dice: Dice,
    journal: Arc<Journal>,
    marks: Arc<AtomicU64>,
    /// Writers of rows hold it to read; whoever narrows the whole publication, to write.
    narrowing: Arc<RwLock<()>>,
    tables: &'static [Table],
    group: usize,
    /// The column's name now.
    amount: &'static str,
    /// How many attributes the composite type has.
    spot: usize,
    number: u64,
    /// Whether the stream misses what is written now.
    is_quiet: bool,
    /// The last table is new to the publication until then, perhaps.
    quiet_until: Option<Instant>,
    done: Vec<Change>,
}

impl Surgeon {
    fn run(mut self, stop: &AtomicBool) -> Vec<Change> {
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..self.dice.between(2, 14) {
                self.rows();
                self.pause(40);
            }
            self.change();
            self.pause(300);
        }
        self.change();
        self.done
    }

    fn pause(&mut self, at_most: usize) {
        thread::sleep(Duration::from_millis(self.dice.below(at_most) as u64));
    }

    fn table(&self) -> &'static str {
        self.tables[0].name
    }

    fn is_tree(&self) -> bool {
        self.group == LEDGERS.len()
    }

    fn first(&self) -> String {
        if self.is_tree() {
            return TREE_ROWS.to_owned();
        }
        let group = self.group;
        format!(
            "CREATE TYPE mood_{group} AS ENUM ('happy', 'sad'); CREATE DOMAIN dom_{group} AS mood_{group};
             CREATE TYPE spot_{group} AS (mood mood_{group}, n int); {}",
            self.create()
        )
    }

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

    /// A change of rows.
    fn rows(&mut self) {
        let sql = if self.is_tree() { self.tree_rows() } else { self.ledger_rows() };
        let lock = Arc::clone(&self.narrowing);
        let held = lock.read().unwrap();
        let kind = if self.is_quiet { Kind::Quiet } else { Kind::Loud };
        self.commit(&sql, kind);
        drop(held);
    }

    fn ledger_rows(&mut self) -> String {
        self.number += 1;
        let (table, group, amount, number) = (self.table(), self.group, self.amount, self.number);
        let (id, k) = (self.dice.below(60), self.dice.below(5));
        match self.dice.below(8) {
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

    fn tree_rows(&mut self) -> String {
        self.number += 1;
        let (number, id) = (self.number, self.dice.below(if self.is_attached() { 120 } else { 80 }));
        match self.dice.below(8) {
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
        self.ask(sql).as_deref() == Some("t")
    }

    /// What may be done here; more often what is done only here. `FOREBAY_CHANGES` names some of
    /// it, such as `Rewrite,Rename`.
    fn changes(&self) -> Vec<Change> {
        use Change::{
            AddAttribute, Attach, Move, Narrow, Rename, RenameValue, Replace, Retype, Rewrite, Truncate,
            Unpublish,
        };
        let all: &[Change] = match self.group {
            0 => &[Rewrite, Retype, Rename, Replace, Truncate, Move],
            1 => &[Unpublish, Narrow, Unpublish, Narrow, Rewrite, Move, Replace],
            2 => &[RenameValue, AddAttribute, RenameValue, AddAttribute, Rewrite, Retype, Truncate],
            _ => &[Attach, Attach, Truncate],
        };
        let names = std::env::var("FOREBAY_CHANGES").ok();
        let is_named = |change: &&Change| {
            names.as_ref().is_none_or(|names| names.split(',').any(|name| name == format!("{change:?}")))
        };
        all.iter().filter(is_named).copied().collect()
    }

    /// A change of a definition.
    fn change(&mut self) {
        let changes = self.changes();
        if changes.is_empty() {
            return;
        }
        // Each comes once before any comes twice by chance.
        let change = match changes.get(self.done.len()) {
            Some(change) => *change,
            None => self.dice.pick(&changes),
        };
        let table = self.table();
        match change {
            Change::Rewrite => {
                let amount = self.amount;
                self.commit(
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE int USING {amount} + 1000"),
                    Kind::Quiet,
                );
            }
            Change::Retype => {
                let amount = self.amount;
                self.there_and_back(
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE bigint"),
                    &format!("ALTER TABLE {table} ALTER {amount} TYPE int"),
                );
            }
            Change::Rename => {
                let to = if self.amount == "amount" { "sum" } else { "amount" };
                if self.commit(&format!("ALTER TABLE {table} RENAME {} TO {to}", self.amount), Kind::Quiet) {
                    self.amount = to;
                }
            }
            Change::Replace => {
                let create = self.create();
                self.commit(&format!("DROP TABLE {table}; {create}"), Kind::Quiet);
                self.quiet_until = Some(Instant::now() + self.journal.notice);
            }
            Change::Truncate if self.is_tree() => {
                self.commit("TRUNCATE tree_1", Kind::Vague);
            }
            Change::Truncate => {
                let kind = if self.is_new() { Kind::Quiet } else { Kind::Loud };
                self.commit(&format!("TRUNCATE {table}"), kind);
            }
            Change::Move => {
                if self.commit(&format!("ALTER TABLE {table} SET SCHEMA away"), Kind::Quiet) {
                    self.pause(600);
                    while !self.commit(&format!("ALTER TABLE away.{table} SET SCHEMA public"), Kind::Quiet) {}
                }
            }
            Change::RenameValue => self.rename_value(),
            Change::AddAttribute => self.add_attribute(),
            Change::Unpublish => self.unpublish(),
            Change::Narrow => self.narrow(),
            Change::Attach if self.is_attached() => {
                self.commit("ALTER TABLE tree DETACH PARTITION tree_3", Kind::Quiet);
                self.quiet_until = Some(Instant::now() + self.journal.notice);
            }
            Change::Attach => {
                self.commit(
                    "ALTER TABLE tree ATTACH PARTITION tree_3 FOR VALUES FROM (80) TO (120)",
                    Kind::Quiet,
                );
                self.quiet_until = Some(Instant::now() + self.journal.notice);
            }
        }
        self.done.push(change);
    }

    fn rename_value(&mut self) {
        let (group, is_sad) = (self.group, self.dice.percent(50));
        let (from, to) = if is_sad { ("sad", "blue") } else { ("happy", "glad") };
        let there = format!("ALTER TYPE mood_{group} RENAME VALUE '{from}' TO '{to}'");
        if !self.commit(&there, Kind::Vague) {
            self.commit(&format!("ALTER TYPE mood_{group} RENAME VALUE '{to}' TO '{from}'"), Kind::Vague);
        }
    }

    fn add_attribute(&mut self) {
        let (group, more) = (self.group, self.spot + 1);
        if self.spot < 6
            && self.commit(&format!("ALTER TYPE spot_{group} ADD ATTRIBUTE a{more} int"), Kind::Vague)
        {
            self.spot = more;
        }
    }

    fn there_and_back(&mut self, there: &str, back: &str) {
        if self.commit(there, Kind::Quiet) {
            for _ in 0..self.dice.below(3) {
                self.rows();
                self.pause(300);
            }
            while !self.commit(back, Kind::Quiet) {}
        }
    }

    /// Takes the table out of the publication, writes, and puts it back: at once, or in the course
    /// of a second.
    fn unpublish(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let out = format!("ALTER PUBLICATION {publication} DROP TABLE {table}");
        if self.dice.percent(40) {
            let (one, other) = (self.ledger_rows(), self.ledger_rows());
            let script = format!("{out}; {one}; {other}; ALTER PUBLICATION {publication} ADD TABLE {table}");
            self.commit(&script, Kind::Quiet);
        } else if self.commit(&out, Kind::Quiet) {
            self.write_quietly();
        }
        self.publish();
    }

    /// Publishes less of the table for a while: inserts only, or some rows, or some columns.
    fn narrow(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let again = |rest: &str| {
            format!(
                "ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication} ADD TABLE {table} {rest}"
            )
        };
        let is_whole = !self.is_shared && self.dice.percent(50);
        if is_whole {
            let lock = Arc::clone(&self.narrowing);
            let held = lock.write().unwrap();
            self.commit(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')"), Kind::Quiet);
            self.is_quiet = true;
            for _ in 0..self.dice.between(1, 4) {
                let sql = self.ledger_rows();
                self.commit(&sql, Kind::Quiet);
                self.pause(150);
            }
            let wide =
                format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')");
            while !self.commit(&wide, Kind::Quiet) {}
            self.is_quiet = false;
            drop(held);
            return;
        }
        let narrowed = if self.dice.percent(60) { again("WHERE (id < 20)") } else { again("(id, label)") };
        if self.commit(&narrowed, Kind::Quiet) {
            self.write_quietly();
        }
        self.publish();
    }

    fn write_quietly(&mut self) {
        self.is_quiet = true;
        for _ in 0..self.dice.between(1, 4) {
            self.rows();
            self.pause(250);
        }
        self.is_quiet = false;
    }

    /// Puts the table back as a whole, unless the server did.
    fn publish(&mut self) {
        let (publication, table) = (self.publication.clone(), self.table());
        let is_whole = format!(
            "SELECT bool_or(r.prqual IS NULL AND r.prattrs IS NULL) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = '{publication}' AND r.prrelid = '{table}'::regclass"
        );
        loop {
            match self.ask(&is_whole).as_deref() {
                Some("t") => return,
                Some(_) => {
                    let script = format!(
                        "ALTER PUBLICATION {publication} DROP TABLE {table}; ALTER PUBLICATION {publication} ADD TABLE {table}"
                    );
                    self.commit(&script, Kind::Quiet);
                }
                None => {
                    self.commit(&format!("ALTER PUBLICATION {publication} ADD TABLE {table}"), Kind::Quiet);
                }
            }
        }
    }

    /// Whether the server may not have published the newest table yet.
    fn is_new(&self) -> bool {
        self.quiet_until.is_some_and(|until| Instant::now() < until)
    }

    /// Runs a script as one transaction and notes what the tables are then. `false`: it was rolled back.
    fn commit(&mut self, sql: &str, kind: Kind) -> bool {
        let mark = self.marks.fetch_add(1, Ordering::Relaxed);
        let script = format!("{sql}; INSERT INTO marks VALUES ({mark}, pg_current_xact_id()::text::bigint)");
        let done = self.postgres.execute(&self.database, &script);
        // Whether an unanswered commit happened, its mark tells.
        let xid = self.ask(&format!("SELECT xid FROM marks WHERE id = {mark}"));
        let Some(xid) = xid else {
            let error = done.expect_err("what is committed has a mark").to_string();
            assert!(is_expected(&error), "{sql}: {error}");
            return false;
        };
        let done = Instant::now();
        for (index, table) in self.tables.iter().enumerate() {
            let contents = self.contents(table.name);
            let is_last = index + 1 == self.tables.len();
            let before = self.journal.states().get(table.name).and_then(|states| states.last().cloned());
            let is_same = before.is_some_and(|before| before.contents == contents);
            let kind = match kind {
                // What changes nothing tells nothing.
                Kind::Loud if is_same || is_last && self.is_new() => Kind::Quiet,
                kind => kind,
            };
            let sql = sql.chars().take(160).collect();
            self.journal.note(table.name, State { xid: number(&xid), kind, done, sql, contents });
        }
        true
    }

    fn contents(&self, table: &str) -> Option<Contents> {
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
        Some(Contents { columns, rows })
    }

    fn ask(&self, sql: &str) -> Option<String> {
        self.query(sql).into_iter().next()?.into_iter().next()?
    }

    /// Postgres may be away for a while.
    fn query(&self, sql: &str) -> Vec<Row> {
        let begun = Instant::now();
        loop {
            match self.postgres.query(&self.database, sql) {
                Ok(rows) => return rows,
                Err(error) => {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{sql}: {error}");
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}
