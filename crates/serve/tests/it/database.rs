//! What a shape asks of Postgres, asked of real ones.

mod builtins;
mod clauses;
mod describe;
mod ends;
mod rows;
mod speed;
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

/// A database of a test's own, and the connections to it.
pub(crate) struct Database {
    pub(crate) postgres: &'static Postgres,
    pub(crate) name: String,
    reservoir: Reservoir<PostgresClient>,
}

impl Database {
    pub(crate) fn new(version: u32, sql: &str) -> Self {
        Database::of(version, "", "postgres", sql)
    }

    /// `options`: of CREATE DATABASE. `user`: who asks; new, if it isn't the superuser.
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

    /// On a server of the test's own.
    pub(crate) fn on(postgres: &'static Postgres, sql: &str) -> Self {
        let name = postgres.create_database("shapes").unwrap();
        let connect = PostgresConnect::new(&postgres.url(&name)).unwrap();
        Database::open(postgres, name, connect, sql)
    }

    fn open(postgres: &'static Postgres, name: String, connect: PostgresConnect, sql: &str) -> Self {
        let config = ReservoirConfig::new(2).checkout_timeout(Duration::from_secs(20));
        let reservoir = Reservoir::start(connect, config, ConnectionLimits::local()).unwrap();
        let database = Database { postgres, name, reservoir };
        database.run(sql);
        database
    }

    /// As the superuser.
    pub(crate) fn run(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.postgres.query(&self.name, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first value, as the superuser.
    pub(crate) fn ask(&self, sql: &str) -> String {
        self.run(sql)[0][0].clone().unwrap_or_else(|| "NULL".to_owned())
    }

    pub(crate) async fn client(&self) -> ConnectionGuard<PostgresClient> {
        within("a connection", self.reservoir.checkout()).await.unwrap()
    }

    pub(crate) async fn describe(&self, table: &str) -> TableDescription {
        let client = self.client().await;
        within("a description", describe(&client, &name(table))).await.unwrap()
    }

    /// The same, by a connection that one has.
    pub(crate) async fn describe_by(&self, client: &PostgresClient, table: &str) -> TableDescription {
        within("a description", describe(client, &name(table))).await.unwrap()
    }

    /// All rows of a table, as messages.
    pub(crate) async fn rows(&self, table: &str, clause: Option<&str>) -> Vec<Value> {
        let table = self.describe(table).await;
        let all = table.all_columns();
        let mut sink = Collected::default();
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

    /// Whether all connections wait for work, outside of transactions.
    pub(crate) fn is_quiet(&self) -> bool {
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
            AND state <> 'idle' AND pid <> pg_backend_pid()";
        self.ask(busy) == "0"
    }
}

/// Of the schema `public`, unless it says another.
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

/// A sink that keeps everything.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) begun: Option<(Snapshot, Lsn)>,
    pub(crate) pieces: Vec<Bytes>,
}

impl Collected {
    pub(crate) fn messages(&self) -> Vec<Value> {
        let text = self.pieces.concat();
        let Some(text) = text.strip_suffix(b",\n") else {
            assert!(text.is_empty(), "it doesn't end with a separator");
            return Vec::new();
        };
        serde_json::from_slice(&[b"[", text, b"]"].concat()).unwrap()
    }
}

impl RowSink for Collected {
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
