//! The wait queue when all streams are in use.

use std::pin::pin;
use std::time::Duration;

use forebay_admission::{Admission, Class, ClientIdentity, RejectionReason};
use forebay_quota::Quota;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::{eventually, user, wait_until_released, within};

fn admission_of(total: u32, wait: Duration) -> Admission {
    Admission::builder().total(total).per_user(10).wait(wait).build(Quota::local())
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_the_rejection_is_immediate() {
    let admission = admission_of(1, Duration::ZERO);
    let _held = admission.admit(user("ada")).await.unwrap();
    let begun = Instant::now();
    assert_eq!(admission.admit(user("bob")).await.unwrap_err().reason(), RejectionReason::Exhausted);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_waiting_request_gets_the_released_unit() {
    let admission = admission_of(1, Duration::from_secs(3600));
    let held = admission.admit(user("ada")).await.unwrap();
    let waiting = tokio::spawn({
        let admission = admission.clone();
        async move { admission.admit(user("bob")).await }
    });
    eventually("bob waits", 1, async || admission.status().waiting).await;
    drop(held);
    let permit = within("bob's turn", waiting).await.unwrap().unwrap();
    assert_eq!((admission.open_streams(), admission.status().waiting), (1, 0));
    drop(permit);
    wait_until_released(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_a_release_ends_at_its_deadline() {
    let admission = admission_of(1, Duration::from_secs(7));
    let _held = admission.admit(user("ada")).await.unwrap();
    let begun = Instant::now();
    let rejection = admission.admit(user("bob")).await.unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::WaitTimedOut);
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    assert_eq!(admission.status().waiting, 0);
}

#[tokio::test]
async fn users_take_turns_and_no_request_overtakes() {
    let admission = admission_of(1, Duration::from_secs(3600));
    let mut held = Some(admission.admit(user("ada")).await.unwrap());
    let (admitted, mut order) = mpsc::channel(16);
    for (index, who) in ["greedy", "greedy", "greedy", "bob", "eve"].into_iter().enumerate() {
        let (requester, admitted) = (admission.clone(), admitted.clone());
        tokio::spawn(async move {
            let permit = requester.admit(user(who)).await.unwrap();
            admitted.send((who, permit)).await.unwrap();
        });
        eventually("the next one waits", index + 1, async || admission.status().waiting).await;
    }
    let mut served = Vec::new();
    for _ in 0..5 {
        drop(held.take());
        let (who, permit) = within("the next turn", order.recv()).await.unwrap();
        served.push(who);
        held = Some(permit);
    }
    assert_eq!(served, ["greedy", "bob", "eve", "greedy", "greedy"]);
    drop(held);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn a_full_queue_rejects_immediately() {
    let builder =
        Admission::builder().total(1).per_user(10).wait(Duration::from_secs(3600)).max_waiting(3, 2);
    let admission = builder.build(Quota::local());
    let _held = admission.admit(user("ada")).await.unwrap();
    let mut waiting = Vec::new();
    for who in ["bob", "bob", "eve"] {
        let admission = admission.clone();
        waiting.push(tokio::spawn(async move { admission.admit(user(who)).await }));
    }
    eventually("three wait", 3, async || admission.status().waiting).await;
    for who in ["bob", "ada"] {
        let rejection = within("an immediate rejection", admission.admit(user(who))).await.unwrap_err();
        assert_eq!(rejection.reason(), RejectionReason::WaitFull);
    }
    waiting.iter().for_each(|task| task.abort());
}

/// Without identification all requests are anonymous, and the per-user bound does not apply to
/// them.
#[tokio::test]
async fn anonymous_requests_may_fill_the_whole_queue() {
    let builder = Admission::builder().total(1).class(Class::ANONYMOUS, 100).wait(Duration::from_secs(3600));
    let admission = builder.max_waiting(20, 2).build(Quota::local());
    let _held = admission.admit(ClientIdentity::anonymous()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let admission = admission.clone();
        waiting.push(tokio::spawn(async move { admission.admit(ClientIdentity::anonymous()).await }));
    }
    eventually("all of them wait", 20, async || admission.status().waiting).await;
    let rejection =
        within("an immediate rejection", admission.admit(ClientIdentity::anonymous())).await.unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::WaitFull);
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn closing_rejects_queued_requests_and_keeps_open_streams() {
    let admission = admission_of(1, Duration::from_secs(3600));
    let held = admission.admit(user("ada")).await.unwrap();
    let waiting = tokio::spawn({
        let admission = admission.clone();
        async move { admission.admit(user("bob")).await.map(drop) }
    });
    eventually("bob waits", 1, async || admission.status().waiting).await;
    admission.close();
    let rejection = within("bob is rejected", waiting).await.unwrap().unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::Draining);
    let rejection = admission.admit(ClientIdentity::anonymous()).await.unwrap_err();
    assert_eq!((rejection.reason(), rejection.status().as_u16()), (RejectionReason::Draining, 503));

    let mut emptied = pin!(admission.wait_until_empty());
    assert!(futures_util::poll!(emptied.as_mut()).is_pending());
    drop(held);
    within("the last stream ends", emptied).await;
}
