//! Limits, classes, states and shedding of one admission.

use std::time::Duration;

use forebay_admission::{Admission, Class, Limits, MemoryBound, Permit, Reason, State, Strain, Visitor};
use forebay_quota::Quota;
use serde_json::json;

use crate::support::{empties, eventually, house, user};

async fn fill(admission: &Admission, streams: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    for stream in 0..streams {
        permits.push(admission.admit(user(&format!("user-{stream}"))).await.unwrap());
    }
    permits
}

async fn refused(admission: &Admission, visitor: Visitor) -> Option<Reason> {
    admission.admit(visitor).await.err().map(|rejection| rejection.reason())
}

#[tokio::test]
async fn the_anonymous_stop_at_90_percent_and_the_known_go_on() {
    let admission = house(100, 3);
    let mut open = Vec::new();
    for _ in 0..90 {
        open.push(admission.admit(Visitor::anonymous()).await.unwrap());
    }
    assert_eq!(refused(&admission, Visitor::anonymous()).await, Some(Reason::Headroom));
    let address = Visitor::address("203.0.113.9".parse().unwrap());
    assert_eq!(refused(&admission, address).await, Some(Reason::Headroom));
    open.extend(fill(&admission, 10).await);
    assert_eq!(refused(&admission, user("late")).await, Some(Reason::Exhausted));
    drop(open);
    empties(&admission).await;
}

#[tokio::test]
async fn a_class_has_the_share_that_it_was_given() {
    let builder = Admission::builder().total(10).class(Class::new("free"), 50).class(Class::ANONYMOUS, 20);
    let admission = builder.build(Quota::local());
    let free = |n: usize| user(&format!("free-{n}")).class(Class::new("free"));
    let _two = [
        admission.admit(Visitor::anonymous()).await.unwrap(),
        admission.admit(Visitor::anonymous()).await.unwrap(),
    ];
    assert_eq!(refused(&admission, Visitor::anonymous()).await, Some(Reason::Headroom));
    let mut open = Vec::new();
    for n in 0..3 {
        open.push(admission.admit(free(n)).await.unwrap());
    }
    assert_eq!(refused(&admission, free(9)).await, Some(Reason::Headroom));
    // A class that nobody configured is `user`, but never for one whom nobody knows.
    assert_eq!(refused(&admission, user("x").class(Class::new("made-up"))).await, None);
    assert_eq!(
        refused(&admission, Visitor::anonymous().class(Class::new("made-up"))).await,
        Some(Reason::Headroom)
    );
}

#[tokio::test]
async fn a_class_without_a_share_gets_nothing() {
    let admission = Admission::builder().total(10).class(Class::ANONYMOUS, 0).build(Quota::local());
    assert_eq!(refused(&admission, Visitor::anonymous()).await, Some(Reason::Headroom));
    assert_eq!(refused(&admission, user("ada")).await, None);
}

#[tokio::test]
async fn an_address_is_limited_like_a_user_and_an_anonymous_visitor_is_not() {
    let admission = house(100, 2);
    let at = |text: &str| Visitor::address(text.parse().unwrap());
    let _one = admission.admit(at("2001:db8:1:2::1")).await.unwrap();
    let _two = admission.admit(at("2001:db8:1:2::2")).await.unwrap();
    assert_eq!(refused(&admission, at("2001:db8:1:2::3")).await, Some(Reason::UserLimit));
    assert_eq!(refused(&admission, at("2001:db8:1:3::3")).await, None);
    let mut nobody = Vec::new();
    for _ in 0..10 {
        nobody.push(admission.admit(Visitor::anonymous()).await.unwrap());
    }
}

#[tokio::test]
async fn the_state_rises_with_the_streams_and_falls_with_hysteresis() {
    let admission = house(100, 100);
    let state = || admission.statistics().state;
    let mut open = fill(&admission, 69).await;
    assert_eq!(state(), State::Healthy);
    open.extend(fill(&admission, 1).await);
    assert_eq!(state(), State::Degraded);
    open.extend(fill(&admission, 20).await);
    assert_eq!(state(), State::Critical);
    open.extend(fill(&admission, 10).await);
    assert_eq!(state(), State::Exhausted);
    assert_eq!(admission.status().health.why, "100 of 100 streams in use");
    open.truncate(95);
    assert_eq!(state(), State::Exhausted);
    open.truncate(94);
    assert_eq!(state(), State::Critical);
    open.truncate(65);
    assert_eq!(state(), State::Degraded);
    open.clear();
    assert_eq!(state(), State::Healthy);
}

#[tokio::test]
async fn statistics_are_the_seeds() {
    let admission = house(10_000, 3);
    let _open = fill(&admission, 150).await;
    let expected = json!({
        "total_connections": 150,
        "max_connections": 10_000,
        "utilization_percent": 1.5,
        "state": "healthy",
        "degraded_threshold": 7_000,
        "critical_threshold": 9_000,
        "redis_enabled": false,
    });
    assert_eq!(serde_json::to_value(admission.statistics()).unwrap(), expected);
}

