//! Limits, classes, health states and load shedding of one admission.

use std::time::Duration;

use forebay_admission::{
    Admission, Class, ClientIdentity, MemoryBound, Permit, RejectionReason, ShedCause, State, StreamLimits,
};
use forebay_quota::Quota;
use serde_json::json;

use crate::support::{admission_of, eventually, user, wait_until_released};

async fn fill(admission: &Admission, streams: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    for stream in 0..streams {
        permits.push(admission.admit(user(&format!("user-{stream}"))).await.unwrap());
    }
    permits
}

async fn refused(admission: &Admission, client: ClientIdentity) -> Option<RejectionReason> {
    admission.admit(client).await.err().map(|rejection| rejection.reason())
}

#[tokio::test]
async fn anonymous_clients_stop_at_90_percent_and_authenticated_ones_go_on() {
    let admission = admission_of(100, 3);
    let mut open = Vec::new();
    for _ in 0..90 {
        open.push(admission.admit(ClientIdentity::anonymous()).await.unwrap());
    }
    assert_eq!(refused(&admission, ClientIdentity::anonymous()).await, Some(RejectionReason::Headroom));
    let address = ClientIdentity::address("203.0.113.9".parse().unwrap());
    assert_eq!(refused(&admission, address).await, Some(RejectionReason::Headroom));
    open.extend(fill(&admission, 10).await);
    assert_eq!(refused(&admission, user("late")).await, Some(RejectionReason::Exhausted));
    drop(open);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn a_class_is_limited_to_its_share() {
    let builder = Admission::builder().total(10).class(Class::new("free"), 50).class(Class::ANONYMOUS, 20);
    let admission = builder.build(Quota::local());
    let free = |n: usize| user(&format!("free-{n}")).class(Class::new("free"));
    let _two = [
        admission.admit(ClientIdentity::anonymous()).await.unwrap(),
        admission.admit(ClientIdentity::anonymous()).await.unwrap(),
    ];
    assert_eq!(refused(&admission, ClientIdentity::anonymous()).await, Some(RejectionReason::Headroom));
    let mut open = Vec::new();
    for n in 0..3 {
        open.push(admission.admit(free(n)).await.unwrap());
    }
    assert_eq!(refused(&admission, free(9)).await, Some(RejectionReason::Headroom));
    // An unknown class counts as `user`, but never for an anonymous client.
    assert_eq!(refused(&admission, user("x").class(Class::new("made-up"))).await, None);
    assert_eq!(
        refused(&admission, ClientIdentity::anonymous().class(Class::new("made-up"))).await,
        Some(RejectionReason::Headroom)
    );
}

#[tokio::test]
async fn a_class_without_a_share_gets_nothing() {
    let admission = Admission::builder().total(10).class(Class::ANONYMOUS, 0).build(Quota::local());
    assert_eq!(refused(&admission, ClientIdentity::anonymous()).await, Some(RejectionReason::Headroom));
    assert_eq!(refused(&admission, user("ada")).await, None);
}

#[tokio::test]
async fn an_address_is_limited_like_a_user_and_an_anonymous_client_is_not() {
    let admission = admission_of(100, 2);
    let at = |text: &str| ClientIdentity::address(text.parse().unwrap());
    let _one = admission.admit(at("2001:db8:1:2::1")).await.unwrap();
    let _two = admission.admit(at("2001:db8:1:2::2")).await.unwrap();
    assert_eq!(refused(&admission, at("2001:db8:1:2::3")).await, Some(RejectionReason::UserLimit));
    assert_eq!(refused(&admission, at("2001:db8:1:3::3")).await, None);
    let mut anonymous = Vec::new();
    for _ in 0..10 {
        anonymous.push(admission.admit(ClientIdentity::anonymous()).await.unwrap());
    }
}

#[tokio::test]
async fn the_state_rises_with_the_streams_and_falls_with_hysteresis() {
    let admission = admission_of(100, 100);
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
async fn statistics_have_exactly_these_members() {
    let admission = admission_of(10_000, 3);
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
async fn changing_limits_closes_no_open_stream() {
    let admission = admission_of(10, 3);
    let mut open = fill(&admission, 10).await;
    admission.set_limits(StreamLimits { total: 5, per_user: 1 });
    assert_eq!(admission.open_streams(), 10);
    assert_eq!(admission.statistics().state, State::Exhausted);
    assert_eq!(refused(&admission, user("late")).await, Some(RejectionReason::Exhausted));
    open.truncate(5);
    assert_eq!(refused(&admission, user("late")).await, Some(RejectionReason::Exhausted));
    open.truncate(4);
    open.push(admission.admit(user("late")).await.unwrap());

    admission.set_limits(StreamLimits { total: 20, per_user: 2 });
    assert_eq!(admission.limits(), StreamLimits { total: 20, per_user: 2 });
    open.push(admission.admit(user("late")).await.unwrap());
    assert_eq!(refused(&admission, user("late")).await, Some(RejectionReason::UserLimit));
    assert_eq!(admission.statistics().state, State::Healthy);
    drop(open);
    wait_until_released(&admission).await;
}

/// Every process uses more than one byte.
#[tokio::test]
async fn memory_pressure_refuses_new_streams_and_keeps_open_ones() {
    let builder = Admission::builder().total(10).shed_by_memory(MemoryBound::Bytes(1));
    let admission = builder.build(Quota::local());
    let held = admission.admit(user("ada")).await.ok();
    eventually("the sampler has run", Some(ShedCause::Memory), async || admission.status().shedding).await;
    let rejection = admission.admit(user("bob")).await.unwrap_err();
    assert_eq!((rejection.reason(), rejection.status().as_u16()), (RejectionReason::Memory, 503));
    assert_eq!(rejection.retry_after_seconds(), Some(5));
    assert!(admission.status().process.resident_bytes > Some(1 << 20));
    assert_eq!(admission.open_streams(), usize::from(held.is_some()));
}

/// Every process uses some CPU. The test takes as long as the averaging window.
#[tokio::test]
async fn cpu_pressure_refuses_new_streams_and_keeps_open_ones() {
    let admission = Admission::builder().total(10).shed_by_cpu(0.0).build(Quota::local());
    let held = admission.admit(user("ada")).await.unwrap();
    eventually("the sampler has run", Some(ShedCause::Cpu), async || admission.status().shedding).await;
    assert_eq!(refused(&admission, user("bob")).await, Some(RejectionReason::Cpu));
    assert!(admission.status().process.cpu_ratio.is_some());
    assert_eq!(admission.open_streams(), 1);
    drop(held);
}

#[tokio::test]
async fn a_process_below_its_bounds_sheds_nothing() {
    let builder = Admission::builder().shed_by_memory(MemoryBound::Bytes(1 << 50)).shed_by_cpu(1_000.0);
    let admission = builder.build(Quota::local());
    let has_sample = async || admission.status().process.resident_bytes.is_some();
    eventually("the sampler has run", true, has_sample).await;
    assert_eq!(admission.status().shedding, None);
    assert_eq!(refused(&admission, user("ada")).await, None);
}

#[tokio::test]
async fn retry_after_follows_the_release_rate() {
    let admission = admission_of(1, 3);
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
async fn admissions_of_one_name_share_their_limits() {
    let quota = Quota::local();
    let builder = || Admission::builder().total(1);
    let (one, same) = (builder().build(quota.clone()), builder().build(quota.clone()));
    let other = builder().name("other").build(quota);
    let _held = one.admit(user("ada")).await.unwrap();
    assert_eq!(refused(&same, user("bob")).await, Some(RejectionReason::Exhausted));
    assert_eq!(refused(&other, user("bob")).await, None);
}

#[tokio::test]
async fn the_status_lists_the_oldest_streams_up_to_a_bound() {
    let admission = admission_of(3_000, 3);
    let open = fill(&admission, 1_500).await;
    let status = admission.status();
    assert_eq!((status.open, status.streams.len()), (1_500, forebay_admission::MAX_LISTED));
    drop(open);
    let text = serde_json::to_value(admission.status()).unwrap();
    assert_eq!((&text["quota"]["mode"], &text["open"]), (&json!("normal"), &json!(0)));
    assert_eq!(text["limits"], json!({"total": 3_000, "per_user": 3}));
}

#[tokio::test]
async fn a_permit_may_outlive_its_admission() {
    let admission = admission_of(1, 3);
    let permit = admission.admit(user("ada")).await.unwrap();
    drop(admission);
    tokio::time::sleep(Duration::from_millis(5)).await;
    drop(permit);
}
