//! Network faults and server restarts while streaming.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_replication::reservoir::{Connect as _, PostgresConnect};
use forebay_replication::{Manager, ManagerEvent, ManagerStep, ReadyCondition, metrics};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::broadcast;

use super::{advance_clock, started};
use crate::followed_database::{FollowedDatabase, insert};
use crate::journal::JournalChange;
use crate::refusals::contains_all;

/// Commits rows until `is_over`, and reconnects when the server goes away.
async fn write(followed: &FollowedDatabase<'_>, is_over: &AtomicBool) {
    let connect = PostgresConnect::new(&followed.url()).unwrap();
    let mut id = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(client) = connect.connect(None).await else { continue };
        while !is_over.load(Ordering::Relaxed) {
            id += 1;
            // The table shows whether a commit without a reply succeeded.
            if client.batch_execute(&format!("INSERT INTO orders VALUES ({id}, 'row')")).await.is_err() {
                break;
            }
        }
    }
}

/// Runs `during` while rows are written, and checks that the journal has each row once.
async fn each_row_arrives_once(followed: &FollowedDatabase<'_>, during: impl AsyncFnOnce()) {
    let is_over = AtomicBool::new(false);
    let disturb = async {
        during().await;
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(write(followed, &is_over), disturb);
    let rows = followed.server.query(&followed.database, "SELECT id FROM orders ORDER BY id").unwrap();
    let expected: Vec<_> =
        rows.iter().map(|row| insert("orders", row[0].as_ref().unwrap().parse().unwrap(), "row")).collect();
    let found = followed.eventually_changes(expected.len()).await;
    assert!(found == expected, "{} rows: {:?}", expected.len(), first_difference(&found, &expected));
    assert_eq!(followed.resets(), ["first"]);
}

fn first_difference<'a>(
    found: &'a [JournalChange],
    expected: &'a [JournalChange],
) -> Option<(&'a JournalChange, &'a JournalChange)> {
    found.iter().zip(expected).find(|(found, expected)| found != expected)
}

/// Waits until 50 more rows are committed.
async fn more_rows(followed: &FollowedDatabase<'_>) {
    let count = || followed.query_value("SELECT count(*) FROM orders").unwrap().parse::<u64>().unwrap();
    let wanted = count() + 50;
    eventually("rows are written", true, async || count() >= wanted).await;
}

/// Waits until the connection has failed and is ready again. Returns the reason.
async fn reconnects(manager: &Manager, events: &mut broadcast::Receiver<ManagerEvent>) -> &'static str {
    let reason = within("it notices", async {
        loop {
            if let ManagerEvent::Restarting { reason } = events.recv().await.unwrap() {
                return reason;
            }
        }
    });
    let reason = reason.await;
    within("it comes back", manager.ready()).await.unwrap();
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_network_faults_lose_and_repeat_nothing() {
    let followed = FollowedDatabase::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let manager = started(&followed, followed.config_at(&url)).await;
    followed.table(&manager, "orders").await;
    each_row_arrives_once(&followed, async || {
        for fault in [Proxy::cut, Proxy::reset] {
            more_rows(&followed).await;
            let mut events = manager.events();
            fault(&proxy);
            assert_eq!(reconnects(&manager, &mut events).await, "lost");
        }
        more_rows(&followed).await;
        let backend = manager.positions().backend_pid;
        for direction in [Direction::ToClient, Direction::ToServer, Direction::Both] {
            proxy.stall(direction);
            more_rows(&followed).await;
            proxy.resume();
            more_rows(&followed).await;
        }
        assert_eq!(manager.positions().backend_pid, backend, "a slow network causes no restart");
    })
    .await;
    manager.shutdown().await;
}