#[tokio::test]
async fn limits_change_while_streams_are_open_and_cut_nobody() {
    let admission = house(10, 3);
    let mut open = fill(&admission, 10).await;
    admission.set_limits(Limits { total: 5, per_user: 1 });
    assert_eq!(admission.open(), 10);
    assert_eq!(admission.statistics().state, State::Exhausted);
    assert_eq!(refused(&admission, user("late")).await, Some(Reason::Exhausted));
    open.truncate(5);
    assert_eq!(refused(&admission, user("late")).await, Some(Reason::Exhausted));
    open.truncate(4);
    open.push(admission.admit(user("late")).await.unwrap());

    admission.set_limits(Limits { total: 20, per_user: 2 });
    assert_eq!(admission.limits(), Limits { total: 20, per_user: 2 });
    open.push(admission.admit(user("late")).await.unwrap());
    assert_eq!(refused(&admission, user("late")).await, Some(Reason::UserLimit));
    assert_eq!(admission.statistics().state, State::Healthy);
    drop(open);
    empties(&admission).await;
}

/// Every process holds more than a byte.
#[tokio::test]
async fn a_process_that_is_short_of_memory_takes_no_new_streams_and_keeps_the_old() {
    let builder = Admission::builder().total(10).shed_by_memory(MemoryBound::Bytes(1));
    let admission = builder.build(Quota::local());
    let held = admission.admit(user("ada")).await.ok();
    eventually("it looks at itself", Some(Strain::Memory), async || admission.status().shedding).await;
    let rejection = admission.admit(user("bob")).await.unwrap_err();
    assert_eq!((rejection.reason(), rejection.status().as_u16()), (Reason::Memory, 503));
    assert_eq!(rejection.retry_after_seconds(), Some(5));
    assert!(admission.status().process.resident_bytes > Some(1 << 20));
    assert_eq!(admission.open(), usize::from(held.is_some()));
}

/// Every process uses some CPU. Takes as long as the window over which it is averaged.
#[tokio::test]
async fn a_process_that_is_short_of_cpu_takes_no_new_streams_and_keeps_the_old() {
    let admission = Admission::builder().total(10).shed_by_cpu(0.0).build(Quota::local());
    let held = admission.admit(user("ada")).await.unwrap();
    eventually("it looks at itself", Some(Strain::Cpu), async || admission.status().shedding).await;
    assert_eq!(refused(&admission, user("bob")).await, Some(Reason::Cpu));
    assert!(admission.status().process.cpu_ratio.is_some());
    assert_eq!(admission.open(), 1);
    drop(held);
}

#[tokio::test]
async fn a_process_with_enough_memory_sheds_nobody() {
    let builder = Admission::builder().shed_by_memory(MemoryBound::Bytes(1 << 50)).shed_by_cpu(1_000.0);
    let admission = builder.build(Quota::local());
    let looked = async || admission.status().process.resident_bytes.is_some();
    eventually("it looks at itself", true, looked).await;
    assert_eq!(admission.status().shedding, None);
    assert_eq!(refused(&admission, user("ada")).await, None);
}

#[tokio::test]
async fn the_time_to_come_again_follows_the_streams_that_end() {
    let admission = house(1, 3);
    let held = admission.admit(user("ada")).await.unwrap();
    let wait = async || admission.admit(user("bob")).await.unwrap_err().retry_after_seconds();
    assert_eq!(wait().await, Some(60), "no stream has ended yet");
    drop(held);
    for _ in 0..1_000 {
        drop(admission.admit(user("ada")).await.unwrap());
    }
    let _held = admission.admit(user("ada")).await.unwrap();
    eventually("the rate is measured", Some(1), wait).await;
}

#[tokio::test]
async fn two_admissions_of_one_name_share_their_limits_and_two_names_do_not() {
    let quota = Quota::local();
    let builder = || Admission::builder().total(1);
    let (one, same) = (builder().build(quota.clone()), builder().build(quota.clone()));
    let other = builder().name("other").build(quota);
    let _held = one.admit(user("ada")).await.unwrap();
    assert_eq!(refused(&same, user("bob")).await, Some(Reason::Exhausted));
    assert_eq!(refused(&other, user("bob")).await, None);
}

#[tokio::test]
async fn the_status_lists_the_oldest_streams_up_to_a_bound() {
    let admission = house(3_000, 3);
    let open = fill(&admission, 1_500).await;
    let status = admission.status();
    assert_eq!((status.open, status.streams.len()), (1_500, forebay_admission::MAX_LISTED));
    drop(open);
    let text = serde_json::to_value(admission.status()).unwrap();
    assert_eq!((&text["quota"]["mode"], &text["open"]), (&json!("normal"), &json!(0)));
    assert_eq!(text["limits"], json!({"total": 3_000, "per_user": 3}));
}

#[tokio::test]
async fn an_admission_lives_as_long_as_its_last_permit() {
    let admission = house(1, 3);
    let permit = admission.admit(user("ada")).await.unwrap();
    drop(admission);
    tokio::time::sleep(Duration::from_millis(5)).await;
    drop(permit);
}
