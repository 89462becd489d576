//! Life cycle of a reservoir under a paused clock, with fake connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use forebay_quota::{Quota, RateConfig};
use forebay_reservoir::{
    CheckoutError, Connect, ConnectionCounts, ConnectionError, ConnectionErrorKind, ConnectionGuard,
    ConnectionLimits, DialSlot, FillProgress, Reservoir, ReservoirConfig, ReservoirConnection,
    ReservoirHooks, Reset, Shortage,
};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// Outcome of the next dials.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dial {
    Works,
    Fails(ConnectionErrorKind),
    HasNoCredentials,
    Panics,
    Hangs,
    /// After a failed or dropped dial, the server keeps a backend for this time.
    LeavesBehind(Duration),
}

/// State of the fake server and its connections.
#[derive(Default)]
struct FakeServer {
    dial: Mutex<Option<Dial>>,
    dials: AtomicU32,
    open: AtomicU32,
    resets: AtomicU32,
    reset_takes: Mutex<Duration>,
    close_takes: Mutex<Duration>,
    left_behind: AtomicU32,
}

impl FakeServer {
    fn will(&self, dial: Dial) {
        *self.dial.lock() = Some(dial);
    }

    fn plan(&self) -> Dial {
        self.dial.lock().unwrap_or(Dial::Works)
    }

    fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    fn dials(&self) -> u32 {
        self.dials.load(Ordering::Relaxed)
    }
}

struct Connector(Arc<FakeServer>);

struct FakeConnection {
    number: u32,
    closed: Arc<AtomicBool>,
    server: Arc<FakeServer>,
}

impl Connect for Connector {
    type Connection = FakeConnection;
    type Credentials = ();

    async fn credentials(&self) -> Result<(), ConnectionError> {
        match self.0.plan() {
            Dial::HasNoCredentials => {
                Err(ConnectionError::new(ConnectionErrorKind::Credentials, "the vault is shut"))
            }
            _ => Ok(()),
        }
    }

    async fn connect(&self, (): ()) -> Result<FakeConnection, ConnectionError> {
        let number = self.0.dials.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        match self.0.plan() {
            Dial::Fails(kind) => Err(ConnectionError::new(kind, "as the test wants")),
            Dial::Panics => panic!("as the test wants"),
            Dial::Hangs => std::future::pending().await,
            _ => {
                self.0.open.fetch_add(1, Ordering::Relaxed);
                Ok(FakeConnection { number, closed: Arc::default(), server: self.0.clone() })
            }
        }
    }

