//! A database of its own for each test, and a manager that follows it into a journal.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{Manager, ManagerConfig, StackEvent, Step, TableChange, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::{Proxy, eventually, within};
use tokio::sync::broadcast::Receiver;

use crate::journal::{self, Change, Journal, Line, Transaction};

/// A database that is followed.
pub(crate) struct Followed<'a> {
    pub(crate) server: &'a Postgres,
    pub(crate) database: String,
    /// A slot belongs to the whole server, so each test has its own.
    pub(crate) slot: String,
    folder: PathBuf,
}

impl<'a> Followed<'a> {
    pub(crate) fn new(server: &'a Postgres) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let database = server.create_database("followed").unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("forebay-journal-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // of a killed process that had our number
        std::fs::create_dir_all(&folder).unwrap();
        Followed { slot: format!("slot_{database}"), server, database, folder }
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(&self.database)
    }

    pub(crate) fn config(&self) -> ManagerConfig {
        self.config_at(&self.url())
    }

    pub(crate) fn config_at(&self, url: &str) -> ManagerConfig {
        ManagerConfig::new(PostgresConnect::new(url).unwrap()).slot(&self.slot).pool_size(4)
    }

    pub(crate) fn config_through(&self, proxy: &Proxy) -> ManagerConfig {
        self.config_at(&format!("postgres://postgres@{}/{}", proxy.addr(), self.database))
    }

    pub(crate) fn start(&self) -> Manager {
        self.start_with(self.config())
    }

    pub(crate) fn start_with(&self, config: ManagerConfig) -> Manager {
        Manager::start(config, Journal::open(&self.journal())).unwrap()
    }

    /// Starts and waits until changes flow.
    pub(crate) async fn running(&self) -> Manager {
        let manager = self.start();
        within("the manager is ready", manager.ready()).await.unwrap();
        manager
    }

    /// A table `id int primary key, note text` that is followed.
    pub(crate) async fn table(&self, manager: &Manager, name: &str) {
        self.sql(&format!("CREATE TABLE {name} (id int PRIMARY KEY, note text)"));
        within("the table is added", manager.add_table(&TableName::new("public", name))).await.unwrap();
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.server.execute(&self.database, sql).unwrap();
    }

    /// The first column of the first row.
    pub(crate) fn ask(&self, sql: &str) -> Option<String> {
        self.server.query(&self.database, sql).unwrap().into_iter().next()?.into_iter().next()?
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        journal::read(&self.journal())
    }

    pub(crate) fn transactions(&self) -> Vec<Transaction> {
        let transaction = |line| match line {
            Line::Transaction(transaction) => Some(transaction),
            _ => None,
        };
        self.lines().into_iter().filter_map(transaction).collect()
    }

    pub(crate) fn changes(&self) -> Vec<Change> {
        self.transactions().into_iter().flat_map(|transaction| transaction.changes).collect()
    }

    /// Why the journal was started over, each time.
    pub(crate) fn resets(&self) -> Vec<String> {
        let reason = |line| match line {
            Line::Reset(reason, _) => Some(reason),
            _ => None,
        };
        self.lines().into_iter().filter_map(reason).collect()
    }

    pub(crate) async fn eventually_changes(&self, count: usize) -> Vec<Change> {
        eventually("the changes are in the journal", count, async || self.changes().len()).await;
        self.changes()
    }

    /// Waits until the journal was started over for these reasons, and changes flow.
    pub(crate) async fn started_over(&self, manager: &Manager, reasons: &[&str]) {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        eventually("the journal starts over", reasons, async || self.resets()).await;
        streams(manager).await;
    }

    /// Whether the server has a backend that replicates from this slot.
    pub(crate) fn slot_is_active(&self) -> bool {
        let slot = &self.slot;
        self.ask(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'")).as_deref()
            == Some("t")
    }
}

impl Drop for Followed<'_> {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
        // The next test may need the place; what is still in use goes with the server.
        let slot = &self.slot;
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"
        );
        let _busy = self.server.execute("postgres", &drop);
    }
}

/// Waits until the server has confirmed that it streams.
pub(crate) async fn streams(manager: &Manager) {
    let streaming = manager.wait_until(|status| status.is_ready() && status.step == Step::Streaming);
    within("the manager streams", streaming).await.unwrap();
}

/// Waits for news of a table in `public`.
pub(crate) async fn told(events: &mut Receiver<StackEvent>, table: &str, change: TableChange) {
    let wanted = StackEvent::Table { table: TableName::new("public", table), change };
    within("it is told", async { while events.recv().await.unwrap() != wanted {} }).await;
}

/// A row of `id, note` as the journal has it.
pub(crate) fn row(id: i32, note: &str) -> Vec<Option<String>> {
    vec![Some(id.to_string()), Some(note.to_owned())]
}

pub(crate) fn insert(table: &str, id: i32, note: &str) -> Change {
    Change::Insert(format!("public.{table}"), row(id, note))
}
