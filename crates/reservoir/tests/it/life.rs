//! The life of a reservoir under a paused clock, on connections that do what the test says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_quota::{Quota, RateConfig};
use forebay_reservoir::{
    CheckoutError, Connect, ConnectError, ConnectErrorKind, Connection, Counts, DialSlot, Filling, Guard,
    Limits, Reservoir, ReservoirConfig, Reset, Shortage,
};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

/// What the next dials come to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dial {
    Works,
    Fails(ConnectErrorKind),
    HasNoCredentials,
    Panics,
    Hangs,
    /// The server goes on for so long with a dial that was given up, whether it failed or was dropped.
    LeavesBehind(Duration),
}

/// What the test knows of all connections.
#[derive(Default)]
struct Site {
    dial: Mutex<Option<Dial>>,
    dials: AtomicU32,
    open: AtomicU32,
    resets: AtomicU32,
    reset_takes: Mutex<Duration>,
    close_takes: Mutex<Duration>,
    left_behind: AtomicU32,
}

impl Site {
    fn will(&self, dial: Dial) {
        *self.dial.lock().unwrap() = Some(dial);
    }

    fn plan(&self) -> Dial {
        self.dial.lock().unwrap().unwrap_or(Dial::Works)
    }

    fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    fn dials(&self) -> u32 {
        self.dials.load(Ordering::Relaxed)
    }
}

struct Connector(Arc<Site>);

struct Link {
    number: u32,
    closed: Arc<AtomicBool>,
    site: Arc<Site>,
}

impl Connect for Connector {
    type Connection = Link;
    type Credentials = ();

    async fn credentials(&self) -> Result<(), ConnectError> {
        match self.0.plan() {
            Dial::HasNoCredentials => {
                Err(ConnectError::new(ConnectErrorKind::Credentials, "the vault is shut"))
            }
            _ => Ok(()),
        }
    }

    async fn connect(&self, (): ()) -> Result<Link, ConnectError> {
        let number = self.0.dials.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        match self.0.plan() {
            Dial::Fails(kind) => Err(ConnectError::new(kind, "as the test wants")),
            Dial::Panics => panic!("as the test wants"),
            Dial::Hangs => std::future::pending().await,
            _ => {
                self.0.open.fetch_add(1, Ordering::Relaxed);
                Ok(Link { number, closed: Arc::default(), site: self.0.clone() })
            }
        }
    }