/// Single-threaded, so that its clock can be advanced.
#[tokio::test]
async fn a_stalled_connection_is_abandoned_and_nothing_is_lost() {
    // The server ends its side, too, and releases the lock.
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let proxy = Proxy::start(server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let pooled = PostgresConnect::new(&followed.url()).unwrap();
    let manager = started(&followed, followed.config_at(&url).pooled(pooled)).await;
    followed.table(&manager, "orders").await;
    followed.sql("INSERT INTO orders VALUES (1, 'before')");
    followed.eventually_changes(1).await;
    let mut events = manager.events();
    proxy.stall(Direction::Both);
    followed.sql("INSERT INTO orders VALUES (2, 'meanwhile')");
    eventually("the slot is inactive", false, async || followed.slot_is_active()).await;
    assert_eq!(manager.status().step, ManagerStep::Streaming, "the client hasn't noticed");
    advance_clock(Duration::from_secs(61)).await;
    let abandoned = manager.wait_until(|status| status.step == ManagerStep::BackingOff);
    let status = within("the connection is abandoned", abandoned).await.unwrap();
    contains_all(&status.trouble.unwrap(), &["the server sent nothing for", "counts as dead"]);
    proxy.resume();
    assert_eq!(reconnects(&manager, &mut events).await, "silent");
    let expected = [insert("orders", 1, "before"), insert("orders", 2, "meanwhile")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_restarts_lose_and_repeat_nothing() {
    let server = Postgres::start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    each_row_arrives_once(&followed, async || {
        for restart in [Postgres::restart_fast, Postgres::restart_immediate] {
            more_rows(&followed).await;
            let mut events = manager.events();
            tokio::task::block_in_place(|| restart(&server).unwrap());
            reconnects(&manager, &mut events).await;
        }
        more_rows(&followed).await;
    })
    .await;
    manager.shutdown().await;
}

const NAMES: [&str; 11] = [
    metrics::STEP,
    metrics::CONDITION,
    metrics::RESTARTS,
    metrics::RESETS,
    metrics::RECEIVED,
    metrics::DURABLE,
    metrics::LAG_BYTES,
    metrics::LAG_SECONDS,
    metrics::RETAINED,
    metrics::SAFE,
    metrics::TRANSACTIONS,
];

fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Single-threaded: the local recorder belongs to one thread.
#[tokio::test]
async fn restarts_are_counted_by_reason_and_all_metrics_pass_promtool() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let server = Postgres::builder().config("max_slot_wal_keep_size", "1GB").start().unwrap();
    let followed = FollowedDatabase::new(&server);
    let proxy = Proxy::start(server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let manager = started(&followed, followed.config_at(&url)).await;
    followed.table(&manager, "orders").await;
    let mut events = manager.events();
    for _ in 0..2 {
        proxy.cut();
        assert_eq!(reconnects(&manager, &mut events).await, "lost");
    }
    followed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'");
    assert_eq!(reconnects(&manager, &mut events).await, "server");
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    followed.eventually_changes(1).await;
    let end = followed.transactions()[0].end;

    // The slot is measured every 10 s.
    advance_clock(Duration::from_secs(11)).await;
    eventually("the slot is measured", true, async || page.render().contains(metrics::SAFE)).await;
    let text = page.render();
    for name in NAMES {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help text:\n{text}");
    }
    let expected = [
        ("forebay_postgres_restarts_total{reason=\"lost\"}", 2.0),
        ("forebay_postgres_restarts_total{reason=\"server\"}", 1.0),
        ("forebay_postgres_resets_total{reason=\"first\"}", 1.0),
        ("forebay_postgres_step{step=\"streaming\"}", 1.0),
        ("forebay_postgres_step{step=\"backing_off\"}", 0.0),
        ("forebay_postgres_connection_transactions", 1.0),
    ];
    for (series, count) in expected {
        assert_eq!(value(&text, series), Some(count), "{series}\n{text}");
    }
    for condition in ReadyCondition::ALL {
        let series = format!("forebay_postgres_condition{{condition=\"{}\"}}", condition.as_str());
        assert_eq!(value(&text, &series), Some(1.0), "{series}");
    }
    let (received, durable) =
        (value(&text, metrics::RECEIVED).unwrap(), value(&text, metrics::DURABLE).unwrap());
    assert!(received >= durable && durable >= end as f64, "{received} {durable} {end}");
    let retained = value(&text, metrics::RETAINED).unwrap();
    assert!(
        retained > 0.0 && value(&text, metrics::SAFE).unwrap() + retained <= (1_u64 << 30) as f64 * 1.1,
        "{text}"
    );
    manager.shutdown().await;
    let stopped = value(&page.render(), "forebay_postgres_step{step=\"stopped\"}");
    assert_eq!(stopped, Some(1.0));
    check(&text);
}

/// Runs `promtool check metrics` of Debian's package prometheus.
fn check(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool is installed by script/bootstrap");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}
