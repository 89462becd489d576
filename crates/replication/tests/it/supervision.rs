//! Failures restart only the replication connection: consumer and pools stay.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use forebay_replication::pgoutput::Lsn;
use forebay_replication::{
    Bookmark, Consumer, ConsumerError, DurablePosition, Manager, ManagerEvent, ManagerPhase, ManagerStep,
    MessageBatch, NotReady, ReadyCondition, ResetReason, Timeline,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};
use parking_lot::Mutex;
use tokio::sync::{broadcast, oneshot};

use crate::followed_database::{FollowedDatabase, insert};
use crate::journal::{JournalChange, JournalConsumer};

/// A method of the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConsumerCall {
    Bookmark,
    Reset,
    Receive,
    Advance,
    Stop,
    Checkpoint,
}

/// What happens before or instead of the journal's own method.
pub(crate) enum ScriptedAction {
    Fail(ConsumerError),
    Panic,
    Run(Box<dyn FnOnce() + Send>),
    Wait(Duration),
    WaitForever,
    /// Waits until the other end of the channel is dropped.
    WaitUntilDropped(oneshot::Receiver<()>),
}

/// Actions for the next calls. Each runs once, in the given order.
#[derive(Clone, Default)]
pub(crate) struct ConsumerScript(Arc<Mutex<VecDeque<(ConsumerCall, ScriptedAction)>>>);

impl ConsumerScript {
    pub(crate) fn then(&self, call: ConsumerCall, action: ScriptedAction) -> &Self {
        self.0.lock().push_back((call, action));
        self
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.lock().is_empty()
    }

    async fn play(&self, call: ConsumerCall) -> Result<(), ConsumerError> {
        let action = {
            let mut script = self.0.lock();
            let at = script.iter().position(|(scripted, _)| *scripted == call);
            at.and_then(|at| script.remove(at))
        };
        match action {
            None => Ok(()),
            Some((_, ScriptedAction::Fail(error))) => Err(error),
            Some((_, ScriptedAction::Panic)) => panic!("requested by the test"),
            Some((_, ScriptedAction::Run(run))) => {
                run();
                Ok(())
            }
            Some((_, ScriptedAction::Wait(time))) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Some((_, ScriptedAction::WaitForever)) => std::future::pending().await,
            Some((_, ScriptedAction::WaitUntilDropped(end))) => {
                let _dropped = end.await;
                Ok(())
            }
        }
    }
}

/// A journal whose calls follow a script.
pub(crate) struct ScriptedConsumer {
    journal: JournalConsumer,
    script: ConsumerScript,
}

impl ScriptedConsumer {
    pub(crate) fn new(followed: &FollowedDatabase<'_>, script: &ConsumerScript) -> Self {
        ScriptedConsumer { journal: JournalConsumer::open(&followed.journal()), script: script.clone() }
    }
}

impl Consumer for ScriptedConsumer {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        self.script.play(ConsumerCall::Bookmark).await?;
        self.journal.bookmark().await
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.script.play(ConsumerCall::Reset).await?;
        self.journal.reset(reason, begin).await
    }

    async fn record_timeline(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.journal.record_timeline(timeline).await
    }

    fn start(&mut self, durable: DurablePosition) {
        self.journal.start(durable);
    }

    async fn receive(&mut self, batch: &mut MessageBatch<'_>) -> Result<(), ConsumerError> {
        self.script.play(ConsumerCall::Receive).await?;
        self.journal.receive(batch).await
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.script.play(ConsumerCall::Advance).await?;
        self.journal.advance(lsn).await
    }

    async fn stop(&mut self) {
        let _infallible = self.script.play(ConsumerCall::Stop).await;
        self.journal.stop().await;
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        self.script.play(ConsumerCall::Checkpoint).await?;
        self.journal.checkpoint().await
    }
}

fn start(followed: &FollowedDatabase<'_>, script: &ConsumerScript) -> Manager {
    Manager::start(followed.config(), ScriptedConsumer::new(followed, script)).unwrap()
}

/// Starts a manager with a table `orders` that has one row.
async fn running(followed: &FollowedDatabase<'_>, script: &ConsumerScript) -> Manager {
    let manager = start(followed, script);
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager
}

fn orders(ids: impl IntoIterator<Item = i32>) -> Vec<JournalChange> {
    ids.into_iter().map(|id| insert("orders", id, if id == 1 { "before" } else { "after" })).collect()
}

