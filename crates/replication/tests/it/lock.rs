//! One instance at a time: who waits, who takes over, and who is ended for holding the lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_replication::pgoutput::Lsn;
use forebay_replication::reservoir::{PostgresClient, PostgresConnect, ReservoirConnection as _};
use forebay_replication::{
    Batch, Bookmark, Condition, ConnectionStatus, Consumer, ConsumerError, Durable, LockPatience, Manager,
    ResetReason, Step, Timeline,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};

use crate::journal::Journal;
use crate::stranger::{backend, is_there, occupy, session};
use crate::support::{Followed, insert};

/// As the default, but with milliseconds in the place of seconds.
fn patience(check_every: u64, silent_for: u64) -> LockPatience {
    LockPatience {
        check_every: Duration::from_millis(check_every),
        silent_for: Duration::from_millis(silent_for),
    }
}

async fn is_at(manager: &Manager, step: Step) {
    within(&format!("the manager is at {step}"), manager.wait_until(|status| status.step == step))
        .await
        .unwrap();
}

async fn waits(manager: &Manager) {
    let waits = manager.wait_until(|status| {
        let lock = status.condition(Condition::PgLockAcquired);
        status.connection == ConnectionStatus::WaitingOnLock
            && lock.why.contains("another instance holds the lock")
    });
    let status = within("the manager waits for the lock", waits).await.unwrap();
    assert!(!status.is_ready());
}

/// The backend that has the slot.
fn active(followed: &Followed<'_>) -> Option<i32> {
    let asking = format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{}'", followed.slot);
    followed.ask(&asking).map(|pid| pid.parse().unwrap())
}

