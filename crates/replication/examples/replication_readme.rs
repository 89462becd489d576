//! The README's example as a program. `tests/readme.rs` checks that both are the same.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::sync::mpsc::{SyncSender, sync_channel};

use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, ManagerConfig, MessageBatch, ResetReason,
    TableName, Timeline,
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

/// A consumer that prints changes. It keeps its bookmark in memory, so every start is a first one.
/// Yours writes it to disk together with the changes.
struct Printer {
    seen: SyncSender<String>,
    bookmark: Option<Bookmark>,
    durable: Option<DurablePosition>,
}

impl Consumer for Printer {
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
                PgOutputMessage::Commit(commit) => self.advance(commit.end_lsn).await?, // now durable, so the manager acknowledges it
                PgOutputMessage::Begin(_) | PgOutputMessage::Relation(_) => {} // start of a transaction, columns of a table
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