async fn next(events: &mut broadcast::Receiver<ManagerEvent>) -> ManagerEvent {
    within("an event", events.recv()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_consumer_restarts_the_connection_without_loss_or_repetition() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let (mut events, before) = (manager.events(), manager.positions().backend_pid);
    script.then(ConsumerCall::Receive, ScriptedAction::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after'), (3, 'after')");
    followed.sql("INSERT INTO orders VALUES (4, 'after')");
    assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "panic" });
    let status = manager.status();
    assert!(status.trouble.is_some_and(|why| why.contains("a bug") && why.contains("requested by the test")));
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    assert_eq!(followed.eventually_changes(4).await, orders(1..=4));
    assert_ne!(manager.positions().backend_pid, before);
    followed.sql("INSERT INTO orders VALUES (5, 'after')");
    assert_eq!(followed.eventually_changes(5).await, orders(1..=5));
    assert_eq!(followed.resets(), ["first"]);
    assert_eq!(manager.status().trouble, None);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_interrupted_by_a_panic_is_sent_again_from_its_start() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    // The transaction needs several reads.
    for _ in 0..3 {
        script.then(ConsumerCall::Receive, ScriptedAction::Run(Box::new(|| {})));
    }
    script.then(ConsumerCall::Receive, ScriptedAction::Panic);
    followed.sql("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(2, 3001) n");
    followed.sql("INSERT INTO orders VALUES (3002, 'after')");
    let changes = followed.eventually_changes(3002).await;
    assert!(script.is_done(), "the panic happened");
    let expected = (2..=3001).map(|id| insert("orders", id, &"x".repeat(1000)));
    assert!(changes[1..3001].iter().cloned().eq(expected));
    assert_eq!(changes[3001], insert("orders", 3002, "after"));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_panics_within_a_minute_halt_the_manager_until_an_operator_retries() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    for _ in 0..5 {
        script.then(ConsumerCall::Receive, ScriptedAction::Panic);
    }
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    for _ in 0..4 {
        assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "panic" });
        // Instead of a backoff of 1, 2, 4 and 8 s.
        manager.retry().await.unwrap();
        assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    }
    let ManagerEvent::Halted { reason: "panic", why } = next(&mut events).await else {
        panic!("the fifth panic halts the manager")
    };
    assert!(why.contains("a bug") && why.contains("requested by the test"), "{why}");
    assert_eq!(manager.status().phase, ManagerPhase::Halted);
    assert_eq!(manager.ready().await, Err(NotReady::Halted { why: why.clone() }));
    assert_eq!(manager.status().trouble, Some(why));
    eventually("the slot is inactive", false, async || followed.slot_is_active()).await;
    manager.retry().await.unwrap();
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_during_setup_is_retried() {
    for call in [ConsumerCall::Bookmark, ConsumerCall::Reset] {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        script.then(call, ScriptedAction::Panic);
        let manager = start(&followed, &script);
        let mut events = manager.events();
        assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "panic" });
        within("the manager is ready", manager.ready()).await.unwrap();
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_while_the_consumer_stops_is_counted_and_does_not_block_the_restart() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script
        .then(ConsumerCall::Receive, ScriptedAction::Fail(ConsumerError::retry("the disk is full")))
        .then(ConsumerCall::Stop, ScriptedAction::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert!(matches!(next(&mut events).await, ManagerEvent::Restarting { .. }));
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    script.then(ConsumerCall::Stop, ScriptedAction::Panic);
    within("it ends", manager.shutdown()).await;
    assert_eq!(manager.status().step, ManagerStep::Stopped);
    assert!(script.is_done());
    eventually("the slot is free", false, async || followed.slot_is_active()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_error_of_the_consumer_repeats_the_same_changes() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script.then(ConsumerCall::Receive, ScriptedAction::Fail(ConsumerError::retry("the disk is full")));
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "consumer" });
    assert_eq!(manager.status().trouble.as_deref(), Some("the consumer failed: the disk is full"));
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    assert_eq!(followed.eventually_changes(3).await, orders(1..=3));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_over_error_of_the_consumer_recreates_the_slot_and_resets_the_consumer() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    let dropped: u64 =
        followed.query_value("SELECT (pg_current_wal_lsn() - '0/0')::bigint").unwrap().parse().unwrap();
    script
        .then(ConsumerCall::Receive, ScriptedAction::Fail(ConsumerError::start_over("the store is corrupt")));
    followed.sql("INSERT INTO orders VALUES (2, 'lost with the slot')");
    assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "consumer" });
    assert_eq!(next(&mut events).await, ManagerEvent::Reset(ResetReason::SlotCreated));
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    assert_eq!(followed.resets(), ["first", "slot_created"]);
    let restart = format!(
        "SELECT (restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{}'",
        followed.slot
    );
    assert!(followed.query_value(&restart).unwrap().parse::<u64>().unwrap() > dropped, "it is another slot");
    // The table is still published, and the next failure doesn't reset the consumer.
    script.then(ConsumerCall::Receive, ScriptedAction::Fail(ConsumerError::retry("once more")));
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    let changes = followed.eventually_changes(2).await;
    assert_eq!(changes, [insert("orders", 1, "before"), insert("orders", 3, "after")]);
    assert_eq!(followed.resets().len(), 2);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_consumer_during_setup_is_retried_with_a_new_slot_if_requested() {
    for (error, same_slot) in
        [(ConsumerError::retry("not now"), true), (ConsumerError::start_over("not this one"), false)]
    {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        script.then(ConsumerCall::Bookmark, ScriptedAction::Fail(error));
        let manager = start(&followed, &script);
        let mut events = manager.events();
        assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "consumer" });
        let begin = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
            followed.slot
        );
        let before = followed.query_value(&begin);
        within("the manager is ready", manager.ready()).await.unwrap();
        assert!(before.is_some());
        // A new slot has a later position.
        assert_eq!(followed.query_value(&begin) == before, same_slot);
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_of_the_consumer_at_the_first_start_halts_and_leaves_no_connection() {
    for call in [ConsumerCall::Bookmark, ConsumerCall::Reset] {
        let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
        script.then(call, ScriptedAction::Fail(ConsumerError::fatal("the folder isn't writable")));
        let manager = start(&followed, &script);
        let why = "the consumer failed: the folder isn't writable".to_owned();
        assert_eq!(
            within("the manager halts", manager.ready()).await,
            Err(NotReady::Halted { why: why.clone() })
        );
        let status = manager.status();
        assert_eq!((status.step, status.trouble.as_deref()), (ManagerStep::Halted, Some(why.as_str())));
        assert_eq!(status.condition(ReadyCondition::IntegrityChecksPassed).why, why);
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        eventually("the lock is free", Some("0".to_owned()), async || followed.query_value(locks)).await;
        manager.retry().await.unwrap();
        within("it is ready", manager.wait_until(|status| status.is_ready())).await.unwrap();
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_of_the_consumer_after_the_first_success_is_retried() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script.then(ConsumerCall::Receive, ScriptedAction::Fail(ConsumerError::fatal("the disk is broken")));
    script.then(ConsumerCall::Bookmark, ScriptedAction::Fail(ConsumerError::fatal("the disk is broken")));
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    for tries in 1..=2 {
        assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "consumer" });
        let status = manager.status();
        assert_eq!((status.step, status.retries), (ManagerStep::BackingOff, tries));
        assert!(!status.is_ready() && status.trouble.is_some_and(|why| why.contains("the disk is broken")));
    }
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_do_not_close_the_pools() {
    let (followed, script) = (FollowedDatabase::new(Postgres::shared()), ConsumerScript::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    let guard = manager.snapshot().await.unwrap();
    guard.batch_execute("BEGIN; CREATE TEMP TABLE mine (id int); INSERT INTO mine VALUES (7)").await.unwrap();
    script.then(ConsumerCall::Receive, ScriptedAction::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(next(&mut events).await, ManagerEvent::Restarting { reason: "panic" });
    let status = manager.status();
    assert_eq!(status.step, ManagerStep::BackingOff);
    for condition in [ReadyCondition::AdminConnectionPoolReady, ReadyCondition::SnapshotConnectionPoolReady] {
        assert!(status.condition(condition).holds, "{condition:?} without a replication connection");
    }
    assert!(guard.query_one("SELECT id FROM mine", &[]).await.is_ok());
    let another = manager.snapshot().await.unwrap();
    followed.table(&manager, "notes").await;
    assert_eq!(next(&mut events).await, ManagerEvent::Ready);
    let row = guard.query_one("SELECT id FROM mine", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    drop((guard, another));
    followed.sql("INSERT INTO notes VALUES (1, 'added meanwhile')");
    let changes = followed.eventually_changes(3).await;
    assert_eq!(changes[1..], [insert("orders", 2, "after"), insert("notes", 1, "added meanwhile")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_last_handle_shuts_down_though_guards_and_receivers_exist() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let manager = followed.running().await;
    let (clones, watch, mut events) = (vec![manager.clone(); 10], manager.watch(), manager.events());
    drop(manager);
    let clone = clones[3].clone();
    drop(clones);
    assert!(clone.status().is_ready());
    followed.table(&clone, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    assert_eq!(followed.eventually_changes(1).await, orders(1..=1));
    let (guard, awake) = (clone.snapshot().await.unwrap(), clone.keep_awake().unwrap());
    drop(clone);
    let mut ended = watch.clone();
    within("it ends", ended.wait_for(|status| status.step == ManagerStep::Stopped)).await.unwrap();
    while next(&mut events).await != ManagerEvent::Stopped {}
    assert!(!followed.slot_is_active());
    drop((guard, awake));
    let backends = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        followed.database
    );
    eventually("no backend is left", Some("0".to_owned()), async || followed.query_value(&backends)).await;
    // The worker has ended, too.
    let closed = async || watch.has_changed().is_err();
    eventually("the status sender is dropped", true, closed).await;
    within("the events end", async { assert!(events.recv().await.is_err()) }).await;
}
