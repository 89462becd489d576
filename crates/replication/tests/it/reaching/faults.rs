//! The way is cut, blocked, or the server goes away, while changes flow.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_replication::reservoir::{Connect as _, PostgresConnect};
use forebay_replication::{Condition, Manager, StackEvent, Step, metrics};
use forebay_sandbox::Postgres;
use forebay_testkit::{Direction, Proxy, eventually, within};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::broadcast;

use super::{put_forward, started};
use crate::journal::Change;
use crate::refusals::says;
use crate::support::{Followed, insert};

/// Commits a row after the other until it is told to stop, whatever becomes of the server.
async fn write(followed: &Followed<'_>, is_over: &AtomicBool) {
    let connect = PostgresConnect::new(&followed.url()).unwrap();
    let mut id = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(client) = connect.connect(None).await else { continue };
        while !is_over.load(Ordering::Relaxed) {
            id += 1;
            // Whether a row is there whose commit wasn't answered, the table tells.
            if client.batch_execute(&format!("INSERT INTO orders VALUES ({id}, 'row')")).await.is_err() {
                break;
            }
        }
    }
}

/// What `during` does to the way or the server, while rows are written, costs nothing: the journal has each row of the table once.
async fn nothing_is_lost_or_twice(followed: &Followed<'_>, during: impl AsyncFnOnce()) {
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

fn first_difference<'a>(found: &'a [Change], expected: &'a [Change]) -> Option<(&'a Change, &'a Change)> {
    found.iter().zip(expected).find(|(found, expected)| found != expected)
}

/// Some more rows were committed.
async fn more_rows(followed: &Followed<'_>) {
    let count = || followed.ask("SELECT count(*) FROM orders").unwrap().parse::<u64>().unwrap();
    let wanted = count() + 50;
    eventually("rows are written", true, async || count() >= wanted).await;
}

/// The connection side fails and comes back by itself; tells what it failed for.
async fn comes_back(manager: &Manager, events: &mut broadcast::Receiver<StackEvent>) -> &'static str {
    let reason = within("it notices", async {
        loop {
            if let StackEvent::Restarting { reason } = events.recv().await.unwrap() {
                return reason;
            }
        }
    });
    let reason = reason.await;
    within("it comes back", manager.ready()).await.unwrap();
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_that_is_cut_reset_or_blocked_for_a_while_costs_nothing() {
    let followed = Followed::new(Postgres::shared());
    let proxy = Proxy::start(followed.server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let manager = started(&followed, followed.config_at(&url)).await;
    followed.table(&manager, "orders").await;
    nothing_is_lost_or_twice(&followed, async || {
        for fault in [Proxy::cut, Proxy::reset] {
            more_rows(&followed).await;
            let mut events = manager.events();
            fault(&proxy);
            assert_eq!(comes_back(&manager, &mut events).await, "lost");
        }
        more_rows(&followed).await;
        let backend = manager.positions().backend_pid;
        for direction in [Direction::ToClient, Direction::ToServer, Direction::Both] {
            proxy.stall(direction);
            more_rows(&followed).await;
            proxy.resume();
            more_rows(&followed).await;
        }
        assert_eq!(
            manager.positions().backend_pid,
            backend,
            "a way that is only slow is no reason to start again"
        );
    })
    .await;
    manager.shutdown().await;
}

/// On one thread, so that its clock can be put forward.
#[tokio::test]
async fn a_way_that_stays_blocked_is_given_up_and_costs_nothing() {
    // So that the server gives up, too, and lets go of the lock.
    let server = Postgres::builder().config("wal_sender_timeout", "4s").start().unwrap();
    let followed = Followed::new(&server);
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
    eventually("the server gives up", false, async || followed.slot_is_active()).await;
    assert_eq!(manager.status().step, Step::Streaming, "from here it looks as if all were well");
    put_forward(Duration::from_secs(61)).await;
    let given_up = manager.wait_until(|status| status.step == Step::BackingOff);
    let status = within("it gives up", given_up).await.unwrap();
    says(&status.trouble.unwrap(), &["nothing came from the server for", "taken for dead"]);
    proxy.resume();
    assert_eq!(comes_back(&manager, &mut events).await, "silent");
    let expected = [insert("orders", 1, "before"), insert("orders", 2, "meanwhile")];
    assert_eq!(followed.eventually_changes(2).await, expected);
    assert_eq!(followed.resets(), ["first"]);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_restarted_costs_nothing() {
    let server = Postgres::start().unwrap();
    let followed = Followed::new(&server);
    let manager = followed.running().await;
    followed.table(&manager, "orders").await;
    nothing_is_lost_or_twice(&followed, async || {
        for restart in [Postgres::restart_fast, Postgres::restart_immediate] {
            more_rows(&followed).await;
            let mut events = manager.events();
            tokio::task::block_in_place(|| restart(&server).unwrap());
            comes_back(&manager, &mut events).await;
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

/// On one thread: a recorder of this test's own is its thread's.
#[tokio::test]
async fn restarts_are_counted_by_reason_and_all_metrics_pass_promtool() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let server = Postgres::builder().config("max_slot_wal_keep_size", "1GB").start().unwrap();
    let followed = Followed::new(&server);
    let proxy = Proxy::start(server.addr());
    let url = format!("postgres://postgres@{}/{}", proxy.addr(), followed.database);
    let manager = started(&followed, followed.config_at(&url)).await;
    followed.table(&manager, "orders").await;
    let mut events = manager.events();
    for _ in 0..2 {
        proxy.cut();
        assert_eq!(comes_back(&manager, &mut events).await, "lost");
    }
    followed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'");
    assert_eq!(comes_back(&manager, &mut events).await, "server");
    followed.sql("INSERT INTO orders VALUES (1, 'seen')");
    followed.eventually_changes(1).await;
    let end = followed.transactions()[0].end;

    // Somebody looks every 10 s.
    put_forward(Duration::from_secs(11)).await;
    eventually("the server was asked", true, async || page.render().contains(metrics::SAFE)).await;
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
    for condition in Condition::ALL {
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

/// `promtool check metrics`, as Debian's package prometheus has it.
fn check(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("promtool is there: script/bootstrap installs it");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
