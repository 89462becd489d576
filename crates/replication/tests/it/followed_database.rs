//! Fixture: a database of its own for each test, followed by a manager with a journal.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{Manager, ManagerConfig, ManagerEvent, ManagerStep, TableChange, TableName};
use forebay_sandbox::Postgres;
use forebay_testkit::{Proxy, eventually, within};
use tokio::sync::Mutex;
use tokio::sync::broadcast::Receiver;

use crate::journal::{self, JournalChange, JournalConsumer, JournalLine, JournalTransaction};

/// A test database, with the journal of its manager.
pub(crate) struct FollowedDatabase<'a> {
    pub(crate) server: &'a Postgres,
    pub(crate) database: String,
    /// A slot belongs to the whole server, so each test has its own.
    pub(crate) slot: String,
    folder: PathBuf,
}

impl<'a> FollowedDatabase<'a> {
    pub(crate) fn new(server: &'a Postgres) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let database = server.create_database("followed").unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("forebay-journal-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder); // left by a killed process with this number
        std::fs::create_dir_all(&folder).unwrap();
        FollowedDatabase { slot: format!("slot_{database}"), server, database, folder }
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
        Manager::start(config, JournalConsumer::open(&self.journal())).unwrap()
    }

    /// Starts a manager and waits until it is ready.
    pub(crate) async fn running(&self) -> Manager {
        let manager = self.start();
        within("the manager is ready", manager.ready()).await.unwrap();
        manager
    }

    /// Starts a manager with this configuration that streams the table `orders`.
    pub(crate) async fn streaming_orders(&self, config: ManagerConfig) -> Manager {
        let manager = self.start_with(config);
        streams(&manager).await;
        self.table(&manager, "orders").await;
        manager
    }

    /// Starts a manager that streams the table `orders`, and returns the gate of its consumer too.
    pub(crate) async fn streaming_orders_with_gate(&self) -> (Manager, Arc<Mutex<()>>) {
        let journal = JournalConsumer::open(&self.journal());
        let gate = journal.gate.clone();
        let manager = Manager::start(self.config(), journal).unwrap();
        streams(&manager).await;
        self.table(&manager, "orders").await;
        (manager, gate)
    }

    /// Follows the first row of the table `orders` with a manager that is then shut down.
    pub(crate) async fn follow_first_order(&self) {
        let manager = self.running().await;
        self.table(&manager, "orders").await;
        self.sql("INSERT INTO orders VALUES (1, 'before')");
        self.eventually_changes(1).await;
        manager.shutdown().await;
    }

    /// Creates a table `id int primary key, note text` and adds it to the manager.
    pub(crate) async fn table(&self, manager: &Manager, name: &str) {
        self.sql(&format!("CREATE TABLE {name} (id int PRIMARY KEY, note text)"));
        within("the table is added", manager.add_table(&TableName::new("public", name))).await.unwrap();
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.server.execute(&self.database, sql).unwrap();
    }

    /// Returns the first column of the first row.
    pub(crate) fn query_value(&self, sql: &str) -> Option<String> {
        self.server.query(&self.database, sql).unwrap().into_iter().next()?.into_iter().next()?
    }

    pub(crate) fn lines(&self) -> Vec<JournalLine> {
        journal::read(&self.journal())
    }

    pub(crate) fn transactions(&self) -> Vec<JournalTransaction> {
        let transaction = |line| match line {
            JournalLine::Transaction(transaction) => Some(transaction),
            _ => None,
        };
        self.lines().into_iter().filter_map(transaction).collect()
    }

    pub(crate) fn changes(&self) -> Vec<JournalChange> {
        self.transactions().into_iter().flat_map(|transaction| transaction.changes).collect()
    }

    /// Returns the reasons of all resets.
    pub(crate) fn resets(&self) -> Vec<String> {
        let reason = |line| match line {
            JournalLine::Reset(reason, _) => Some(reason),
            _ => None,
        };
        self.lines().into_iter().filter_map(reason).collect()
    }

    pub(crate) async fn eventually_changes(&self, count: usize) -> Vec<JournalChange> {
        eventually("the changes are in the journal", count, async || self.changes().len()).await;
        self.changes()
    }

    /// Waits until the journal was reset for these reasons, and the server streams.
    pub(crate) async fn was_reset(&self, manager: &Manager, reasons: &[&str]) {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        eventually("the journal is reset", reasons, async || self.resets()).await;
        streams(manager).await;
    }

    /// Returns whether the slot is active.
    pub(crate) fn slot_is_active(&self) -> bool {
        let slot = &self.slot;
        self.query_value(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"))
            .as_deref()
            == Some("t")
    }
}

impl Drop for FollowedDatabase<'_> {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
        // Frees the slot for other tests. An active one is dropped with the server.
        let slot = &self.slot;
        let drop = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"
        );
        let _busy = self.server.execute("postgres", &drop);
    }
}

/// Waits until the server has confirmed the stream.
pub(crate) async fn streams(manager: &Manager) {
    let streaming = manager.wait_until(|status| status.is_ready() && status.step == ManagerStep::Streaming);
    within("the manager streams", streaming).await.unwrap();
}

/// Waits for an event of a table in `public`.
pub(crate) async fn table_event(events: &mut Receiver<ManagerEvent>, table: &str, change: TableChange) {
    let wanted = ManagerEvent::Table { table: TableName::new("public", table), change };
    within("the table event", async { while events.recv().await.unwrap() != wanted {} }).await;
}

/// Returns a row of `id, note` in the journal's form.
pub(crate) fn row(id: i32, note: &str) -> Vec<Option<String>> {
    vec![Some(id.to_string()), Some(note.to_owned())]
}

pub(crate) fn insert(table: &str, id: i32, note: &str) -> JournalChange {
    JournalChange::Insert(format!("public.{table}"), row(id, note))
}