/// A session that holds the lock, and its backend.
async fn holder(followed: &Followed<'_>, database: &str) -> (PostgresClient, i32) {
    let session = session(followed, database).await;
    let pid = backend(&session).await;
    session.batch_execute(&format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot)).await.unwrap();
    (session, pid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_waits_takes_over_when_the_other_shuts_down() {
    let followed = Followed::new(Postgres::shared());
    let first = followed.running().await;
    followed.table(&first, "orders").await;
    let second = followed.start();
    waits(&second).await;
    followed.sql("INSERT INTO orders VALUES (1, 'first')");
    followed.eventually_changes(1).await;
    assert_eq!(active(&followed), first.positions().backend_pid);
    first.shutdown().await;
    is_at(&second, Step::Streaming).await;
    assert_eq!(active(&followed), second.positions().backend_pid);
    followed.sql("INSERT INTO orders VALUES (2, 'second')");
    assert_eq!(
        followed.eventually_changes(2).await,
        [insert("orders", 1, "first"), insert("orders", 2, "second")]
    );
    assert_eq!(followed.resets(), ["first"]);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_waits_takes_over_when_the_other_is_lost_and_that_one_waits_in_turn() {
    let followed = Followed::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let first = followed.start_with(followed.config_through(&proxy));
    is_at(&first, Step::Streaming).await;
    followed.table(&first, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'first')");
    followed.eventually_changes(1).await;
    let second = followed.start();
    waits(&second).await;
    // What the server sees of a process that is killed.
    proxy.refuse();
    proxy.cut();
    is_at(&second, Step::Streaming).await;
    followed.sql("INSERT INTO orders VALUES (2, 'second')");
    followed.eventually_changes(2).await;
    proxy.accept();
    waits(&first).await;
    second.shutdown().await;
    is_at(&first, Step::Streaming).await;
    followed.sql("INSERT INTO orders VALUES (3, 'first')");
    let expected =
        [insert("orders", 1, "first"), insert("orders", 2, "second"), insert("orders", 3, "first")];
    assert_eq!(followed.eventually_changes(3).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    first.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_instances_one_streams_however_often_it_is_ended() {
    let followed = Followed::new(Postgres::shared());
    let managers = [followed.running().await, followed.start(), followed.start()];
    followed.table(&managers[0], "orders").await;
    for round in 1..=4 {
        eventually("one has the slot, and knows it", true, async || {
            let streaming = |manager: &&Manager| manager.status().step == Step::Streaming;
            let waiting = |manager: &&Manager| manager.status().connection == ConnectionStatus::WaitingOnLock;
            let pids: Vec<_> =
                managers.iter().filter(streaming).map(|manager| manager.positions().backend_pid).collect();
            pids.len() == 1 && pids[0] == active(&followed) && managers.iter().filter(waiting).count() == 2
        })
        .await;
        followed.sql(&format!("INSERT INTO orders VALUES ({round}, 'once')"));
        followed.eventually_changes(round).await;
        followed.sql(&format!("SELECT pg_terminate_backend({})", active(&followed).unwrap()));
    }
    let expected: Vec<_> = (1..=4).map(|round| insert("orders", round, "once")).collect();
    assert_eq!((followed.changes(), followed.resets()), (expected, vec!["first".to_owned()]));
    for manager in &managers {
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_has_gone_silent_without_the_slot_is_ended_and_the_lock_taken() {
    // A lock's number is signed, and the server shows it in two halves.
    for sign in ["<", ">"] {
        let mut followed = Followed::new(Postgres::shared());
        let name = format!(
            "SELECT 'slot_' || n FROM generate_series(1, 100) n WHERE hashtext('slot_' || n) {sign} 0"
        );
        followed.slot = followed.ask(&name).unwrap();
        let (held, pid) = holder(&followed, &followed.database).await;
        let manager = followed.start_with(followed.config().lock_patience(patience(200, 500)));
        is_at(&manager, Step::Streaming).await;
        assert!(!is_there(&followed, pid));
        eventually("the holder knows", true, async || held.is_closed()).await;
        manager.shutdown_and_drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_speaks_or_is_elsewhere_is_never_ended() {
    let followed = Followed::new(Postgres::shared());
    // The server lists them in an order of its own: one before and one after, so that one comes first whatever that is.
    let others = ["before", "after"].map(|name| followed.server.create_database(name).unwrap());
    let before = holder(&followed, &others[0]).await;
    let (held, here) = holder(&followed, &followed.database).await;
    let after = holder(&followed, &others[1]).await;
    let manager = followed.start_with(followed.config().lock_patience(patience(100, 3_000)));
    waits(&manager).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        held.batch_execute("SELECT 1").await.unwrap();
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Now it falls silent, and that is noticed: so somebody did look. The others were silent from the beginning.
    is_at(&manager, Step::Streaming).await;
    assert!(!is_there(&followed, here));
    assert!(is_there(&followed, before.1) && is_there(&followed, after.1));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_holder_whose_slot_is_in_use_is_not_ended() {
    let followed = Followed::new(Postgres::shared());
    followed.running().await.shutdown().await;
    let (_held, pid) = holder(&followed, &followed.database).await;
    let occupied = occupy(&followed).await;
    let manager = followed.start_with(followed.config().lock_patience(patience(100, 300)));
    waits(&manager).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(is_there(&followed, pid), "after {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(occupied);
    is_at(&manager, Step::Streaming).await;
    assert!(!is_there(&followed, pid));
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_may_not_be_ended_is_waited_for() {
    let followed = Followed::new(Postgres::shared());
    followed.sql("CREATE ROLE waiter LOGIN REPLICATION; GRANT pg_read_all_stats TO waiter");
    followed.sql(&format!("GRANT CREATE ON DATABASE {} TO waiter", followed.database));
    let (held, pid) = holder(&followed, &followed.database).await;
    let url = followed.server.url_as("waiter", "", &followed.database);
    let manager = followed.start_with(followed.config_at(&url).lock_patience(patience(100, 200)));
    waits(&manager).await;
    eventually("it is tried, and waited on", true, async || {
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        followed.server.log().contains("must be a superuser to terminate")
    })
    .await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(manager.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(is_there(&followed, pid));
    held.close().await;
    is_at(&manager, Step::Streaming).await;
    manager.shutdown().await;
}

/// A journal that takes its time to say what it has.
struct Slow {
    journal: Journal,
    gate: Arc<tokio::sync::Mutex<()>>,
}

impl Consumer for Slow {
    async fn bookmark(&mut self) -> Result<Option<Bookmark>, ConsumerError> {
        drop(self.gate.lock().await);
        self.journal.bookmark().await
    }

    async fn reset(&mut self, reason: ResetReason, begin: Bookmark) -> Result<(), ConsumerError> {
        self.journal.reset(reason, begin).await
    }

    async fn adopt(&mut self, timeline: Timeline) -> Result<(), ConsumerError> {
        self.journal.adopt(timeline).await
    }

    fn start(&mut self, durable: Durable) {
        self.journal.start(durable);
    }

    async fn receive(&mut self, batch: &mut Batch<'_>) -> Result<(), ConsumerError> {
        self.journal.receive(batch).await
    }

    async fn advance(&mut self, lsn: Lsn) -> Result<(), ConsumerError> {
        self.journal.advance(lsn).await
    }

    async fn checkpoint(&mut self) -> Result<(), ConsumerError> {
        self.journal.checkpoint().await
    }
}

/// The first keeps the lock for much longer than the second's patience.
async fn stays(first: &Manager, second: &Manager, step: Step) {
    let (begun, backend) = (Instant::now(), first.positions().backend_pid);
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!((first.status().step, first.positions().backend_pid), (step, backend));
        assert_eq!(second.status().connection, ConnectionStatus::WaitingOnLock);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_slow_to_get_up_keeps_the_lock() {
    let followed = Followed::new(Postgres::shared());
    let pooler = Proxy::start(followed.server.addr());
    pooler.refuse();
    let pooled =
        PostgresConnect::new(&format!("postgres://postgres@{}/{}", pooler.addr(), followed.database))
            .unwrap();
    let (journal, gate) = (Journal::open(&followed.journal()), Arc::default());
    let slow = Slow { journal, gate: Arc::clone(&gate) };
    let closed = gate.lock().await;
    let patience = patience(100, 2_000);
    let first = Manager::start(followed.config().lock_patience(patience).pooled(pooled), slow).unwrap();
    is_at(&first, Step::ConnectionPoolConnecting).await;
    let second = followed.start_with(followed.config().lock_patience(patience));
    waits(&second).await;
    stays(&first, &second, Step::ConnectionPoolConnecting).await;
    pooler.accept();
    is_at(&first, Step::StartShapes).await;
    stays(&first, &second, Step::StartShapes).await;
    drop(closed);
    is_at(&first, Step::Streaming).await;
    first.shutdown().await;
    is_at(&second, Step::Streaming).await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_is_cut_off_before_it_streams_loses_the_lock() {
    let followed = Followed::new(Postgres::shared());
    let (proxy, pooler) = (Proxy::start(followed.server.addr()), Proxy::start(followed.server.addr()));
    pooler.refuse();
    let pooled =
        PostgresConnect::new(&format!("postgres://postgres@{}/{}", pooler.addr(), followed.database))
            .unwrap();
    let patience = patience(100, 2_000);
    let first = followed.start_with(followed.config_through(&proxy).lock_patience(patience).pooled(pooled));
    is_at(&first, Step::ConnectionPoolConnecting).await;
    let second = followed.start_with(followed.config().lock_patience(patience));
    waits(&second).await;
    proxy.stall(Direction::Both);
    is_at(&second, Step::Streaming).await;
    proxy.resume();
    waits(&first).await;
    second.shutdown().await;
    first.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_comes_while_a_sign_of_life_is_on_its_way_is_carried_out() {
    let followed = Followed::new(Postgres::shared());
    let (proxy, pooler) = (Proxy::start(followed.server.addr()), Proxy::start(followed.server.addr()));
    pooler.refuse();
    let pooled =
        PostgresConnect::new(&format!("postgres://postgres@{}/{}", pooler.addr(), followed.database))
            .unwrap();
    let manager =
        followed.start_with(followed.config_through(&proxy).lock_patience(patience(100, 600)).pooled(pooled));
    is_at(&manager, Step::ConnectionPoolConnecting).await;
    proxy.stall(Direction::ToClient);
    // It speaks ten times a second: by then it has asked something, and the answer is still to come when the pools are there, and
    // with them the order.
    tokio::time::sleep(Duration::from_millis(500)).await;
    pooler.accept();
    is_at(&manager, Step::StartShapes).await;
    // The order comes right after the news of it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.resume();
    is_at(&manager, Step::Streaming).await;
    manager.shutdown().await;
}
