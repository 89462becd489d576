//! Row writers: tasks that commit random transactions on the tables with a fixed definition.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_replication::reservoir::{
    ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig,
};
use forebay_testkit::TestRng;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::super::support::ServeFixture;

/// Number of different keys. Small, so that writers reuse deleted keys.
const KEYS: usize = 120;
/// Longest pause between two transactions, in ms.
const PAUSE_MS: usize = 25;
/// Upper bound of the pauses of writers that were slowed down.
const MAX_PAUSE_MS: usize = 2000;

/// The running writer tasks.
pub(crate) struct RowWriters {
    stop: Arc<AtomicBool>,
    /// Upper bound of the pause after a transaction, in milliseconds.
    pause_ms: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<u64>>,
}

impl RowWriters {
    /// Starts `count` writers. `is_heavy`: also starts one that writes some hundred kilobytes each
    /// second.
    pub(crate) fn start(fixture: &ServeFixture, seed: u64, count: usize, is_heavy: bool) -> RowWriters {
        let all = count + usize::from(is_heavy);
        let connect = PostgresConnect::new(&fixture.postgres.url(&fixture.database)).unwrap();
        let config = ReservoirConfig::new(u32::try_from(all.max(1)).unwrap());
        let config = config.checkout_timeout(Duration::from_secs(20));
        let reservoir = Reservoir::start(connect, config, ConnectionLimits::local()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let pause_ms = Arc::new(AtomicUsize::new(PAUSE_MS));
        let task = |number| {
            let writer =
                RowWriter { rng: TestRng::of(seed, "writer", number), version: 0, is_heavy: number == count };
            tokio::spawn(writer.run(reservoir.clone(), Arc::clone(&stop), Arc::clone(&pause_ms)))
        };
        RowWriters { tasks: (0..all).map(task).collect(), stop, pause_ms }
    }

    /// Doubles the pauses, up to [`MAX_PAUSE_MS`]. On a busy machine, clients of large rows would
    /// otherwise never catch up.
    pub(crate) fn slow_down(&self) {
        let pause_ms = self.pause_ms.load(Ordering::Relaxed);
        self.pause_ms.store((2 * pause_ms).min(MAX_PAUSE_MS), Ordering::Relaxed);
    }

    /// Stops all writers. Returns the number of transactions whose commit Postgres confirmed.
    pub(crate) async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut committed = 0;
        for task in self.tasks {
            committed += task.await.unwrap();
        }
        committed
    }
}

/// One writer task.
struct RowWriter {
    rng: TestRng,
    /// Number of changes so far, for distinct values.
    version: u64,
    is_heavy: bool,
}

impl RowWriter {
    async fn run(
        mut self,
        reservoir: Reservoir<PostgresClient>,
        stop: Arc<AtomicBool>,
        pause_ms: Arc<AtomicUsize>,
    ) -> u64 {
        let mut committed = 0;
        while !stop.load(Ordering::Relaxed) {
            let script = self.transaction();
            // Postgres may be down. Deadlocks, duplicate keys and lost connections are expected.
            if let Ok(client) = reservoir.checkout().await {
                match client.batch_execute(&script).await {
                    Ok(()) => committed += 1,
                    Err(error) if error.code().is_some_and(|code| code.code().starts_with("42")) => {
                        panic!("{error:?}: {script}")
                    }
                    Err(_) => drop(client.batch_execute("ROLLBACK").await),
                }
            }
            let pause_ms = self.rng.below(pause_ms.load(Ordering::Relaxed));
            sleep(Duration::from_millis(pause_ms as u64)).await;
        }
        committed
    }

    /// Returns a random transaction.
    fn transaction(&mut self) -> String {
        if self.is_heavy {
            self.version += 1;
            let (version, part) = (self.version, self.rng.below(8));
            return format!(
                "UPDATE wide SET body = repeat(md5('heavy {version}'), 70), amount = {version} % 100 WHERE id % 8 = {part} AND id <= 40"
            );
        }
        let count = match self.rng.below(10) {
            0..=4 => 1,
            5..=8 => self.rng.between(2, 8),
            _ => self.rng.between(9, 60),
        };
        let mut script = String::from("BEGIN; SET LOCAL deadlock_timeout = '50ms';");
        let mut open = 0;
        for _ in 0..count {
            script += &self.change();
            match self.rng.below(40) {
                0 | 1 => {
                    open += 1;
                    script += &format!("SAVEPOINT s{open};");
                }
                2 | 3 if open > 0 => {
                    script += &format!("ROLLBACK TO s{open};");
                    open -= 1;
                }
                4 if open > 0 => {
                    script += &format!("RELEASE s{open};");
                    open -= 1;
                }
                // Other writers commit meanwhile, so the commit order differs from the start order.
                5 => script += "SELECT pg_sleep(0.02);",
                _ => {}
            }
        }
        script + if self.rng.percent(8) { "ROLLBACK" } else { "COMMIT" }
    }

