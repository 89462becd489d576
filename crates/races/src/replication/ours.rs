//! `forebay_replication`: a complete manager, with a consumer that decodes everything and stores
//! nothing.

use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_replication::pgoutput::{Lsn, PgOutputMessage};
use forebay_replication::reservoir::PostgresConnect;
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, ManagerConfig, MessageBatch, ResetReason,
    Timeline,
};
use tokio::sync::oneshot;

use super::{DrainResult, DrainTask, PUBLICATION};
use crate::machine;

pub(super) async fn drain(task: &DrainTask) -> Result<DrainResult> {
    let (done, drained) = oneshot::channel();
    let null = NullConsumer {
        end: Lsn(task.end),
        durable: None,
        started: (Instant::now(), Duration::ZERO),
        done: Some(done),
        rows: 0,
    };
    let connect = PostgresConnect::new(&task.url)?;
    let config = ManagerConfig::new(connect).slot(&task.slot).publication(PUBLICATION).pool_size(2);
    let manager = Manager::start(config, null)?;
    let (drained, rows) = drained.await?;
    manager.shutdown().await;
    task.check("forebay", rows)?;
    Ok(drained)
}

/// Consumer that counts the rows, stores nothing, and reports every commit as durable at once.
struct NullConsumer {
    /// Draining ends with the first commit that ends at or after this LSN.
    end: Lsn,
    /// Position to advance. `None` until the stream starts.
    durable: Option<DurablePosition>,
    /// Time at which the stream started, and the CPU time of this process until then.
    started: (Instant, Duration),
    /// Receives the result and the number of rows. `None` once they are sent.
    done: Option<oneshot::Sender<(DrainResult, u64)>>,
    /// Number of inserts and updates so far.
    rows: u64,
}

impl Consumer for NullConsumer {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        Ok(None)
    }

    async fn reset(&mut self, _: ResetReason, _: Bookmark) -> Result<(), ConsumerError> {
        Ok(())
    }

    async fn record_timeline(&mut self, _: Timeline) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn start(&mut self, durable: DurablePosition) {
        self.started = (Instant::now(), machine::cpu_time());
        self.durable = Some(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        let mut last = None;
        while let Some(message) = batch.next() {
            match message {
                PgOutputMessage::Insert(_) | PgOutputMessage::Update(_) => self.rows += 1,
                PgOutputMessage::Commit(commit) => last = Some(commit.end_lsn),
                _ => {}
            }
        }
        if let (Some(last), Some(durable)) = (last, &self.durable) {
            durable.advance(last);
            if last >= self.end
                && let Some(done) = self.done.take()
            {
                let (started, cpu) = self.started;
                let drained = DrainResult { wall: started.elapsed(), cpu: Some(machine::cpu_time() - cpu) };
                // Fails only if `drain` was dropped.
                let _late = done.send((drained, self.rows));
            }
        }
        Ok(())
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.durable.iter().for_each(|durable| durable.advance(lsn));
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }
}
