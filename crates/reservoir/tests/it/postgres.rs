//! Connections to real Postgres servers, and to servers of other protocols.

mod certificates;
mod ends;
mod faults;
mod refusals;
mod sessions;
mod starts;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_reservoir::{Connect, ConnectionError, PostgresClient, PostgresConnect};
use forebay_testkit::sandbox::Postgres;
use forebay_testkit::within;
use tokio_postgres::SimpleQueryMessage;

/// Dials as the reservoir does.
async fn open_by(connect: &PostgresConnect) -> Result<PostgresClient, ConnectionError> {
    within("a connection", async { connect.connect(connect.credentials().await?).await }).await
}

async fn open(connection_string: &str) -> Result<PostgresClient, ConnectionError> {
    open_by(&PostgresConnect::new(connection_string).unwrap()).await
}

/// Returns the first field of the last row.
async fn ask(client: &PostgresClient, sql: &str) -> String {
    let messages =
        within(sql, client.simple_query(sql)).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let field = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
        _ => None,
    });
    field.unwrap_or_else(|| panic!("{sql}: no row"))
}

/// Returns how many connections with this application name the server has.
async fn count(watcher: &PostgresClient, application_name: &str) -> String {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application_name}'");
    ask(watcher, &sql).await
}

/// Runs statements as superuser.
fn run(postgres: &Postgres, statements: &[&str]) {
    for sql in statements {
        postgres.execute("postgres", sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

/// A temporary file; removed on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(text: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("reservoir-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        TempFile(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.0);
    }
}
