//! Tests of descriptions, clauses and snapshots, and the database that they share.

mod builtins;
mod clauses;
mod describe;
mod row_judgement;
mod snapshot_failures;
mod snapshot_rows;
mod snapshot_speed;
mod writers;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use forebay_replication::TableName;
use forebay_replication::pgoutput::{Lsn, Snapshot};
use forebay_replication::reservoir::{
    ConnectionGuard, ConnectionLimits, PostgresClient, PostgresConnect, Reservoir, ReservoirConfig,
};
use forebay_sandbox::Postgres;
use forebay_serve::database::{
    RowSink, SnapshotError, SnapshotQuery, SnapshotSummary, TableDescription, describe, snapshot,
};
use serde_json::Value;

use crate::deadline::within;

/// A database for one test, and connections to it.
pub(crate) struct Database {
    pub(crate) postgres: &'static Postgres,
    pub(crate) name: String,
    reservoir: Reservoir<PostgresClient>,
}

impl Database {
    pub(crate) fn new(version: u32, sql: &str) -> Self {
        Database::of(version, "", "postgres", sql)
    }

    /// Creates a database with these options of CREATE DATABASE. Connections use the role `user`,
    /// which is created unless it is the superuser.
    pub(crate) fn of(version: u32, options: &str, user: &str, sql: &str) -> Self {
        let postgres = Postgres::shared_version(version);
        let mut name = postgres.create_database("shapes").unwrap();
        if !options.is_empty() {
            name.push_str("_special");
            let create = format!("CREATE DATABASE {name} TEMPLATE template0 {options}");
            postgres.execute("postgres", &create).unwrap_or_else(|error| panic!("{create}: {error}"));
        }
        if user != "postgres" {
            postgres.execute("postgres", &format!("CREATE ROLE {user} LOGIN")).unwrap();
        }
        let connect = PostgresConnect::new(&postgres.url_as(user, "", &name)).unwrap();
        Database::open(postgres, name, connect, sql)
    }

    /// Creates a database on a server of one test.
    pub(crate) fn on(postgres: &'static Postgres, sql: &str) -> Self {
        let name = postgres.create_database("shapes").unwrap();
        let connect = PostgresConnect::new(&postgres.url(&name)).unwrap();
        Database::open(postgres, name, connect, sql)
    }

    /// Returns the same database with new connections.
    pub(crate) fn reopened(&self) -> Self {
        let connect = PostgresConnect::new(&self.postgres.url(&self.name)).unwrap();
        Database::open(self.postgres, self.name.clone(), connect, "SELECT 1")
    }

    fn open(postgres: &'static Postgres, name: String, connect: PostgresConnect, sql: &str) -> Self {
        let config = ReservoirConfig::new(2).checkout_timeout(Duration::from_secs(20));
        let reservoir = Reservoir::start(connect, config, ConnectionLimits::local()).unwrap();
        let database = Database { postgres, name, reservoir };
        database.run(sql);
        database
    }

    /// Runs SQL as the superuser, and returns the rows.
    pub(crate) fn run(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.query(&self.name, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs SQL as the superuser, and returns the first value.
    pub(crate) fn value(&self, sql: &str) -> String {
        self.run(sql)[0][0].clone().unwrap_or_else(|| "NULL".to_owned())
    }

    pub(crate) async fn client(&self) -> ConnectionGuard<PostgresClient> {
        within("a connection", self.reservoir.checkout()).await.unwrap()
    }

    pub(crate) async fn describe(&self, table: &str) -> TableDescription {
        let client = self.client().await;
        within("a description", describe(&client, &name(table))).await.unwrap()
    }

    /// Describes a table with this connection.
    pub(crate) async fn describe_by(&self, client: &PostgresClient, table: &str) -> TableDescription {
        within("a description", describe(client, &name(table))).await.unwrap()
    }

    /// Returns the rows of a table as messages.
    pub(crate) async fn rows(&self, table: &str, clause: Option<&str>) -> Vec<Value> {
        let table = self.describe(table).await;
        let all = table.all_columns();
        let mut sink = CollectingSink::default();
        self.read(&query(&table, &all, clause), &mut sink).await.unwrap();
        sink.messages()
    }

    pub(crate) async fn read<S: RowSink>(
        &self,
        query: &SnapshotQuery<'_>,
        sink: &mut S,
    ) -> Result<SnapshotSummary, SnapshotError<S::Error>> {
        let mut client = self.client().await;
        within("a snapshot", snapshot(&mut client, query, sink)).await
    }

    /// Returns whether all connections are idle, outside of transactions.
    pub(crate) fn is_quiet(&self) -> bool {
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
            AND state <> 'idle' AND pid <> pg_backend_pid()";
        self.value(busy) == "0"
    }
}

/// Returns the name of a table, in the schema `public` by default.
pub(crate) fn name(table: &str) -> TableName {
    let (schema, name) = table.split_once('.').unwrap_or(("public", table));
    TableName::new(schema, name)
}

pub(crate) fn query<'a>(
    table: &'a TableDescription,
    selected: &'a [usize],
    clause: Option<&'a str>,
) -> SnapshotQuery<'a> {
    SnapshotQuery { table, selected, clause, analyses: false, is_empty: false, page: None, timeout: None }
}

/// A sink that collects all messages.
#[derive(Debug, Default)]
pub(crate) struct CollectingSink {
    pub(crate) begun: Option<(Snapshot, Lsn)>,
    pub(crate) pieces: Vec<Bytes>,
}

impl CollectingSink {
    pub(crate) fn messages(&self) -> Vec<Value> {
        let text = self.pieces.concat();
        let Some(text) = text.strip_suffix(b",\n") else {
            assert!(text.is_empty(), "it doesn't end with a separator");
            return Vec::new();
        };
        serde_json::from_slice(&[b"[", text, b"]"].concat()).unwrap()
    }
}

impl RowSink for CollectingSink {
    type Error = Infallible;

    async fn begin(&mut self, snapshot: &Snapshot, lsn: Lsn) -> Result<(), Infallible> {
        assert!(self.pieces.is_empty(), "rows came first");
        self.begun = Some((snapshot.clone(), lsn));
        Ok(())
    }

    async fn rows(&mut self, messages: Bytes) -> Result<(), Infallible> {
        assert!(self.begun.is_some() && messages.ends_with(b",\n"));
        self.pieces.push(messages);
        Ok(())
    }
}
