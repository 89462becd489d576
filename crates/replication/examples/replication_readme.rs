//! The example of the README, compiled and run; `tests/readme.rs` makes sure that they are the same.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::mpsc::{SyncSender, sync_channel};

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Batch, Bookmark, Consumer, ConsumerError, Durable, Manager, ManagerConfig, ResetReason, TableName,
    Timeline,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = forebay_sandbox::Postgres::start()?;
    server.execute("postgres", "CREATE TABLE orders (id int PRIMARY KEY, state text)")?;

    let connect = PostgresConnect::new(&server.url("postgres"))?;
    let (seen, changes) = sync_channel(16);
    let manager =
        Manager::start(ManagerConfig::new(connect), Printer { seen, bookmark: None, durable: None })?;
    manager.ready().await?;
    manager.add_table(&TableName::new("public", "orders")).await?;

    server.execute("postgres", "INSERT INTO orders VALUES (1, 'new')")?;
    let change = tokio::task::spawn_blocking(move || changes.recv()).await??;
    println!("{change}");
    assert!(change.starts_with("Insert"));
    manager.shutdown_and_drop().await;
    Ok(())
}

/// Keeps its bookmark in memory, so every start is a first one; yours writes it to disk with the changes.
struct Printer {
    seen: SyncSender<String>,
    bookmark: Option<Bookmark>,
    durable: Option<Durable>,
}

impl Consumer for Printer {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(self.bookmark) // where to go on; `None`: a first start
    }

    async fn reset(&mut self, _why: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.bookmark = Some(begin); // what was before is void
        Ok(())
    }

    async fn adopt(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.bookmark.iter_mut().for_each(|bookmark| bookmark.timeline = timeline);
        Ok(())
    }

    fn start(&mut self, durable: Durable) {
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut Batch<'_>) -> Result<(), ConsumerError> {
        while let Some(message) = batch.next() {
            match message {
                PgOutputMessage::Commit(commit) => self.advance(commit.end_lsn).await?, // durable: the server may forget it
                PgOutputMessage::Begin(_) | PgOutputMessage::Relation(_) => {} // where a transaction begins, and what its rows look like
                change => self.seen.try_send(format!("{change:?}")).map_err(ConsumerError::retry)?,
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