    async fn connect_in_slot(&self, (): (), slot: DialSlot) -> Result<FakeConnection, ConnectionError> {
        let Dial::LeavesBehind(takes) = self.0.plan() else { return self.connect(()).await };
        let _left_behind = LeftBehind { slot, takes, server: self.0.clone() };
        self.0.dials.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

/// Backend that an abandoned dial leaves on the server.
struct LeftBehind {
    slot: DialSlot,
    takes: Duration,
    server: Arc<FakeServer>,
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        let (slot, takes, server) = (self.slot.clone(), self.takes, self.server.clone());
        server.left_behind.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _released = timeout(takes, slot.released()).await;
            server.left_behind.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl ReservoirConnection for FakeConnection {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    async fn reset(&mut self, _: &str) -> Result<(), ConnectionError> {
        let takes = *self.server.reset_takes.lock();
        sleep(takes).await;
        self.server.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn close(self) {
        let takes = *self.server.close_takes.lock();
        sleep(takes).await;
    }
}

impl Drop for FakeConnection {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn config(target: u32) -> ReservoirConfig {
    ReservoirConfig::new(target).reset(Reset::None)
}

fn start(config: ReservoirConfig) -> (Reservoir<FakeConnection>, Arc<FakeServer>) {
    start_with(config, ConnectionLimits::local().rate(RateConfig::per_second(1e6)))
}

fn start_with(
    config: ReservoirConfig,
    limits: ConnectionLimits,
) -> (Reservoir<FakeConnection>, Arc<FakeServer>) {
    let server = Arc::new(FakeServer::default());
    (Reservoir::start(Connector(server.clone()), config, limits).unwrap(), server)
}

async fn filled(target: u32) -> (Reservoir<FakeConnection>, Arc<FakeServer>) {
    let (reservoir, server) = start(config(target).low_watermark(target));
    reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    (reservoir, server)
}

async fn take(reservoir: &Reservoir<FakeConnection>) -> ConnectionGuard<FakeConnection> {
    reservoir.checkout().await.unwrap()
}

/// Waits until all tasks that are ready have run.
async fn settle() {
    sleep(Duration::from_millis(20)).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_callers_get_returned_connections_in_order() {
    let (reservoir, server) = filled(2).await;
    let (one, two) = (take(&reservoir).await, take(&reservoir).await);
    assert_eq!((one.number, two.number), (0, 1));
    assert!(reservoir.try_checkout().unwrap().is_none());
    let third = reservoir.checkout();
    let fourth = reservoir.checkout();
    tokio::pin!(third, fourth);
    assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
    drop(two);
    assert!(fourth.as_mut().now_or_never().is_none(), "the third caller is first");
    assert_eq!(third.await.unwrap().number, 1);
    // The third caller has already returned it.
    assert_eq!(fourth.await.unwrap().number, 1);
    drop(one);
    assert_eq!(reservoir.status().counts, ConnectionCounts { ready: 2, ..ConnectionCounts::default() });
    assert_eq!((server.dials(), server.open()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_checkout_that_times_out_says_why() {
    let (reservoir, _server) = filled(1).await;
    let held = take(&reservoir).await;
    let began = Instant::now();
    let error = reservoir.checkout().await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::from_millis(100));
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::AllLent { lent: 1 }, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "no connection within 100ms: all 1 connections are in use; raise target_ready, or hold them for less long"
    );
    drop(held);

    let (reservoir, server) = start(config(1));
    server.will(Dial::Fails(ConnectionErrorKind::Refused));
    let error = reservoir.checkout().await.unwrap_err();
    let CheckoutError::Empty { why: Shortage::Connect { kind: ConnectionErrorKind::Refused, why }, .. } =
        error
    else {
        panic!("{error:?}")
    };
    assert_eq!(why, "the server refuses us: as the test wants");

    let (reservoir, server) = start(config(1));
    server.will(Dial::HasNoCredentials);
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::Credentials { .. }, .. }), "{error:?}");
    assert_eq!(server.dials(), 0);

    let (reservoir, _server) = start_with(config(4), ConnectionLimits::local().per_second(1.0));
    let _first = reservoir.checkout().await.unwrap();
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::RateLimited, .. }), "{error:?}");

    let (reservoir, _server) =
        start_with(config(4), ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(1));
    let _first = reservoir.checkout().await.unwrap();
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::LeaseDenied { .. }, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_checkout_leaks_no_connection() {
    let (reservoir, _server) = filled(1).await;
    let held = take(&reservoir).await;
    // Dropped while it waits.
    let mut waits = Box::pin(reservoir.checkout());
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(reservoir.status().waiting, 1);
    drop(waits);
    assert_eq!(reservoir.status().waiting, 0);
    // Dropped after the connection was sent and before it was received.
    let mut waits = Box::pin(reservoir.checkout());
    assert!(waits.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(reservoir.status().counts.lent, 1, "it was sent to the waiting caller");
    drop(waits);
    assert_eq!(reservoir.status().counts, ConnectionCounts { ready: 1, ..ConnectionCounts::default() });
}

#[tokio::test(start_paused = true)]
async fn bad_connections_are_replaced() {
    let (reservoir, server) = filled(3).await;
    let mut marked = take(&reservoir).await;
    let broken = take(&reservoir).await;
    marked.mark_bad();
    broken.closed.store(true, Ordering::Relaxed);
    drop((marked, broken));
    settle().await;
    assert_eq!((reservoir.status().counts.ready, server.open(), server.dials()), (3, 3, 5));
    // Two connections break while they are ready: no caller gets them.
    let lent = [take(&reservoir).await, take(&reservoir).await, take(&reservoir).await];
    let [one, two, fit] = lent.map(|link| (link.number, link.closed.clone()));
    one.1.store(true, Ordering::Relaxed);
    two.1.store(true, Ordering::Relaxed);
    assert_eq!(reservoir.status().counts.ready, 3);
    assert_eq!(take(&reservoir).await.number, fit.0);
}

#[tokio::test(start_paused = true)]
async fn nothing_within_the_guard_window_is_lent_and_a_steady_reservoir_never_dips() {
    let config = config(8)
        .low_watermark(8)
        .base_lifetime(Duration::from_secs(60))
        .lifetime_jitter(Duration::from_secs(20))
        .guard_window(Duration::from_secs(5));
    let (reservoir, server) = start(config);
    reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    let began = Instant::now();
    let mut least = u32::MAX;
    while began.elapsed() < Duration::from_secs(600) {
        sleep(Duration::from_millis(100)).await;
        let lent = reservoir.try_checkout().unwrap().expect("one is always ready");
        drop(lent);
        least = least.min(reservoir.status().counts.ready);
    }
    assert!(least >= 8, "it dipped to {least}");
    // Ten minutes with lifetimes of about a minute.
    assert!((60..=110).contains(&server.dials()), "{} dials", server.dials());
    assert_eq!(server.open(), reservoir.status().counts.total());
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_panics_hangs_or_fails_releases_its_slot_and_lease() {
    let quota = Quota::local();
    let limits =
        || ConnectionLimits::shared(quota.clone()).rate(RateConfig::per_second(1e6)).connections(100);
    for dial in
        [Dial::Panics, Dial::Hangs, Dial::Fails(ConnectionErrorKind::Unreachable), Dial::HasNoCredentials]
    {
        let (reservoir, server) = start_with(config(4).dial_timeout(Duration::from_secs(1)), limits());
        server.will(dial);
        sleep(Duration::from_secs(3)).await;
        assert_eq!((reservoir.status().counts.ready, server.open()), (0, 0), "{dial:?}");
        server.will(Dial::Works);
        timeout(Duration::from_secs(20), reservoir.initial_fill(Duration::from_secs(20)))
            .await
            .unwrap()
            .unwrap();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(
            reservoir.status().counts,
            ConnectionCounts { ready: 4, ..ConnectionCounts::default() },
            "{dial:?}"
        );
        assert_eq!(limits().quota().status().budgets[0].usage.used_here, 4, "{dial:?}: leases");
        assert_eq!(reservoir.close(Duration::from_secs(5)).await, 0);
        assert_eq!((server.open(), limits().quota().status().budgets[0].usage.used_here), (0, 0), "{dial:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_token_is_spent_only_when_the_dial_begins() {
    let rate = RateConfig::per_second(0.001).burst(1);
    let (reservoir, server) = start_with(config(1), ConnectionLimits::local().rate(rate));
    server.will(Dial::HasNoCredentials);
    sleep(Duration::from_secs(10)).await;
    server.will(Dial::Works);
    // The token was not spent: the next one would come after a quarter of an hour.
    drop(reservoir.checkout_within(Duration::from_secs(120)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_reset_happens_between_two_callers_and_one_that_takes_too_long_ends_the_connection() {
    let (reservoir, server) = start(ReservoirConfig::new(1));
    let first = reservoir.checkout_within(Duration::from_secs(1)).await.unwrap();
    *server.reset_takes.lock() = Duration::from_millis(50);
    drop(first);
    assert_eq!(reservoir.status().counts, ConnectionCounts { resetting: 1, ..ConnectionCounts::default() });
    let began = Instant::now();
    let second = reservoir.checkout().await.unwrap();
    assert_eq!((began.elapsed(), server.resets.load(Ordering::Relaxed)), (Duration::from_millis(50), 1));
    *server.reset_takes.lock() = Duration::from_secs(3600);
    drop(second);
    sleep(Duration::from_millis(1_100)).await;
    *server.reset_takes.lock() = Duration::ZERO;
    let third = reservoir.checkout().await.unwrap();
    assert_eq!((third.number, server.open()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_clean_return_skips_the_reset_unless_the_connection_was_marked_bad() {
    let (reservoir, server) = start(ReservoirConfig::new(1));
    let resets = || server.resets.load(Ordering::Relaxed);
    reservoir.checkout_within(Duration::from_secs(1)).await.unwrap().return_without_reset();
    assert_eq!(
        (reservoir.status().counts, resets()),
        (ConnectionCounts { ready: 1, ..ConnectionCounts::default() }, 0)
    );
    // A clean return applies only once.
    drop(take(&reservoir).await);
    settle().await;
    assert_eq!(
        (reservoir.status().counts, resets()),
        (ConnectionCounts { ready: 1, ..ConnectionCounts::default() }, 1)
    );
    let mut marked = take(&reservoir).await;
    marked.mark_bad();
    marked.return_without_reset();
    settle().await;
    assert_eq!((server.dials(), server.open(), resets()), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_when_the_server_has_closed_the_connection() {
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(1);
    let quota = limits.quota().clone();
    let close_timeout = Duration::from_secs(600);
    let (reservoir, server) = start_with(config(1).max(2).close_timeout(close_timeout), limits);
    *server.close_takes.lock() = Duration::from_millis(400);
    let mut held = take(&reservoir).await;
    held.mark_bad();
    drop(held);
    sleep(Duration::from_millis(390)).await;
    assert_eq!((quota.status().budgets[0].usage.used_here, server.dials()), (1, 1), "it is still open");
    drop(reservoir.checkout_within(Duration::from_secs(1)).await.unwrap());
    assert_eq!((server.dials(), server.open()), (2, 1));
    // A connection that the server never closes is released after the close timeout.
    *server.close_takes.lock() = Duration::from_secs(3600);
    let mut held = take(&reservoir).await;
    held.mark_bad();
    drop(held);
    sleep(close_timeout - Duration::from_millis(10)).await;
    assert_eq!((server.dials(), server.open(), quota.status().budgets[0].usage.used_here), (2, 1, 1));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((server.dials(), server.open(), quota.status().budgets[0].usage.used_here), (3, 1, 1));
}

/// Retires all connections of a full reservoir; the server doesn't close them.
async fn all_linger(target: u32) -> (Reservoir<FakeConnection>, Arc<FakeServer>) {
    let (reservoir, server) = start(config(target).low_watermark(target).max(target));
    reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    *server.close_takes.lock() = Duration::from_secs(3600);
    for _ in 0..target {
        take(&reservoir).await.mark_bad();
    }
    sleep(Duration::from_millis(1_500)).await;
    (reservoir, server)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_nothing_gets_no_more_connections_and_checkouts_say_so() {
    let (reservoir, server) = all_linger(3).await;
    let status = reservoir.status();
    assert_eq!(status.counts, ConnectionCounts { retiring: 3, ..ConnectionCounts::default() });
    assert_eq!((status.lingering, server.dials(), server.open()), (3, 3, 3));
    let longest = status.longest_lingering.unwrap();
    assert!(longest >= Duration::from_millis(1_400) && longest < Duration::from_secs(2), "{longest:?}");
    let error = reservoir.checkout_within(Duration::from_millis(500)).await.unwrap_err();
    let message = error.to_string();
    assert!(message.contains("3 of 3 connections are waiting for the server to close them"), "{message}");
    let CheckoutError::Empty { why, .. } = error else { panic!("{error:?}") };
    assert!(matches!(why, Shortage::Lingering { lingering: 3, max: 3, lent: 0, .. }), "{why:?}");
    assert_eq!(why.as_str(), "lingering");
    // A slot is released ten minutes after its connection was retired.
    sleep(Duration::from_secs(590)).await;
    assert_eq!(server.dials(), 3);
    sleep(Duration::from_secs(12)).await;
    assert_eq!((server.dials(), reservoir.status().counts.ready, reservoir.status().lingering), (6, 3, 0));
}

/// Collects warnings about slots released unclosed, with their fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{field}={value:?} ");
        });
        // The paused clock jumps, which causes other warnings.
        if text.contains("unclosed") {
            self.0.lock().push(text);
        }
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn each_slot_released_unclosed_logs_one_warning() {
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let (_reservoir, _server) = all_linger(2).await;
    sleep(Duration::from_secs(590)).await;
    assert_eq!(*warnings.0.lock(), Vec::<String>::new());
    sleep(Duration::from_secs(60)).await;
    let warnings = warnings.0.lock();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in &*warnings {
        for text in ["connection slot released unclosed", "waited=600s", "max=2", "open=", "reason=\"bad\""] {
            assert!(warning.contains(text), "{warning}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn close_returns_after_its_timeout_if_the_server_closes_nothing() {
    let (reservoir, server) = all_linger(2).await;
    let began = Instant::now();
    assert_eq!(reservoir.close(Duration::from_secs(3)).await, 2);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(reservoir.status().counts.retiring, 2, "they are still counted");
    drop(reservoir);
    sleep(Duration::from_secs(601)).await;
    assert_eq!(server.open(), 0, "the close timeout releases them");
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_dial_counts_until_the_server_has_closed_it() {
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(3);
    let quota = limits.quota().clone();
    let config = config(3).max(3).dial_timeout(Duration::from_secs(1));
    let (reservoir, server) = start_with(config, limits);
    server.will(Dial::LeavesBehind(Duration::from_secs(30)));
    let mut most = 0;
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        let counts = reservoir.status().counts;
        most = most.max(server.left_behind.load(Ordering::Relaxed) + counts.dialing);
        assert!(counts.total() <= 3, "{counts:?}");
    }
    assert_eq!((most, server.dials()), (3, 3), "at no time were there more than three");
    assert_eq!(reservoir.status().counts, ConnectionCounts { retiring: 3, ..ConnectionCounts::default() });
    assert_eq!(quota.status().budgets[0].usage.used_here, 3, "and each has its lease");
    server.will(Dial::Works);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(reservoir.status().counts, ConnectionCounts { ready: 3, ..ConnectionCounts::default() });
    assert_eq!(server.left_behind.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_server_to_close_abandoned_dials() {
    let (reservoir, server) = start(config(2));
    server.will(Dial::LeavesBehind(Duration::from_secs(2)));
    settle().await;
    assert_eq!(reservoir.status().counts.dialing, 2);
    let began = Instant::now();
    assert_eq!(reservoir.close(Duration::from_secs(5)).await, 0);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(server.left_behind.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn the_close_timeout_closes_what_an_abandoned_dial_left() {
    let config = config(1).max(1).dial_timeout(Duration::from_secs(1)).close_timeout(Duration::from_secs(60));
    let (reservoir, server) = start(config);
    server.will(Dial::LeavesBehind(Duration::from_secs(3600)));
    sleep(Duration::from_secs(2)).await;
    server.will(Dial::Works);
    assert_eq!((server.left_behind.load(Ordering::Relaxed), reservoir.status().counts.retiring), (1, 1));
    sleep(Duration::from_secs(62)).await;
    assert_eq!((server.left_behind.load(Ordering::Relaxed), reservoir.status().counts.ready), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_view_never_exceeds_its_quota() {
    let (reservoir, _server) = filled(4).await;
    let admin = reservoir.view("admin", 1);
    let first = admin.checkout().await.unwrap();
    assert!(admin.try_checkout().unwrap().is_none(), "the view has reached its quota");
    let mut second = Box::pin(admin.checkout());
    assert!(second.as_mut().now_or_never().is_none());
    let others = [take(&reservoir).await, take(&reservoir).await, take(&reservoir).await];
    drop(others);
    assert!(second.as_mut().now_or_never().is_none(), "three are ready, and none is for it");
    drop(first);
    let second = second.await.unwrap();
    let error = admin.checkout().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no connection within 100ms: the view \"admin\" has all 1 that it may have"
    );
    drop(second);
    let status = reservoir.status();
    assert_eq!((status.views[1].name.as_str(), status.views[1].quota, status.views[1].lent), ("admin", 1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_initial_fill_reports_progress_and_fails_only_without_any_connection() {
    let (reservoir, _server) = start(config(8).low_watermark(5));
    let mut steps = Vec::new();
    let filling = reservoir.initial_fill_with(Duration::from_secs(5), |step| steps.push(step)).await.unwrap();
    assert!(filling.ready >= 5 && steps.len() > 1, "{filling:?} {steps:?}");
    assert_eq!(steps[0], FillProgress { ready: 0, wanted: 5 });

    let (reservoir, server) = start(config(8));
    server.will(Dial::Fails(ConnectionErrorKind::Full));
    let error = reservoir.initial_fill(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.to_string(), "not one connection within 5s: the server has no room: as the test wants");

    let (reservoir, _server) =
        start_with(config(8), ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(2));
    let filling = reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    assert_eq!(filling, FillProgress { ready: 2, wanted: 4 });
}

#[tokio::test(start_paused = true)]
async fn close_fails_waiting_callers_and_waits_for_lent_connections() {
    let (reservoir, server) = filled(2).await;
    let (one, two) = (take(&reservoir).await, take(&reservoir).await);
    let waits = reservoir.checkout_within(Duration::from_secs(60));
    tokio::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(reservoir.close(Duration::from_millis(100)).await, 2);
    assert!(matches!(waits.await, Err(CheckoutError::Closed)));
    assert!(matches!(reservoir.try_checkout(), Err(CheckoutError::Closed)));
    drop(one);
    let closed = reservoir.close(Duration::from_secs(60));
    tokio::pin!(closed);
    assert!(closed.as_mut().now_or_never().is_none());
    drop(two);
    assert_eq!((closed.await, server.open()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_reservoir() {
    let (reservoir, server) = filled(3).await;
    let view = reservoir.view("late", 2);
    let lent = take(&reservoir).await;
    drop(reservoir);
    settle().await;
    assert_eq!(server.open(), 3, "a view is a handle, too");
    drop(view);
    settle().await;
    assert_eq!(server.open(), 1);
    drop(lent);
    settle().await;
    assert_eq!(server.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_checkout_beyond_max_waiting_fails_at_once() {
    let (reservoir, _server) = start(config(1).max_waiting(2));
    let (mut one, mut two) = (Box::pin(reservoir.checkout()), Box::pin(reservoir.checkout()));
    assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
    let third = reservoir.checkout().now_or_never().expect("at once");
    assert!(matches!(third, Err(CheckoutError::Busy { waiting: 2 })));
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let never_lent = config(1).base_lifetime(Duration::from_secs(30));
    let error =
        Reservoir::start(Connector(Arc::default()), never_lent, ConnectionLimits::local()).unwrap_err();
    assert!(error.to_string().starts_with("a lifetime of 30s within a guard window of 45s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn limits_are_counted_per_server() {
    struct OtherEndpoint(Connector);
    impl Connect for OtherEndpoint {
        type Connection = FakeConnection;
        type Credentials = ();

        fn endpoint(&self) -> String {
            "elsewhere".into()
        }

        async fn credentials(&self) -> Result<(), ConnectionError> {
            self.0.credentials().await
        }

        async fn connect(&self, (): ()) -> Result<FakeConnection, ConnectionError> {
            self.0.connect(()).await
        }
    }
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6));
    let (one, _server) = start_with(config(8), limits.clone().connections(8));
    let other =
        Reservoir::start(OtherEndpoint(Connector(Arc::default())), config(8), limits.connections(2)).unwrap();
    settle().await;
    assert_eq!((one.status().counts.ready, other.status().counts.ready), (8, 2));
}

#[tokio::test(start_paused = true)]
async fn extreme_durations_are_clamped() {
    // Two guard windows are as long as the lifetime: it isn't due for replacement at once.
    let short = Duration::from_secs(60);
    let (reservoir, server) =
        start(config(4).base_lifetime(short).lifetime_jitter(Duration::ZERO).guard_window(short / 2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((reservoir.status().counts.ready, server.dials()), (4, 4));
    let (reservoir, server) = start(
        config(4).base_lifetime(Duration::MAX).lifetime_jitter(Duration::MAX).replace_ahead(Duration::MAX),
    );
    let client = reservoir.checkout_within(Duration::MAX).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!((reservoir.status().counts.ready, server.dials(), client.number), (3, 4, 0));
    let none = start(config(4).max(0)).0;
    assert_eq!((none.status().target, none.status().max), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_connector_is_reported_to_waiting_callers() {
    let (reservoir, server) = start(config(1));
    server.will(Dial::Panics);
    let error = reservoir.checkout().await.unwrap_err();
    assert!(error.to_string().contains("has its connector panicked?"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_fails_its_hook_keeps_its_slot_until_it_is_closed() {
    let server = Arc::new(FakeServer::default());
    *server.close_takes.lock() = Duration::from_secs(5);
    let hooks = ReservoirHooks::new().after_connect(|connection: &mut FakeConnection| {
        let first = connection.number == 0;
        Box::pin(async move { if first { Err("as the test wants".into()) } else { Ok(()) } })
    });
    let limits = ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(1);
    let config = config(1).max(1).checkout_timeout(Duration::from_secs(20));
    let reservoir = Reservoir::start_with_hooks(Connector(server.clone()), config, limits, hooks).unwrap();
    let began = Instant::now();
    settle().await;
    assert_eq!(reservoir.status().counts, ConnectionCounts { retiring: 1, ..ConnectionCounts::default() });
    assert_eq!(
        reservoir.status().last_failure.as_deref(),
        Some("the after-connect hook failed: as the test wants")
    );
    let client = reservoir.checkout().await.unwrap();
    assert_eq!((client.number, server.dials()), (1, 2));
    assert!(began.elapsed() >= Duration::from_secs(5), "slot and lease were in use until then");
}