    async fn connect_in_slot(&self, (): (), slot: DialSlot) -> Result<Link, ConnectError> {
        let Dial::LeavesBehind(takes) = self.0.plan() else { return self.connect(()).await };
        let _left_behind = LeftBehind { slot, takes, site: self.0.clone() };
        self.0.dials.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

/// What a dial that is given up leaves to the server.
struct LeftBehind {
    slot: DialSlot,
    takes: Duration,
    site: Arc<Site>,
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        let (slot, takes, site) = (self.slot.clone(), self.takes, self.site.clone());
        site.left_behind.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _given_up = timeout(takes, slot.given_back()).await;
            site.left_behind.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl Connection for Link {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    async fn reset(&mut self, _: &str) -> Result<(), ConnectError> {
        let takes = *self.site.reset_takes.lock().unwrap();
        sleep(takes).await;
        self.site.resets.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn close(self) {
        let takes = *self.site.close_takes.lock().unwrap();
        sleep(takes).await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.site.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn config(target: u32) -> ReservoirConfig {
    ReservoirConfig::new(target).reset(Reset::None)
}

fn start(config: ReservoirConfig) -> (Reservoir<Link>, Arc<Site>) {
    start_with(config, Limits::local().rate(RateConfig::per_second(1e6)))
}

fn start_with(config: ReservoirConfig, limits: Limits) -> (Reservoir<Link>, Arc<Site>) {
    let site = Arc::new(Site::default());
    (Reservoir::start(Connector(site.clone()), config, limits).unwrap(), site)
}

async fn filled(target: u32) -> (Reservoir<Link>, Arc<Site>) {
    let (reservoir, site) = start(config(target).low_watermark(target));
    reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    (reservoir, site)
}

async fn take(reservoir: &Reservoir<Link>) -> Guard<Link> {
    reservoir.checkout().await.unwrap()
}

/// Everything that is ready to run has run.
async fn settle() {
    sleep(Duration::from_millis(20)).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_comes_back_is_lent_again_in_its_turn() {
    let (reservoir, site) = filled(2).await;
    let (one, two) = (take(&reservoir).await, take(&reservoir).await);
    assert_eq!((one.number, two.number), (0, 1));
    assert!(reservoir.try_checkout().unwrap().is_none());
    let third = reservoir.checkout();
    let fourth = reservoir.checkout();
    tokio::pin!(third, fourth);
    assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
    drop(two);
    assert!(fourth.as_mut().now_or_never().is_none(), "it isn't its turn");
    assert_eq!(third.await.unwrap().number, 1);
    // The third has given it back already.
    assert_eq!(fourth.await.unwrap().number, 1);
    drop(one);
    assert_eq!(reservoir.status().counts, Counts { ready: 2, ..Counts::default() });
    assert_eq!((site.dials(), site.open()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_in_vain_is_told_why() {
    let (reservoir, _site) = filled(1).await;
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

    let (reservoir, site) = start(config(1));
    site.will(Dial::Fails(ConnectErrorKind::Refused));
    let error = reservoir.checkout().await.unwrap_err();
    let CheckoutError::Empty { why: Shortage::Connect { kind: ConnectErrorKind::Refused, why }, .. } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(why, "the server refuses us: as the test wants");

    let (reservoir, site) = start(config(1));
    site.will(Dial::HasNoCredentials);
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::Credentials { .. }, .. }), "{error:?}");
    assert_eq!(site.dials(), 0);

    let (reservoir, _site) = start_with(config(4), Limits::local().per_second(1.0));
    let _first = reservoir.checkout().await.unwrap();
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::RateLimited, .. }), "{error:?}");

    let (reservoir, _site) =
        start_with(config(4), Limits::local().rate(RateConfig::per_second(1e6)).connections(1));
    let _first = reservoir.checkout().await.unwrap();
    let error = reservoir.checkout().await.unwrap_err();
    assert!(matches!(error, CheckoutError::Empty { why: Shortage::LeaseDenied { .. }, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_at_any_moment_takes_nothing_along() {
    let (reservoir, _site) = filled(1).await;
    let held = take(&reservoir).await;
    // In line, and then not.
    let mut waits = Box::pin(reservoir.checkout());
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(reservoir.status().waiting, 1);
    drop(waits);
    assert_eq!(reservoir.status().waiting, 0);
    // Served, and gone before it looks.
    let mut waits = Box::pin(reservoir.checkout());
    assert!(waits.as_mut().now_or_never().is_none());
    drop(held);
    assert_eq!(reservoir.status().counts.lent, 1, "it is on its way to who waits");
    drop(waits);
    assert_eq!(reservoir.status().counts, Counts { ready: 1, ..Counts::default() });
}

#[tokio::test(start_paused = true)]
async fn bad_connections_are_replaced() {
    let (reservoir, site) = filled(3).await;
    let mut marked = take(&reservoir).await;
    let broken = take(&reservoir).await;
    marked.mark_bad();
    broken.closed.store(true, Ordering::Relaxed);
    drop((marked, broken));
    settle().await;
    assert_eq!((reservoir.status().counts.ready, site.open(), site.dials()), (3, 3, 5));
    // Two that break while they are ready: a caller meets neither.
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
    let (reservoir, site) = start(config);
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
    // Ten minutes of lives of about a minute.
    assert!((60..=110).contains(&site.dials()), "{} dials", site.dials());
    assert_eq!(site.open(), reservoir.status().counts.total());
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_panics_hangs_or_fails_gives_everything_back() {
    let quota = Quota::local();
    let limits = || Limits::shared(quota.clone()).rate(RateConfig::per_second(1e6)).connections(100);
    for dial in
        [Dial::Panics, Dial::Hangs, Dial::Fails(ConnectErrorKind::Unreachable), Dial::HasNoCredentials]
    {
        let (reservoir, site) = start_with(config(4).dial_timeout(Duration::from_secs(1)), limits());
        site.will(dial);
        sleep(Duration::from_secs(3)).await;
        assert_eq!((reservoir.status().counts.ready, site.open()), (0, 0), "{dial:?}");
        site.will(Dial::Works);
        timeout(Duration::from_secs(20), reservoir.initial_fill(Duration::from_secs(20)))
            .await
            .unwrap()
            .unwrap();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(reservoir.status().counts, Counts { ready: 4, ..Counts::default() }, "{dial:?}");
        assert_eq!(limits().quota().status().budgets[0].usage.used_here, 4, "{dial:?}: leases");
        assert_eq!(reservoir.close(Duration::from_secs(5)).await, 0);
        assert_eq!((site.open(), limits().quota().status().budgets[0].usage.used_here), (0, 0), "{dial:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_spent_when_the_dial_begins_and_not_before() {
    let rate = RateConfig::per_second(0.001).burst(1);
    let (reservoir, site) = start_with(config(1), Limits::local().rate(rate));
    site.will(Dial::HasNoCredentials);
    sleep(Duration::from_secs(10)).await;
    site.will(Dial::Works);
    // The one token is still there, nothing was dialed with it: the next comes after a quarter of an hour.
    drop(reservoir.checkout_within(Duration::from_secs(120)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_reset_happens_between_two_callers_and_one_that_takes_too_long_ends_the_connection() {
    let (reservoir, site) = start(ReservoirConfig::new(1));
    let first = reservoir.checkout_within(Duration::from_secs(1)).await.unwrap();
    *site.reset_takes.lock().unwrap() = Duration::from_millis(50);
    drop(first);
    assert_eq!(reservoir.status().counts, Counts { resetting: 1, ..Counts::default() });
    let began = Instant::now();
    let second = reservoir.checkout().await.unwrap();
    assert_eq!((began.elapsed(), site.resets.load(Ordering::Relaxed)), (Duration::from_millis(50), 1));
    *site.reset_takes.lock().unwrap() = Duration::from_secs(3600);
    drop(second);
    sleep(Duration::from_millis(1_100)).await;
    *site.reset_takes.lock().unwrap() = Duration::ZERO;
    let third = reservoir.checkout().await.unwrap();
    assert_eq!((third.number, site.open()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_clean_is_ready_without_a_reset_unless_it_was_marked() {
    let (reservoir, site) = start(ReservoirConfig::new(1));
    let resets = || site.resets.load(Ordering::Relaxed);
    reservoir.checkout_within(Duration::from_secs(1)).await.unwrap().give_back_clean();
    assert_eq!((reservoir.status().counts, resets()), (Counts { ready: 1, ..Counts::default() }, 0));
    // That it was clean once says nothing of the next time.
    drop(take(&reservoir).await);
    settle().await;
    assert_eq!((reservoir.status().counts, resets()), (Counts { ready: 1, ..Counts::default() }, 1));
    let mut marked = take(&reservoir).await;
    marked.mark_bad();
    marked.give_back_clean();
    settle().await;
    assert_eq!((site.dials(), site.open(), resets()), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_free_when_the_server_has_let_go() {
    let limits = Limits::local().rate(RateConfig::per_second(1e6)).connections(1);
    let quota = limits.quota().clone();
    let patience = Duration::from_secs(600);
    let (reservoir, site) = start_with(config(1).max(2).close_timeout(patience), limits);
    *site.close_takes.lock().unwrap() = Duration::from_millis(400);
    let mut held = take(&reservoir).await;
    held.mark_bad();
    drop(held);
    sleep(Duration::from_millis(390)).await;
    assert_eq!((quota.status().budgets[0].usage.used_here, site.dials()), (1, 1), "it is still open");
    drop(reservoir.checkout_within(Duration::from_secs(1)).await.unwrap());
    assert_eq!((site.dials(), site.open()), (2, 1));
    // One that never lets go is given up after the close timeout, and not before.
    *site.close_takes.lock().unwrap() = Duration::from_secs(3600);
    let mut held = take(&reservoir).await;
    held.mark_bad();
    drop(held);
    sleep(patience - Duration::from_millis(10)).await;
    assert_eq!((site.dials(), site.open(), quota.status().budgets[0].usage.used_here), (2, 1, 1));
    sleep(Duration::from_secs(1)).await;
    assert_eq!((site.dials(), site.open(), quota.status().budgets[0].usage.used_here), (3, 1, 1));
}

/// Retires all connections of a reservoir that has as many as it may have; the server doesn't close them.
async fn all_linger(target: u32) -> (Reservoir<Link>, Arc<Site>) {
    let (reservoir, site) = start(config(target).low_watermark(target).max(target));
    reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    *site.close_takes.lock().unwrap() = Duration::from_secs(3600);
    for _ in 0..target {
        take(&reservoir).await.mark_bad();
    }
    sleep(Duration::from_millis(1_500)).await;
    (reservoir, site)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_nothing_gets_no_more_connections_and_callers_are_told_so() {
    let (reservoir, site) = all_linger(3).await;
    let status = reservoir.status();
    assert_eq!(status.counts, Counts { retiring: 3, ..Counts::default() });
    assert_eq!((status.lingering, site.dials(), site.open()), (3, 3, 3));
    let longest = status.longest_lingering.unwrap();
    assert!(longest >= Duration::from_millis(1_400) && longest < Duration::from_secs(2), "{longest:?}");
    let error = reservoir.checkout_within(Duration::from_millis(500)).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("3 of 3 connections are waiting for the server to close them"), "{said}");
    let CheckoutError::Empty { why, .. } = error else { panic!("{error:?}") };
    assert!(matches!(why, Shortage::Lingering { lingering: 3, max: 3, lent: 0, .. }), "{why:?}");
    assert_eq!(why.as_str(), "lingering");
    // Ten minutes after it was closed here, a place is given back.
    sleep(Duration::from_secs(590)).await;
    assert_eq!(site.dials(), 3);
    sleep(Duration::from_secs(12)).await;
    assert_eq!((site.dials(), reservoir.status().counts.ready, reservoir.status().lingering), (6, 3, 0));
}

/// Keeps warnings of connections that were given back unclosed, with their fields.
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
        // A runtime whose clock leaps is late with everything; that is another warning.
        if text.contains("unclosed") {
            self.0.lock().unwrap().push(text);
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
async fn each_place_that_is_given_back_unclosed_is_one_warning_with_numbers() {
    let warnings = Warnings::default();
    let _subscribed = tracing::subscriber::set_default(warnings.clone());
    let (_reservoir, _site) = all_linger(2).await;
    sleep(Duration::from_secs(590)).await;
    assert_eq!(*warnings.0.lock().unwrap(), Vec::<String>::new());
    sleep(Duration::from_secs(60)).await;
    let warnings = warnings.0.lock().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for warning in &*warnings {
        for words in ["connection given back unclosed", "waited=600s", "max=2", "open=", "why=\"bad\""] {
            assert!(warning.contains(words), "{warning}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn closing_waits_no_longer_than_it_was_told_for_what_the_server_does_not_close() {
    let (reservoir, site) = all_linger(2).await;
    let began = Instant::now();
    assert_eq!(reservoir.close(Duration::from_secs(3)).await, 2);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(reservoir.status().counts.retiring, 2, "they are still counted");
    drop(reservoir);
    sleep(Duration::from_secs(601)).await;
    assert_eq!(site.open(), 0, "and given up when their time is over");
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_is_given_up_counts_until_the_server_has_closed_it() {
    let limits = Limits::local().rate(RateConfig::per_second(1e6)).connections(3);
    let quota = limits.quota().clone();
    let config = config(3).max(3).dial_timeout(Duration::from_secs(1));
    let (reservoir, site) = start_with(config, limits);
    site.will(Dial::LeavesBehind(Duration::from_secs(30)));
    let mut most = 0;
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        let counts = reservoir.status().counts;
        most = most.max(site.left_behind.load(Ordering::Relaxed) + counts.dialing);
        assert!(counts.total() <= 3, "{counts:?}");
    }
    assert_eq!((most, site.dials()), (3, 3), "at no time were there more than three");
    assert_eq!(reservoir.status().counts, Counts { retiring: 3, ..Counts::default() });
    assert_eq!(quota.status().budgets[0].usage.used_here, 3, "and each has its lease");
    site.will(Dial::Works);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(reservoir.status().counts, Counts { ready: 3, ..Counts::default() });
    assert_eq!(site.left_behind.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_counts_dials_that_it_drops_until_the_server_has_closed_them() {
    let (reservoir, site) = start(config(2));
    site.will(Dial::LeavesBehind(Duration::from_secs(2)));
    settle().await;
    assert_eq!(reservoir.status().counts.dialing, 2);
    let began = Instant::now();
    assert_eq!(reservoir.close(Duration::from_secs(5)).await, 0);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2) && took < Duration::from_secs(3), "{took:?}");
    assert_eq!(site.left_behind.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_given_up_dial_left_behind_is_closed_when_the_close_timeout_is_over() {
    let config = config(1).max(1).dial_timeout(Duration::from_secs(1)).close_timeout(Duration::from_secs(60));
    let (reservoir, site) = start(config);
    site.will(Dial::LeavesBehind(Duration::from_secs(3600)));
    sleep(Duration::from_secs(2)).await;
    site.will(Dial::Works);
    assert_eq!((site.left_behind.load(Ordering::Relaxed), reservoir.status().counts.retiring), (1, 1));
    sleep(Duration::from_secs(62)).await;
    assert_eq!((site.left_behind.load(Ordering::Relaxed), reservoir.status().counts.ready), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_view_has_its_quota_and_takes_nobody_elses_turn() {
    let (reservoir, _site) = filled(4).await;
    let admin = reservoir.view("admin", 1);
    let first = admin.checkout().await.unwrap();
    assert!(admin.try_checkout().unwrap().is_none(), "it has its one");
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
async fn the_first_filling_reports_fails_at_none_and_goes_on_with_a_few() {
    let (reservoir, _site) = start(config(8).low_watermark(5));
    let mut steps = Vec::new();
    let filling = reservoir.initial_fill_with(Duration::from_secs(5), |step| steps.push(step)).await.unwrap();
    assert!(filling.ready >= 5 && steps.len() > 1, "{filling:?} {steps:?}");
    assert_eq!(steps[0], Filling { ready: 0, wanted: 5 });

    let (reservoir, site) = start(config(8));
    site.will(Dial::Fails(ConnectErrorKind::Full));
    let error = reservoir.initial_fill(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.to_string(), "not one connection within 5s: the server has no room: as the test wants");

    let (reservoir, _site) =
        start_with(config(8), Limits::local().rate(RateConfig::per_second(1e6)).connections(2));
    let filling = reservoir.initial_fill(Duration::from_secs(5)).await.unwrap();
    assert_eq!(filling, Filling { ready: 2, wanted: 4 });
}

#[tokio::test(start_paused = true)]
async fn closing_tells_those_who_wait_and_waits_for_what_is_lent() {
    let (reservoir, site) = filled(2).await;
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
    assert_eq!((closed.await, site.open()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_it_and_what_is_lent_comes_back_all_the_same() {
    let (reservoir, site) = filled(3).await;
    let view = reservoir.view("late", 2);
    let lent = take(&reservoir).await;
    drop(reservoir);
    settle().await;
    assert_eq!(site.open(), 3, "a view is a handle, too");
    drop(view);
    settle().await;
    assert_eq!(site.open(), 1);
    drop(lent);
    settle().await;
    assert_eq!(site.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn more_callers_than_may_wait_are_told_at_once() {
    let (reservoir, _site) = start(config(1).max_waiting(2));
    let (mut one, mut two) = (Box::pin(reservoir.checkout()), Box::pin(reservoir.checkout()));
    assert!(one.as_mut().now_or_never().is_none() && two.as_mut().now_or_never().is_none());
    let third = reservoir.checkout().now_or_never().expect("at once");
    assert!(matches!(third, Err(CheckoutError::Busy { waiting: 2 })));
}

#[tokio::test]
async fn settings_that_contradict_each_other_are_refused() {
    let never_lent = config(1).base_lifetime(Duration::from_secs(30));
    let error = Reservoir::start(Connector(Arc::default()), never_lent, Limits::local()).unwrap_err();
    assert!(error.to_string().starts_with("a lifetime of 30s within a guard window of 45s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_one_quota_have_limits_of_their_own() {
    struct Other(Connector);
    impl Connect for Other {
        type Connection = Link;
        type Credentials = ();

        fn endpoint(&self) -> String {
            "elsewhere".into()
        }

        async fn credentials(&self) -> Result<(), ConnectError> {
            self.0.credentials().await
        }

        async fn connect(&self, (): ()) -> Result<Link, ConnectError> {
            self.0.connect(()).await
        }
    }
    let limits = Limits::local().rate(RateConfig::per_second(1e6));
    let (one, _site) = start_with(config(8), limits.clone().connections(8));
    let other = Reservoir::start(Other(Connector(Arc::default())), config(8), limits.connections(2)).unwrap();
    settle().await;
    assert_eq!((one.status().counts.ready, other.status().counts.ready), (8, 2));
}

#[tokio::test(start_paused = true)]
async fn windows_that_leave_no_life_and_times_without_end_do_no_harm() {
    // Two guard windows are as long as a life: it isn't replaced from its birth on.
    let short = Duration::from_secs(60);
    let (reservoir, site) =
        start(config(4).base_lifetime(short).lifetime_jitter(Duration::ZERO).guard_window(short / 2));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((reservoir.status().counts.ready, site.dials()), (4, 4));
    let (reservoir, site) = start(
        config(4).base_lifetime(Duration::MAX).lifetime_jitter(Duration::MAX).replace_ahead(Duration::MAX),
    );
    let client = reservoir.checkout_within(Duration::MAX).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!((reservoir.status().counts.ready, site.dials(), client.number), (3, 4, 0));
    let none = start(config(4).max(0)).0;
    assert_eq!((none.status().target, none.status().max), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_panics_is_told_to_those_who_wait() {
    let (reservoir, site) = start(config(1));
    site.will(Dial::Panics);
    let error = reservoir.checkout().await.unwrap_err();
    assert!(error.to_string().contains("has its connector panicked?"), "{error}");
}
