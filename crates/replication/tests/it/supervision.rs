//! What fails on the connection side starts it again, and only that: what the consumer has lives on, and so do the pools.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_replication::pgoutput::Lsn;
use forebay_replication::{
    Batch, Bookmark, Condition, Consumer, ConsumerError, Durable, Manager, NotReady, Phase, ResetReason,
    StackEvent, Step, Timeline,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{eventually, within};
use tokio::sync::broadcast;

use crate::journal::{Change, Journal};
use crate::support::{Followed, insert};

/// What a consumer is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Bookmark,
    Reset,
    Receive,
    Advance,
    Stop,
    Checkpoint,
}

/// What happens then, before the journal gets to work, or in its place.
pub(crate) enum Deed {
    Fail(ConsumerError),
    Panic,
    Run(Box<dyn FnOnce() + Send>),
    Wait(Duration),
    WaitForEver,
}

/// What is to happen at the next calls. Each deed is done once, in the order given.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<VecDeque<(Call, Deed)>>>);

impl Script {
    pub(crate) fn then(&self, call: Call, deed: Deed) -> &Self {
        self.0.lock().unwrap().push_back((call, deed));
        self
    }

    pub(crate) fn is_done(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }

    async fn play(&self, call: Call) -> Result<(), ConsumerError> {
        let deed = {
            let mut script = self.0.lock().unwrap();
            let at = script.iter().position(|(scripted, _)| *scripted == call);
            at.and_then(|at| script.remove(at))
        };
        match deed {
            None => Ok(()),
            Some((_, Deed::Fail(error))) => Err(error),
            Some((_, Deed::Panic)) => panic!("the test asked for it"),
            Some((_, Deed::Run(deed))) => {
                deed();
                Ok(())
            }
            Some((_, Deed::Wait(time))) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Some((_, Deed::WaitForEver)) => std::future::pending().await,
        }
    }
}

/// A journal to which things happen.
pub(crate) struct Scripted {
    journal: Journal,
    script: Script,
}

impl Scripted {
    pub(crate) fn new(followed: &Followed<'_>, script: &Script) -> Self {
        Scripted { journal: Journal::open(&followed.journal()), script: script.clone() }
    }
}

impl Consumer for Scripted {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        self.script.play(Call::Bookmark).await?;
        self.journal.bookmark().await
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.script.play(Call::Reset).await?;
        self.journal.reset(reason, begin).await
    }

    async fn adopt(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.journal.adopt(timeline).await
    }

    fn start(&mut self, durable: Durable) {
        self.journal.start(durable);
    }

    async fn receive(&mut self, batch: &mut Batch<'_>) -> Result<(), ConsumerError> {
        self.script.play(Call::Receive).await?;
        self.journal.receive(batch).await
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.script.play(Call::Advance).await?;
        self.journal.advance(lsn).await
    }

    async fn stop(&mut self) {
        let _it_cannot_fail = self.script.play(Call::Stop).await;
        self.journal.stop().await;
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        self.script.play(Call::Checkpoint).await?;
        self.journal.checkpoint().await
    }
}

fn start(followed: &Followed<'_>, script: &Script) -> Manager {
    Manager::start(followed.config(), Scripted::new(followed, script)).unwrap()
}

/// One that runs, with a table `orders` that has one row.
async fn running(followed: &Followed<'_>, script: &Script) -> Manager {
    let manager = start(followed, script);
    within("the manager is ready", manager.ready()).await.unwrap();
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    manager
}

fn orders(ids: impl IntoIterator<Item = i32>) -> Vec<Change> {
    ids.into_iter().map(|id| insert("orders", id, if id == 1 { "before" } else { "after" })).collect()
}

