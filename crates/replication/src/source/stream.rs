//! Streaming: passes messages to the consumer, and sends durable positions back to the server.
//!
//! Invariant: status updates are sent before the server's timeout, however long the consumer takes.
//! They acknowledge only durable positions.
//! Enforced by: [`send_statuses`] runs concurrently with each call of the consumer;
//! `core/progress.rs` chooses the positions.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_pgoutput::Lsn;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::batch::{DecodeState, MessageBatch};
use super::clock::clock;
use super::setup::ServerInfo;
use super::{Gauges, SourceCommand, SourceContext, SourceEnd};
use crate::consumer::{Consumer, DurablePosition};
use crate::core::machine::{AttemptId, Event};
use crate::core::progress::{ReceiveProgress, StandbyFeedback};
use crate::error::{ReplicationError, SourceOperation};
use crate::sql;
use crate::wire::{ReplicationConnection, ReplicationStream, StatusSender};

/// Minimum time after which a silent server counts as dead. If twice `wal_sender_timeout` is
/// longer, that is used.
const MIN_SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a silent server without `wal_sender_timeout` counts as dead. It may be busy for
/// long.
const DEFAULT_SILENCE_TIMEOUT: Duration = Duration::from_secs(600);

/// Starts replication, and streams until the manager closes the connection or it fails.
pub(super) async fn run<C: Consumer>(
    attempt: AttemptId,
    context: Arc<SourceContext<C>>,
    mut commands: mpsc::Receiver<SourceCommand>,
    connection: ReplicationConnection,
    server: &ServerInfo,
    from: Lsn,
) -> Result<(), SourceEnd> {
    let config = &context.config;
    let publications = sql::name(&config.publication);
    let options = [("proto_version", "1"), ("publication_names", publications.as_str())];
    let starting = connection.start_replication(&config.slot, from, &options);
    let stream = tokio::select! {
        started = tokio::time::timeout(super::REPLY_TIMEOUT, starting) => {
            let started = started.map_err(|_| ReplicationError::NoReply { operation: SourceOperation::StartStreaming, timeout: super::REPLY_TIMEOUT })?;
            started.map_err(|error| ReplicationError::wire(SourceOperation::StartStreaming, error))?
        }
        () = super::close_requested(&mut commands) => return Err(SourceEnd::Closed),
    };
    context.events.send(Event::Confirmed(attempt)).await.map_err(|_| SourceEnd::Closed)?;
    context.gauges.position.set(from);
    let durable = DurablePosition::new(from);
    context.consumer.lock().await.start(durable.clone());
    let mut driver = StreamDriver {
        stream,
        decoding: DecodeState::new(from),
        feedback: StandbyFeedback::new(from, server.sender_timeout, Instant::now().into_std()),
        durable,
        received_at: Instant::now(),
        silence_timeout: server
            .sender_timeout
            .map_or(DEFAULT_SILENCE_TIMEOUT, |timeout| (timeout * 2).max(MIN_SILENCE_TIMEOUT)),
        from,
        has_advanced: false,
        attempt,
    };
    let ended = driver.stream(&context, &mut commands).await;
    if matches!(ended, Err(SourceEnd::Closed)) {
        // The consumer stops writing before the close releases the lock, so that the next instance
        // reads a complete store.
        context.consumer.lock().await.stop().await;
        driver.close().await;
    }
    ended
}

/// A running stream.
struct StreamDriver {
    stream: ReplicationStream,
    decoding: DecodeState,
    feedback: StandbyFeedback,
    durable: DurablePosition,
    /// When the server last sent something.
    received_at: Instant,
    silence_timeout: Duration,
    from: Lsn,
    /// Whether `Event::DurableAdvanced` was sent.
    has_advanced: bool,
    attempt: AttemptId,
}

