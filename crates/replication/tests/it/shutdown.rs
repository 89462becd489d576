//! Shutting down at any moment: it ends in time, and leaves nothing on the server but what the next start needs, or nothing at all.
//!
//! `start_connection_pool` and `start_streaming` are passed within one step of the machine: no status ever shows them, and no order comes
//! between them and the steps that follow.

mod process;

use std::time::{Duration, Instant};

use forebay_replication::reservoir::{PostgresConnect, tokio_postgres};
use forebay_replication::{
    ConsumerError, Manager, ManagerConfig, NotReady, Phase, PoolError, Step, TableName,
};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, PATIENCE, Proxy, within};

use crate::journal::Journal;
use crate::supervision::{Call, Deed, Script, Scripted};
use crate::support::{Followed, insert};

/// All that the steps of the way down may take together: the snapshot pool 1 s, the checkpoint 10 s, the stream 1 s, its backend 1 s, the
/// admin pool 2 s. And ten more for a busy machine.
const DEADLINES: Duration = Duration::from_secs(25);
/// And 5 s each for the publication and the slot.
const DEADLINES_OF_DROPPING: Duration = Duration::from_secs(25);
/// Where nothing is in the way, it takes no deadline at all: less than the checkpoint's, also on a
/// busy machine.
const SOON: Duration = Duration::from_secs(8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Keeping,
    Dropping,
}

impl End {
    const BOTH: [End; 2] = [End::Keeping, End::Dropping];

    /// Ends a manager that is at a step, and looks at what is left.
    async fn of(self, manager: &Manager, followed: &Followed<'_>, at: Step, most: Duration) {
        assert_eq!(manager.status().step, at);
        let began = Instant::now();
        match self {
            End::Keeping => within("it ends", manager.shutdown()).await,
            End::Dropping => within("it ends", manager.shutdown_and_drop()).await,
        }
        let took = began.elapsed();
        println!("{self:?} at {at}: {took:?}");
        assert_eq!(manager.status().step, Step::Stopped);
        assert!(took < most, "{self:?} at {at} took {took:?}");
        self.leaves(followed).await;
    }