    /// Returns a random statement.
    fn change(&mut self) -> String {
        self.version += 1;
        match self.rng.below(100) {
            0..=59 => self.change_item(),
            60..=77 => self.change_part(),
            78..=81 => self.change_position(),
            82..=87 => self.change_twin(),
            _ => self.change_wide(),
        }
    }

    /// Changes `parts`: rows also move between partitions.
    fn change_part(&mut self) -> String {
        let (id, version) = (self.rng.between(1, KEYS), self.version);
        let (region, to) = (self.rng.pick(&["a", "b", "c"]), self.rng.pick(&["a", "b", "d"]));
        let note = self.rng.below(30);
        match self.rng.below(8) {
            0..=2 => format!(
                "INSERT INTO parts VALUES ({id}, '{region}', {version}, 'n{note}') ON CONFLICT (id, region)
                    DO UPDATE SET version = {version};"
            ),
            3 => format!("UPDATE parts SET note = 'n{note}', version = {version} WHERE id = {id};"),
            4 => format!(
                "UPDATE parts SET region = '{to}' WHERE id = {id} AND region = '{region}'
                    AND NOT EXISTS (SELECT FROM parts WHERE id = {id} AND region = '{to}');"
            ),
            5 => format!(
                "UPDATE parts SET id = id + 50 WHERE id = {id} AND region = '{region}'
                    AND NOT EXISTS (SELECT FROM parts WHERE id = {id} + 50 AND region = '{region}');"
            ),
            6 => format!("DELETE FROM parts WHERE id = {id} AND region = '{region}';"),
            _ => format!("UPDATE parts SET version = {version} WHERE region = '{region}' AND id % 7 = 0;"),
        }
    }

    /// Changes `pos`: keys move from row to row. The key is checked at the end of the statement or
    /// of the transaction.
    fn change_position(&mut self) -> String {
        let (id, version, note) = (self.rng.between(1, 30), self.version, self.rng.below(30));
        match self.rng.below(6) {
            0 => format!("UPDATE pos SET id = id + 1 WHERE id >= {id};"),
            1 => format!("SET CONSTRAINTS ALL DEFERRED; UPDATE pos SET id = id - 1 WHERE id > {id}; DELETE FROM pos WHERE id = {id} AND version < {version};
                SET CONSTRAINTS ALL IMMEDIATE;"),
            2 => format!("UPDATE pos SET id = {id} + {id} + 1 - id WHERE id IN ({id}, {id} + 1);"),
            3 => format!("INSERT INTO pos SELECT {id}, {version}, 'p{note}' WHERE NOT EXISTS (SELECT FROM pos WHERE id = {id});"),
            4 => format!("DELETE FROM pos WHERE id = {id};"),
            _ => format!("UPDATE pos SET note = 'p{note}', version = {version} WHERE id = {id};"),
        }
    }

    /// Changes `twins`, which has equal rows.
    fn change_twin(&mut self) -> String {
        let (a, to) = (self.rng.below(6), self.rng.below(6));
        let b = self.rng.pick(&["'x'", "'y'", "NULL"]);
        let one = format!("ctid = (SELECT min(ctid) FROM twins WHERE a = {a})");
        match self.rng.below(8) {
            0..=2 => format!(
                "INSERT INTO twins SELECT {a}, {b} FROM generate_series(1, {});",
                self.rng.between(1, 3)
            ),
            3 => format!("DELETE FROM twins WHERE a = {a} AND b IS NOT DISTINCT FROM {b};"),
            4 => format!("UPDATE twins SET a = {to} WHERE {one};"),
            5 => format!("UPDATE twins SET b = {b} WHERE a = {a};"),
            _ => format!("DELETE FROM twins WHERE {one};"),
        }
    }

    /// Changes `wide`: its large values mostly stay unchanged while other columns change.
    fn change_wide(&mut self) -> String {
        let (id, amount) = (self.rng.between(1, 40), self.rng.below(100));
        let mood = self.rng.pick(&["'happy'", "'sad'", "NULL"]);
        let length = self.rng.between(60, 300);
        let body = format!("repeat(md5('{}'), {length})", self.version);
        match self.rng.below(8) {
            0..=2 => format!(
                "INSERT INTO wide VALUES ({id}, {amount}, DEFAULT, {mood}, ARRAY[{mood}, 'so so']::mood[], {mood},
                    ROW({mood}, {amount})::pair, {body}) ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body;"
            ),
            3 => format!("UPDATE wide SET amount = {amount} WHERE id = {id};"),
            4 => format!("UPDATE wide SET mood = {mood}, moods = moods || {mood}::mood WHERE id % 5 = {};", id % 5),
            5 => format!("UPDATE wide SET limited = {mood}, pair = ROW({mood}, {amount})::pair WHERE id = {id};"),
            6 => format!("DELETE FROM wide WHERE id = {id};"),
            _ => format!("UPDATE wide SET body = {body}, amount = {amount} WHERE id BETWEEN {id} AND {id} + 3;"),
        }
    }

