//! The stream: what comes goes to the consumer, what is durable goes back to the server.
//!
//! Invariant: the server hears from us in time, whatever the consumer does; it is told only of what is durable.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_pgoutput::Lsn;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::batch::{Batch, Reading};
use super::clock::clock;
use super::setup::Server;
use super::{Ended, Gauges, Order, Setting};
use crate::consumer::{Consumer, Durable};
use crate::core::machine::{Attempt, Event};
use crate::core::progress::{Feedback, Position};
use crate::error::{Doing, Failure};
use crate::sql;
use crate::wire::{Answer, Copy, Wire};

/// A server that says nothing for so long, though it is asked to, is gone; or longer, if its own timeout is.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// One without a timeout of its own may be busy for long, and doesn't say so.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

pub(super) async fn run<C: Consumer>(
    attempt: Attempt,
    setting: Arc<Setting<C>>,
    mut orders: mpsc::Receiver<Order>,
    wire: Wire,
    server: &Server,
    from: Lsn,
) -> Result<(), Ended> {
    let config = &setting.config;
    let publications = sql::name(&config.publication);
    let options = [("proto_version", "1"), ("publication_names", publications.as_str())];
    let starting = wire.start_replication(&config.slot, from, &options);
    let copy = tokio::select! {
        started = tokio::time::timeout(super::ANSWER, starting) => {
            let started = started.map_err(|_| Failure::NoAnswer { doing: Doing::Starting, after: super::ANSWER })?;
            started.map_err(|error| Failure::wire(Doing::Starting, error))?
        }
        () = super::told_to_close(&mut orders) => return Err(Ended::Told),
    };
    setting.events.send(Event::Confirmed(attempt)).await.map_err(|_| Ended::Told)?;
    let durable = Durable::new(from);
    setting.consumer.lock().await.start(durable.clone());
    let mut stream = Stream {
        copy,
        reading: Reading::new(from),
        feedback: Feedback::new(from, server.sender_timeout, Instant::now().into_std()),
        durable,
        heard_at: Instant::now(),
        patience: server.sender_timeout.map_or(MOST_PATIENCE, |timeout| (timeout * 2).max(LEAST_PATIENCE)),
        from,
        is_flowing: false,
        attempt,
    };
    let ended = stream.follow(&setting, &mut orders).await;
    if matches!(ended, Err(Ended::Told)) {
        // While the lock is ours: whoever takes over finds what this one has written, and nothing comes after that.
        setting.consumer.lock().await.stop().await;
        stream.say_goodbye().await;
    }
    ended
}

struct Stream {
    copy: Copy,
    reading: Reading,
    feedback: Feedback,
    durable: Durable,
    heard_at: Instant,
    patience: Duration,
    from: Lsn,
    /// Whether something has become durable, and the manager knows.
    is_flowing: bool,
    attempt: Attempt,
}

impl Stream {
    async fn follow<C: Consumer>(
        &mut self,
        setting: &Setting<C>,
        orders: &mut mpsc::Receiver<Order>,
    ) -> Result<(), Ended> {
        let mut timer = pin!(sleep_until(Instant::now()));
        loop {
            self.feedback.on_durable(self.durable.get());
            if !self.is_flowing && self.feedback.durable() > self.from {
                self.is_flowing = true;
                setting.events.send(Event::Flowing(self.attempt)).await.map_err(|_| Ended::Told)?;
            }
            let due = self.feedback.due(&self.reading.position).into();
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::Close) | None => return Err(Ended::Told),
                    Some(Order::CheckLock | Order::PrepareConsumer | Order::StartStreaming) => {}
                },
                () = &mut timer => self.tell(setting).await?,
                filled = self.copy.filled() => {
                    filled.map_err(|error| Failure::wire(Doing::Streaming, error))?;
                    self.heard_at = Instant::now();
                    self.hand_over(setting).await?;
                    // However long the consumer took, that wasn't the server's silence.
                    self.heard_at = Instant::now();
                }
            }
        }
    }

    /// Gives the consumer what has come, and keeps the server informed while it takes its time.
    async fn hand_over<C: Consumer>(&mut self, setting: &Setting<C>) -> Result<(), Failure> {
        let mut position = self.reading.position;
        // What has come is unread until the consumer asks for it: it is late at least since now.
        setting.gauges.fall_behind(position.behind_since(self.durable.get()).unwrap_or_else(clock));
        let (frames, answer) = self.copy.split();
        let mut batch = Batch::new(frames, &mut self.reading);
        let receiving = async { setting.consumer.lock().await.receive(&mut batch).await };
        tokio::select! {
            biased;
            received = receiving => received?,
            failure = keep_telling(&mut self.feedback, &mut position, answer, &self.durable) => return Err(failure),
        }
        batch.end()?;
        self.show(&setting.gauges);
        Ok(())
    }

    fn show(&mut self, gauges: &Gauges) {
        self.feedback.on_durable(self.durable.get());
        let durable = self.feedback.durable();
        gauges.received.store(self.reading.position.received.0, Ordering::Relaxed);
        gauges.durable.store(durable.0, Ordering::Relaxed);
        gauges.transactions.store(self.reading.transactions, Ordering::Relaxed);
        match self.reading.position.behind_since(durable) {
            Some(since) => gauges.fall_behind(since),
            None => gauges.catch_up(),
        }
    }

    /// It is time that the server hears from us.
    async fn tell<C: Consumer>(&mut self, setting: &Setting<C>) -> Result<(), Failure> {
        let silent = self.heard_at.elapsed();
        if silent > self.patience {
            return Err(Failure::Silent { silent });
        }
        if let Some(lsn) = self.feedback.idle_position(&self.reading.position, Instant::now().into_std()) {
            let mut position = self.reading.position;
            let (_, answer) = self.copy.split();
            let advancing = async { setting.consumer.lock().await.advance(lsn).await };
            tokio::select! {
                biased;
                advanced = advancing => advanced?,
                failure = keep_telling(&mut self.feedback, &mut position, answer, &self.durable) => return Err(failure),
            }
            self.heard_at = Instant::now();
        }
        self.show(&setting.gauges);
        let wants_reply = silent > self.feedback.silence();
        let now = Instant::now().into_std();
        let status = self.feedback.tell(&mut self.reading.position, now, clock(), wants_reply);
        let (_, mut answer) = self.copy.split();
        answer.status(status).await.map_err(|error| Failure::wire(Doing::Streaming, error))
    }

    /// What is durable by now needn't come again.
    async fn say_goodbye(mut self) {
        self.feedback.on_durable(self.durable.get());
        let now = Instant::now().into_std();
        let status = self.feedback.tell(&mut self.reading.position, now, clock(), false);
        let (_, mut answer) = self.copy.split();
        if answer.status(status).await.is_ok() {
            self.copy.close().await;
        }
    }
}

/// Tells the server what is durable, again and again, until that fails.
async fn keep_telling(
    feedback: &mut Feedback,
    position: &mut Position,
    mut answer: Answer<'_>,
    durable: &Durable,
) -> Failure {
    loop {
        sleep_until(feedback.due(position).into()).await;
        feedback.on_durable(durable.get());
        let status = feedback.tell(position, Instant::now().into_std(), clock(), false);
        if let Err(error) = answer.status(status).await {
            return Failure::wire(Doing::Streaming, error);
        }
    }
}
