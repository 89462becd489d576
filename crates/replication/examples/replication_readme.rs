//! The example of the README. `tests/readme.rs` compares both.
//!
//! ```text
//! export DATABASE_URL=postgres://postgres:secret@127.0.0.1/postgres
//! cargo run -p forebay-replication --example replication_readme
//! ```
//!
//! To get a server:
//! `docker run --rm -p 5432:5432 -e POSTGRES_PASSWORD=secret postgres -c wal_level=logical`.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, ManagerConfig, MessageBatch, ResetReason,
    TableName, Timeline,
};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres:secret@127.0.0.1/postgres")?;
    let database = ManagerConfig::new(PostgresConnect::new(&url)?).slot("example").publication("example");
    let (changes, mut received) = mpsc::channel(16);
    let manager = Manager::start(database, ChangeSender { changes, bookmark: None, durable: None })?;
    manager.ready().await?;

    let client = manager.admin().await?;
    client.batch_execute("CREATE TABLE IF NOT EXISTS example_orders (id int, state text)").await?;
    manager.add_table(&TableName::new("public", "example_orders")).await?;
    client.batch_execute("INSERT INTO example_orders VALUES (1, 'new')").await?;
    let change = received.recv().await.ok_or("the consumer has ended")?;
    println!("{change}"); // kinds and lengths, never values
    assert!(change.starts_with("Insert"));

    client.batch_execute("DROP TABLE example_orders").await?;
    drop(client);
    manager.shutdown_and_drop().await; // drops slot and publication; usually it is shutdown()
    Ok(())
}

/// A consumer that sends changes to a channel. It keeps its bookmark in memory, so every start is a
/// first one. Yours writes it to disk together with the changes.
struct ChangeSender {
    changes: mpsc::Sender<String>,
    bookmark: Option<Bookmark>,
    durable: Option<DurablePosition>,
}

impl Consumer for ChangeSender {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(self.bookmark) // where to continue; `None`: a first start
    }

    async fn reset(&mut self, _why: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.bookmark = Some(begin); // earlier changes are discarded
        Ok(())
    }

    async fn record_timeline(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.bookmark.iter_mut().for_each(|bookmark| bookmark.timeline = timeline);
        Ok(())
    }

    fn start(&mut self, durable: DurablePosition) {
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        while let Some(message) = batch.next() {
            match message {
                PgOutputMessage::Commit(commit) => self.advance(commit.end_lsn).await?, // now durable, so acknowledged
                PgOutputMessage::Begin(_) | PgOutputMessage::Relation(_) => {} // start of a transaction, columns
                change => self.changes.send(format!("{change:?}")).await.map_err(ConsumerError::retry)?,
            }
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.bookmark.iter_mut().for_each(|bookmark| bookmark.durable = lsn);
        self.durable.iter().for_each(|durable| durable.advance(lsn));
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}