    /// Changes `items`.
    fn change_item(&mut self) -> String {
        let (id, to) = (self.rng.between(1, KEYS), self.rng.between(1, KEYS));
        let group = self.rng.below(8);
        match self.rng.below(20) {
            0..=4 => format!("{} ON CONFLICT (id) DO NOTHING;", self.insert(id)),
            5..=6 => {
                let sets = self.sets();
                format!("{} ON CONFLICT (id) DO UPDATE SET {sets};", self.insert(id))
            }
            7..=11 => format!("UPDATE items SET {} WHERE id = {id};", self.sets()),
            12 => format!("UPDATE items SET {} WHERE grp = {group};", self.sets()),
            // An update that changes no value.
            13 => format!("UPDATE items SET amount = amount WHERE id = {id};"),
            14..=15 => format!("DELETE FROM items WHERE id = {id};"),
            16 => format!("DELETE FROM items WHERE id = {id}; {} ON CONFLICT DO NOTHING;", self.insert(id)),
            17 => rename(id, to, ""),
            18 => rename(id, to, &format!(", {}", self.sets())),
            // To an unused key, and back.
            _ => {
                let unused = 1_000_000 + self.rng.below(1_000_000);
                format!("{} {}", rename(id, unused, ""), rename(unused, id, &format!(", {}", self.sets())))
            }
        }
    }

    fn insert(&mut self, id: usize) -> String {
        let (group, amount, label, flag, tags, body) =
            (self.rng.below(8), self.amount(), self.label(), self.flag(), self.tags(), self.body());
        let version = self.version;
        format!(
            "INSERT INTO items VALUES ({id}, {group}, {version}, {amount}, {label}, {flag}, {tags}, {body})"
        )
    }

    fn sets(&mut self) -> String {
        let mut sets = vec![format!("version = {}", self.version)];
        if self.rng.percent(40) {
            sets.push(format!("grp = {}", self.rng.below(8)));
        }
        if self.rng.percent(40) {
            sets.push(format!("amount = {}", self.amount()));
        }
        if self.rng.percent(30) {
            sets.push(format!("label = {}", self.label()));
        }
        if self.rng.percent(30) {
            sets.push(format!("flag = {}", self.flag()));
        }
        if self.rng.percent(20) {
            sets.push(format!("tags = {}", self.tags()));
        }
        if self.rng.percent(5) {
            sets.push(format!("body = {}", self.body()));
        }
        sets.join(", ")
    }

    fn amount(&mut self) -> String {
        if self.rng.percent(10) { "NULL".to_owned() } else { self.rng.below(100).to_string() }
    }

    fn label(&mut self) -> String {
        let letter = self.rng.pick(&["a", "b", "c", "d", "A", "É\\\"\n/"]);
        if self.rng.percent(15) { "NULL".to_owned() } else { format!("'{letter}{}'", self.rng.below(8)) }
    }

    fn flag(&mut self) -> &'static str {
        self.rng.pick(&["true", "false", "NULL"])
    }

    fn tags(&mut self) -> &'static str {
        self.rng.pick(&["NULL", "'{}'", "'{a}'", "'{a,b}'", "'{c,NULL,d}'", "'{\"x y\",a}'"])
    }

    /// Returns a value of `body`. Some are large and stored in TOAST. The stream doesn't contain
    /// them when an update leaves them unchanged.
    fn body(&mut self) -> String {
        match self.rng.below(10) {
            0 => format!("repeat('{:04}', 700)", self.rng.below(10_000)),
            1..=4 => "NULL".to_owned(),
            _ => format!("'body {}'", self.rng.below(100)),
        }
    }
}

/// Returns a statement that changes a key, unless another row has the new one.
fn rename(from: usize, to: usize, sets: &str) -> String {
    format!(
        "UPDATE items SET id = {to}{sets} WHERE id = {from} AND NOT EXISTS (SELECT FROM items WHERE id = {to});"
    )
}