async fn next(events: &mut broadcast::Receiver<StackEvent>) -> StackEvent {
    within("something happens", events.recv()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_consumer_restarts_the_connection_and_nothing_is_lost_or_twice() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let (mut events, before) = (manager.events(), manager.positions().backend_pid);
    script.then(Call::Receive, Deed::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after'), (3, 'after')");
    followed.sql("INSERT INTO orders VALUES (4, 'after')");
    assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "panic" });
    let status = manager.status();
    assert!(status.trouble.is_some_and(|why| why.contains("a bug") && why.contains("the test asked for it")));
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    assert_eq!(followed.eventually_changes(4).await, orders(1..=4));
    assert_ne!(manager.positions().backend_pid, before);
    followed.sql("INSERT INTO orders VALUES (5, 'after')");
    assert_eq!(followed.eventually_changes(5).await, orders(1..=5));
    assert_eq!(followed.resets(), ["first"]);
    assert_eq!(manager.status().trouble, None);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_middle_of_a_long_transaction_makes_it_come_again_from_its_beginning() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    // More than is read at once, several times over.
    for _ in 0..3 {
        script.then(Call::Receive, Deed::Run(Box::new(|| {})));
    }
    script.then(Call::Receive, Deed::Panic);
    followed.sql("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(2, 3001) n");
    followed.sql("INSERT INTO orders VALUES (3002, 'after')");
    let changes = followed.eventually_changes(3002).await;
    assert!(script.is_done(), "it panicked on the way");
    let expected = (2..=3001).map(|id| insert("orders", id, &"x".repeat(1000)));
    assert!(changes[1..3001].iter().cloned().eq(expected));
    assert_eq!(changes[3001], insert("orders", 3002, "after"));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_panics_within_a_minute_are_a_bug_that_it_halts_for_until_somebody_says_that_it_is_mended() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    for _ in 0..5 {
        script.then(Call::Receive, Deed::Panic);
    }
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    for _ in 0..4 {
        assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "panic" });
        // It would wait for 1, 2, 4 and 8 s.
        manager.retry().await.unwrap();
        assert_eq!(next(&mut events).await, StackEvent::Ready);
    }
    let StackEvent::Halted { why } = next(&mut events).await else { panic!("the fifth is one too many") };
    assert!(why.contains("a bug") && why.contains("the test asked for it"), "{why}");
    assert_eq!(manager.status().phase, Phase::Halted);
    assert_eq!(manager.ready().await, Err(NotReady::Halted { why: why.clone() }));
    assert_eq!(manager.status().trouble, Some(why));
    eventually("the server has no connection of it", false, async || followed.slot_is_active()).await;
    manager.retry().await.unwrap();
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_on_the_way_up_is_a_reason_to_try_again() {
    for call in [Call::Bookmark, Call::Reset] {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        script.then(call, Deed::Panic);
        let manager = start(&followed, &script);
        let mut events = manager.events();
        assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "panic" });
        within("the manager is ready", manager.ready()).await.unwrap();
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_while_the_consumer_stops_is_one_more_and_no_reason_to_stand_still() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script
        .then(Call::Receive, Deed::Fail(ConsumerError::retry("the disk is full")))
        .then(Call::Stop, Deed::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert!(matches!(next(&mut events).await, StackEvent::Restarting { .. }));
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    script.then(Call::Stop, Deed::Panic);
    within("it ends", manager.shutdown()).await;
    assert_eq!(manager.status().step, Step::Stopped);
    assert!(script.is_done());
    eventually("the slot is free", false, async || followed.slot_is_active()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_asks_for_another_try_gets_the_same_again() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script.then(Call::Receive, Deed::Fail(ConsumerError::retry("the disk is full")));
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "consumer" });
    assert_eq!(manager.status().trouble.as_deref(), Some("the consumer: the disk is full"));
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    assert_eq!(followed.eventually_changes(3).await, orders(1..=3));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_wants_to_start_over_gets_a_new_slot_and_is_reset() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    let dropped: u64 =
        followed.ask("SELECT (pg_current_wal_lsn() - '0/0')::bigint").unwrap().parse().unwrap();
    script.then(Call::Receive, Deed::Fail(ConsumerError::start_over("what it has makes no sense")));
    followed.sql("INSERT INTO orders VALUES (2, 'lost with the slot')");
    assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "consumer" });
    assert_eq!(next(&mut events).await, StackEvent::Reset(ResetReason::SlotCreated));
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    assert_eq!(followed.resets(), ["first", "slot_created"]);
    let restart = format!(
        "SELECT (restart_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{}'",
        followed.slot
    );
    assert!(followed.ask(&restart).unwrap().parse::<u64>().unwrap() > dropped, "it is another slot");
    // The table is still published, and the next failure is no reason to start over.
    script.then(Call::Receive, Deed::Fail(ConsumerError::retry("once more")));
    followed.sql("INSERT INTO orders VALUES (3, 'after')");
    let changes = followed.eventually_changes(2).await;
    assert_eq!(changes, [insert("orders", 1, "before"), insert("orders", 3, "after")]);
    assert_eq!(followed.resets().len(), 2);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_fatal_on_the_way_up_is_tried_again_with_another_slot_if_it_wants_one() {
    for (error, same_slot) in
        [(ConsumerError::retry("not now"), true), (ConsumerError::start_over("not this one"), false)]
    {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        script.then(Call::Bookmark, Deed::Fail(error));
        let manager = start(&followed, &script);
        let mut events = manager.events();
        assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "consumer" });
        let begin = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
            followed.slot
        );
        let before = followed.ask(&begin);
        within("the manager is ready", manager.ready()).await.unwrap();
        assert!(before.is_some());
        // One that is made later begins later.
        assert_eq!(followed.ask(&begin) == before, same_slot);
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fatal_at_first_halts_it_until_it_is_mended_and_leaves_no_connection() {
    for call in [Call::Bookmark, Call::Reset] {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        script.then(call, Deed::Fail(ConsumerError::fatal("the folder isn't ours")));
        let manager = start(&followed, &script);
        let why = "the consumer: the folder isn't ours".to_owned();
        assert_eq!(within("it gives up", manager.ready()).await, Err(NotReady::Halted { why: why.clone() }));
        let status = manager.status();
        assert_eq!((status.step, status.trouble.as_deref()), (Step::Halted, Some(why.as_str())));
        assert_eq!(status.condition(Condition::IntegrityChecksPassed).why, why);
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        eventually("the lock is free", Some("0".to_owned()), async || followed.ask(locks)).await;
        manager.retry().await.unwrap();
        within("it is ready", manager.wait_until(|status| status.is_ready())).await.unwrap();
        assert_eq!(followed.resets(), ["first"]);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fatal_later_is_tried_again_since_it_worked_once() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    script.then(Call::Receive, Deed::Fail(ConsumerError::fatal("the disk is broken")));
    script.then(Call::Bookmark, Deed::Fail(ConsumerError::fatal("the disk is broken")));
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    for tries in 1..=2 {
        assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "consumer" });
        let status = manager.status();
        assert_eq!((status.step, status.retries), (Step::BackingOff, tries));
        assert!(!status.is_ready() && status.trouble.is_some_and(|why| why.contains("the disk is broken")));
    }
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    assert_eq!(followed.eventually_changes(2).await, orders(1..=2));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_do_not_close_the_pools() {
    let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
    let manager = running(&followed, &script).await;
    let mut events = manager.events();
    let guard = manager.snapshot().await.unwrap();
    guard.batch_execute("BEGIN; CREATE TEMP TABLE mine (id int); INSERT INTO mine VALUES (7)").await.unwrap();
    script.then(Call::Receive, Deed::Panic);
    followed.sql("INSERT INTO orders VALUES (2, 'after')");
    assert_eq!(next(&mut events).await, StackEvent::Restarting { reason: "panic" });
    let status = manager.status();
    assert_eq!(status.step, Step::BackingOff);
    for condition in [Condition::AdminConnectionPoolReady, Condition::SnapshotConnectionPoolReady] {
        assert!(status.condition(condition).holds, "{condition:?} while there is no replication connection");
    }
    assert!(guard.query_one("SELECT id FROM mine", &[]).await.is_ok());
    let another = manager.snapshot().await.unwrap();
    followed.table(&manager, "notes").await;
    assert_eq!(next(&mut events).await, StackEvent::Ready);
    let row = guard.query_one("SELECT id FROM mine", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 7);
    drop((guard, another));
    followed.sql("INSERT INTO notes VALUES (1, 'added meanwhile')");
    let changes = followed.eventually_changes(3).await;
    assert_eq!(changes[1..], [insert("orders", 2, "after"), insert("notes", 1, "added meanwhile")]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_are_alike_and_the_last_one_ends_it_whatever_else_is_held() {
    let followed = Followed::new(Postgres::shared());
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
    within("it ends", ended.wait_for(|status| status.step == Step::Stopped)).await.unwrap();
    while next(&mut events).await != StackEvent::Stopped {}
    assert!(!followed.slot_is_active());
    drop((guard, awake));
    let backends = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()",
        followed.database
    );
    eventually("nobody is left", Some("0".to_owned()), async || followed.ask(&backends)).await;
    // The worker is gone, too.
    let closed = async || watch.has_changed().is_err();
    eventually("nobody writes the status any more", true, closed).await;
    within("the events end", async { assert!(events.recv().await.is_err()) }).await;
}