impl StreamDriver {
    async fn stream<C: Consumer>(
        &mut self,
        context: &SourceContext<C>,
        commands: &mut mpsc::Receiver<SourceCommand>,
    ) -> Result<(), SourceEnd> {
        let mut timer = pin!(sleep_until(Instant::now()));
        loop {
            self.feedback.on_durable(self.durable.get());
            if !self.has_advanced && self.feedback.durable() > self.from {
                self.has_advanced = true;
                context
                    .events
                    .send(Event::DurableAdvanced(self.attempt))
                    .await
                    .map_err(|_| SourceEnd::Closed)?;
            }
            let due = self.feedback.due(&self.decoding.progress).into();
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(SourceCommand::Close) | None => return Err(SourceEnd::Closed),
                    Some(SourceCommand::CheckLock | SourceCommand::PrepareConsumer | SourceCommand::StartStreaming) => {}
                },
                () = &mut timer => self.send_status(context).await?,
                readable = self.stream.readable() => {
                    readable.map_err(|error| ReplicationError::wire(SourceOperation::Stream, error))?;
                    self.received_at = Instant::now();
                    self.deliver(context).await?;
                    // The consumer's time doesn't count as silence of the server.
                    self.received_at = Instant::now();
                }
            }
        }
    }

    /// Passes the received messages to the consumer, and sends status updates meanwhile.
    async fn deliver<C: Consumer>(&mut self, context: &SourceContext<C>) -> Result<(), ReplicationError> {
        let mut progress = self.decoding.progress;
        // The received messages aren't decoded yet; their lag starts now at the latest.
        context.gauges.set_lag_start(progress.behind_since(self.durable.get()).unwrap_or_else(clock));
        let (frames, sender) = self.stream.split();
        let mut batch = MessageBatch::new(frames, &mut self.decoding);
        let receiving = async { context.consumer.lock().await.receive(&mut batch).await };
        tokio::select! {
            biased;
            received = receiving => received?,
            error = send_statuses(&mut self.feedback, &mut progress, sender, &self.durable) => return Err(error),
        }
        batch.finish()?;
        self.update_gauges(&context.gauges);
        Ok(())
    }

    fn update_gauges(&mut self, gauges: &Gauges) {
        self.feedback.on_durable(self.durable.get());
        let durable = self.feedback.durable();
        gauges.position.set(self.decoding.progress.received);
        gauges.durable.store(durable.0, Ordering::Relaxed);
        gauges.set_transactions(self.decoding.transactions);
        match self.decoding.progress.behind_since(durable) {
            Some(since) => gauges.set_lag_start(since),
            None => gauges.clear_lag(),
        }
    }

    /// Offers an idle position to the consumer if one is due, then sends a status update. Fails if
    /// the server has been silent for too long.
    async fn send_status<C: Consumer>(&mut self, context: &SourceContext<C>) -> Result<(), ReplicationError> {
        let silence = self.received_at.elapsed();
        if silence > self.silence_timeout {
            return Err(ReplicationError::Silent { silence });
        }
        if let Some(lsn) = self.feedback.idle_position(&self.decoding.progress, Instant::now().into_std()) {
            let mut progress = self.decoding.progress;
            let (_, sender) = self.stream.split();
            let advancing = async { context.consumer.lock().await.advance(lsn).await };
            tokio::select! {
                biased;
                advanced = advancing => advanced?,
                error = send_statuses(&mut self.feedback, &mut progress, sender, &self.durable) => return Err(error),
            }
            self.received_at = Instant::now();
        }
        self.update_gauges(&context.gauges);
        let now = Instant::now().into_std();
        let mut status = self.feedback.status(&mut self.decoding.progress, now, clock());
        status.reply_requested = silence > self.feedback.interval();
        let (_, mut sender) = self.stream.split();
        sender.send(status).await.map_err(|error| ReplicationError::wire(SourceOperation::Stream, error))
    }

    /// Sends a last status update, so that durable changes aren't sent again, and closes the
    /// stream.
    async fn close(mut self) {
        self.feedback.on_durable(self.durable.get());
        let now = Instant::now().into_std();
        let status = self.feedback.status(&mut self.decoding.progress, now, clock());
        let (_, mut sender) = self.stream.split();
        if sender.send(status).await.is_ok() {
            self.stream.close().await;
        }
    }
}

/// Sends status updates whenever they are due, until that fails.
async fn send_statuses(
    feedback: &mut StandbyFeedback,
    progress: &mut ReceiveProgress,
    mut sender: StatusSender<'_>,
    durable: &DurablePosition,
) -> ReplicationError {
    loop {
        sleep_until(feedback.due(progress).into()).await;
        feedback.on_durable(durable.get());
        let status = feedback.status(progress, Instant::now().into_std(), clock());
        if let Err(error) = sender.send(status).await {
            return ReplicationError::wire(SourceOperation::Stream, error);
        }
    }
}