    async fn leaves(self, followed: &Followed<'_>) {
        let (database, slot) = (&followed.database, &followed.slot);
        let ours =
            format!("datname = '{database}' AND application_name <> 'holder' AND pid <> pg_backend_pid()");
        soon("no backend", followed, &format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE {ours}"))
            .await;
        let locks = "FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory'";
        soon("no lock", followed, &format!("SELECT count(*) = 0 {locks} AND {ours}")).await;
        let slots = format!("FROM pg_replication_slots WHERE slot_name = '{slot}'");
        match self {
            End::Keeping => {
                soon("no active slot", followed, &format!("SELECT count(*) = 0 {slots} AND active")).await
            }
            End::Dropping => {
                assert_eq!(followed.ask(&format!("SELECT count(*) {slots}")).as_deref(), Some("0"));
                assert_eq!(followed.ask("SELECT count(*) FROM pg_publication").as_deref(), Some("0"));
            }
        }
    }
}

/// A backend takes a moment to end after its connection has.
async fn soon(what: &str, followed: &Followed<'_>, asking: &str) {
    let began = Instant::now();
    while followed.ask(asking).as_deref() != Some("t") {
        assert!(began.elapsed() < PATIENCE, "{what}: not {PATIENCE:?} after the end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A slot and a publication from an earlier life.
async fn lived_before(followed: &Followed<'_>) {
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    manager.shutdown().await;
}

async fn reaches(manager: &Manager, step: Step) {
    within(step.as_str(), manager.wait_until(|status| status.step == step)).await.unwrap();
}

/// A session of somebody else.
async fn holder(followed: &Followed<'_>, sql: &str) -> tokio_postgres::Client {
    let url = format!("{}?application_name=holder", followed.url());
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(sql).await.unwrap();
    client
}

fn through(proxy: &Proxy, followed: &Followed<'_>) -> String {
    format!("postgres://postgres@{}/{}", proxy.addr(), followed.database)
}

/// Replication goes through the proxy, the rest doesn't.
fn replication_through(proxy: &Proxy, followed: &Followed<'_>) -> ManagerConfig {
    let direct = PostgresConnect::new(&followed.url()).unwrap();
    followed.config_at(&through(proxy, followed)).pooled(direct)
}

#[tokio::test]
async fn it_ends_in_time_before_it_has_begun() {
    for end in End::BOTH {
        let followed = Followed::new(Postgres::shared());
        lived_before(&followed).await;
        let manager = followed.start();
        end.of(&manager, &followed, Step::StartReplicationClient, SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_takes_its_time_to_let_it_in() {
    let followed = Followed::new(Postgres::shared());
    lived_before(&followed).await;
    let proxy = Proxy::start(followed.server.addr());
    proxy.stall(Direction::ToClient);
    // It is let in, and doesn't hear of it.
    let manager =
        followed.start_with(followed.config_at(&format!("{}?sslmode=disable", through(&proxy, &followed))));
    within("it connects", proxy.wait_for_connections(1)).await;
    soon(
        "a backend",
        &followed,
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'walsender'",
    )
    .await;
    End::Keeping.of(&manager, &followed, Step::ReplicationClientConnecting, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_network_is_away_and_drops_everything_if_that_comes_back() {
    let comes_back = async {
        let followed = Followed::new(Postgres::shared());
        lived_before(&followed).await;
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::Both);
        let manager = followed.start_with(followed.config_at(&through(&proxy, &followed)));
        within("it connects", proxy.wait_for_connections(1)).await;
        let mut status = manager.watch();
        let mending = async {
            status.wait_for(|status| status.phase == Phase::Stopped).await.unwrap();
            proxy.resume();
        };
        let ending =
            End::Dropping.of(&manager, &followed, Step::ReplicationClientConnecting, DEADLINES_OF_DROPPING);
        tokio::join!(ending, mending);
    };
    let stays_away = async {
        let followed = Followed::new(Postgres::shared());
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::Both);
        let manager = followed.start_with(followed.config_at(&through(&proxy, &followed)));
        within("it connects", proxy.wait_for_connections(1)).await;
        // There is nothing to drop, and nobody who could say so.
        End::Dropping.of(&manager, &followed, Step::ReplicationClientConnecting, DEADLINES_OF_DROPPING).await;
    };
    tokio::join!(comes_back, stays_away);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_another_has_the_lock() {
    for end in End::BOTH {
        let followed = Followed::new(Postgres::shared());
        lived_before(&followed).await;
        let lock = format!("SELECT pg_advisory_lock(hashtext('{}'))", followed.slot);
        let other = holder(&followed, &lock).await;
        let manager = followed.start();
        reaches(&manager, Step::AcquiringLock).await;
        let mut status = manager.watch();
        let leaving = async {
            status.wait_for(|status| status.phase == Phase::Stopped).await.unwrap();
            // Without the lock, nothing is dropped.
            if end == End::Dropping {
                drop(other);
            }
        };
        let ending = end.of(&manager, &followed, Step::AcquiringLock, SOON);
        tokio::join!(ending, leaving);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_waits_for_another_drops_nothing_of_the_others() {
    let followed = Followed::new(Postgres::shared());
    let first = followed.running().await;
    followed.table(&first, "orders").await;
    reaches(&first, Step::Streaming).await;
    let second =
        Manager::start(followed.config(), Journal::open(&followed.journal().with_extension("other")))
            .unwrap();
    reaches(&second, Step::AcquiringLock).await;
    let began = Instant::now();
    within("it ends", second.shutdown_and_drop()).await;
    assert!(began.elapsed() < DEADLINES_OF_DROPPING, "{:?}", began.elapsed());
    followed.sql("INSERT INTO orders VALUES (1, 'new')");
    assert_eq!(followed.eventually_changes(1).await, [insert("orders", 1, "new")]);
    assert_eq!((first.status().step, followed.resets()), (Step::Streaming, vec!["first".to_owned()]));
    End::Dropping.of(&first, &followed, Step::Streaming, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_that_name_and_a_publication_that_are_somebody_elses_are_not_dropped() {
    let followed = Followed::new(Postgres::shared());
    let slot = &followed.slot;
    followed.sql("CREATE PUBLICATION forebay");
    followed.sql(&format!("SELECT pg_create_physical_replication_slot('{slot}')"));
    let manager = followed.start_with(followed.config().manual_publication());
    reaches(&manager, Step::Halted).await;
    let began = Instant::now();
    within("it ends", manager.shutdown_and_drop()).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(
        followed
            .ask(&format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'"))
            .as_deref(),
        Some("1")
    );
    assert_eq!(followed.ask("SELECT count(*) FROM pg_publication").as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_slots_creation_waits_for_an_open_transaction() {
    for end in End::BOTH {
        let followed = Followed::new(Postgres::shared());
        let other = holder(&followed, "BEGIN; SELECT pg_current_xact_id()").await;
        let manager = followed.start();
        reaches(&manager, Step::ConfiguringConnection).await;
        // There it doesn't hear that its client goes.
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock' \
             AND datname = current_database()";
        soon("the server waits", &followed, waits).await;
        end.of(&manager, &followed, Step::ConfiguringConnection, DEADLINES).await;
        drop(other);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_pools_get_no_connection() {
    let ending = async |end: End| {
        let followed = Followed::new(Postgres::shared());
        let proxy = Proxy::start(followed.server.addr());
        proxy.stall(Direction::ToClient);
        let pooled = PostgresConnect::new(&through(&proxy, &followed)).unwrap();
        let manager = followed.start_with(followed.config().pooled(pooled));
        reaches(&manager, Step::ConnectionPoolConnecting).await;
        within("the pools connect", proxy.wait_for_connections(1)).await;
        end.of(&manager, &followed, Step::ConnectionPoolConnecting, DEADLINES).await;
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_consumer_does_not_say_what_it_has() {
    let ending = async |end: End| {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        script.then(Call::Bookmark, Deed::WaitForEver);
        let manager = Manager::start(followed.config(), Scripted::new(&followed, &script)).unwrap();
        reaches(&manager, Step::StartShapes).await;
        end.of(&manager, &followed, Step::StartShapes, DEADLINES).await;
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_does_not_confirm_that_it_streams() {
    let ending = async |end: End| {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        let proxy = std::sync::Arc::new(Proxy::start(followed.server.addr()));
        let stalled = proxy.clone();
        script.then(Call::Bookmark, Deed::Run(Box::new(move || stalled.stall(Direction::ToClient))));
        let config = replication_through(&proxy, &followed);
        let manager = Manager::start(config, Scripted::new(&followed, &script)).unwrap();
        let step = Step::WaitingForStreamingConfirmation;
        reaches(&manager, step).await;
        let mut status = manager.watch();
        let mending = async {
            status.wait_for(|status| status.phase == Phase::Stopped).await.unwrap();
            // Nothing is dropped from a server that doesn't answer.
            if end == End::Dropping {
                proxy.resume();
            }
        };
        tokio::join!(end.of(&manager, &followed, step, DEADLINES), mending);
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_it_streams() {
    for end in End::BOTH {
        let followed = Followed::new(Postgres::shared());
        let manager = followed.running().await;
        followed.table(&manager, "orders").await;
        followed.sql("INSERT INTO orders VALUES (1, 'new')");
        followed.eventually_changes(1).await;
        reaches(&manager, Step::Streaming).await;
        end.of(&manager, &followed, Step::Streaming, SOON).await;
        // What was durable was acknowledged, and doesn't come again.
        if end == End::Keeping {
            let manager = followed.running().await;
            followed.sql("INSERT INTO orders VALUES (2, 'new')");
            assert_eq!(
                followed.eventually_changes(2).await,
                [insert("orders", 1, "new"), insert("orders", 2, "new")]
            );
            manager.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_consumer_stands_still_in_the_middle_of_the_stream() {
    let ending = async |end: End| {
        let followed = Followed::new(Postgres::shared());
        let journal = Journal::open(&followed.journal());
        let gate = journal.gate.clone();
        let manager = Manager::start(followed.config(), journal).unwrap();
        within("the manager is ready", manager.ready()).await.unwrap();
        followed.table(&manager, "orders").await;
        let held = gate.lock().await;
        // More than the sockets hold: the server stands still, too.
        followed.sql("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n");
        let stuck = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event = 'WalSenderWriteData' \
             AND datname = current_database()";
        soon("the server stands still", &followed, stuck).await;
        end.of(&manager, &followed, Step::Streaming, DEADLINES).await;
        drop(held);
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_it_waits_to_try_again_has_given_up_or_sleeps() {
    let ending = async |end: End, error: ConsumerError, step: Step| {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        script.then(Call::Bookmark, Deed::Fail(error));
        let manager = Manager::start(followed.config(), Scripted::new(&followed, &script)).unwrap();
        within("it fails", manager.wait_until(|status| status.step == step)).await.unwrap();
        end.of(&manager, &followed, step, SOON).await;
    };
    for end in End::BOTH {
        ending(end, ConsumerError::retry("not now"), Step::BackingOff).await;
        ending(end, ConsumerError::fatal("never"), Step::Halted).await;
        let followed = Followed::new(Postgres::shared());
        let manager = followed.start_with(followed.config().idle_after(Duration::from_millis(10)));
        reaches(&manager, Step::Sleeping).await;
        end.of(&manager, &followed, Step::Sleeping, SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_it_falls_asleep_since_a_guard_is_still_held() {
    let ending = async |end: End| {
        let followed = Followed::new(Postgres::shared());
        let manager = followed.start_with(followed.config().idle_after(Duration::from_millis(100)));
        within("the manager is ready", manager.ready()).await.unwrap();
        let guard = manager.snapshot().await.unwrap();
        reaches(&manager, Step::FallingAsleep).await;
        let ending = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(guard);
        });
        end.of(&manager, &followed, Step::FallingAsleep, SOON).await;
        ending.await.unwrap();
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twice_and_by_two_at_once_it_ends_once_and_then_takes_nothing_any_more() {
    let followed = Followed::new(Postgres::shared());
    let manager = followed.running().await;
    let mut events = manager.events();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                manager.shutdown().await;
                manager.status().step
            })
        })
        .collect();
    for other in others {
        assert_eq!(within("it ends", other).await.unwrap(), Step::Stopped);
    }
    within("it has ended", manager.shutdown()).await;
    within("it has ended", manager.shutdown_and_drop()).await;
    while within("it says so", events.recv()).await.unwrap() != forebay_replication::StackEvent::Stopped {}
    assert!(events.try_recv().is_err(), "once");
    End::Keeping.leaves(&followed).await;
    assert_eq!(manager.ready().await, Err(NotReady::Stopped));
    assert!(matches!(manager.awake().await, Err(NotReady::Stopped)));
    assert_eq!(manager.retry().await, Err(NotReady::Stopped));
    assert!(matches!(manager.snapshot().await, Err(PoolError::Closed)));
    assert!(manager.add_table(&TableName::new("public", "orders")).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_in_time_while_the_server_is_down_or_frozen() {
    let server = Postgres::start().unwrap();
    for (end, most) in [(End::Keeping, DEADLINES), (End::Dropping, DEADLINES_OF_DROPPING)] {
        let followed = Followed::new(&server);
        let manager = followed.running().await;
        server.stop().unwrap();
        reaches(&manager, Step::BackingOff).await;
        let began = Instant::now();
        match end {
            End::Keeping => within("it ends", manager.shutdown()).await,
            End::Dropping => within("it ends", manager.shutdown_and_drop()).await,
        }
        println!("{end:?} while the server is down: {:?}", began.elapsed());
        assert!(manager.status().step == Step::Stopped && began.elapsed() < most);
        server.revive().unwrap();
        End::Keeping.leaves(&followed).await;
    }
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    reaches(&manager, Step::Streaming).await;
    server.freeze();
    let began = Instant::now();
    within("it ends", manager.shutdown()).await;
    println!("while the server is frozen: {:?}", began.elapsed());
    assert!(manager.status().step == Step::Stopped && began.elapsed() < DEADLINES);
    server.thaw();
    End::Keeping.leaves(&followed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_held_delays_the_end_by_two_seconds_at_most_and_can_be_used_to_its_own_end() {
    let ending = async |end: End| {
        let followed = Followed::new(Postgres::shared());
        let manager = followed.running().await;
        let mut guards = Vec::new();
        for _ in 0..3 {
            guards.push(manager.snapshot().await.unwrap());
        }
        guards.push(manager.admin().await.unwrap());
        let began = Instant::now();
        match end {
            End::Keeping => within("it ends", manager.shutdown()).await,
            End::Dropping => within("it ends", manager.shutdown_and_drop()).await,
        }
        let took = began.elapsed();
        println!("{end:?} while all connections are lent: {took:?}");
        assert!(manager.status().step == Step::Stopped && took < SOON, "{took:?}");
        for guard in &guards {
            guard.batch_execute("SELECT 1").await.unwrap();
        }
        drop(guards);
        end.leaves(&followed).await;
    };
    tokio::join!(ending(End::Keeping), ending(End::Dropping));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_fails_to_save_its_checkpoint_does_not_delay_the_end() {
    for deed in [Deed::Fail(ConsumerError::retry("the disk is full")), Deed::Panic] {
        let (followed, script) = (Followed::new(Postgres::shared()), Script::default());
        let manager = Manager::start(followed.config(), Scripted::new(&followed, &script)).unwrap();
        reaches(&manager, Step::Streaming).await;
        script.then(Call::Checkpoint, deed);
        End::Keeping.of(&manager, &followed, Step::Streaming, SOON).await;
        assert!(script.is_done());
    }
}
