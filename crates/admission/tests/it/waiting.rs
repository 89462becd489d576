//! The wait queue at the edge of the limit.

use std::pin::pin;
use std::time::Duration;

use forebay_admission::{Admission, Class, Reason, Visitor};
use forebay_quota::Quota;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::support::{empties, eventually, user, within};

fn house(total: u32, wait: Duration) -> Admission {
    Admission::builder().total(total).per_user(10).wait(wait).build(Quota::local())
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_the_refusal_comes_at_once() {
    let admission = house(1, Duration::ZERO);
    let _held = admission.admit(user("ada")).await.unwrap();
    let begun = Instant::now();
    assert_eq!(admission.admit(user("bob")).await.unwrap_err().reason(), Reason::Exhausted);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn who_waits_gets_what_comes_free() {
    let admission = house(1, Duration::from_secs(3600));
    let held = admission.admit(user("ada")).await.unwrap();
    let waiting = tokio::spawn({
        let admission = admission.clone();
        async move { admission.admit(user("bob")).await }
    });
    eventually("bob waits", 1, async || admission.status().waiting).await;
    drop(held);
    let permit = within("bob's turn", waiting).await.unwrap().unwrap();
    assert_eq!((admission.open(), admission.status().waiting), (1, 0));
    drop(permit);
    empties(&admission).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_vain_ends_at_its_deadline() {
    let admission = house(1, Duration::from_secs(7));
    let _held = admission.admit(user("ada")).await.unwrap();
    let begun = Instant::now();
    let rejection = admission.admit(user("bob")).await.unwrap_err();
    assert_eq!(rejection.reason(), Reason::WaitedInVain);
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    assert_eq!(admission.status().waiting, 0);
}

#[tokio::test]
async fn users_take_turns_and_nobody_overtakes() {
    let admission = house(1, Duration::from_secs(3600));
    let mut held = Some(admission.admit(user("ada")).await.unwrap());
    let (told, mut order) = mpsc::channel(16);
    for (place, who) in ["greedy", "greedy", "greedy", "bob", "eve"].into_iter().enumerate() {
        let (house, told) = (admission.clone(), told.clone());
        tokio::spawn(async move {
            let permit = house.admit(user(who)).await.unwrap();
            told.send((who, permit)).await.unwrap();
        });
        eventually("the next one waits", place + 1, async || admission.status().waiting).await;
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
    empties(&admission).await;
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
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
        let rejection = within("a refusal at once", admission.admit(user(who))).await.unwrap_err();
        assert_eq!(rejection.reason(), Reason::WaitFull);
    }
    waiting.iter().for_each(|task| task.abort());
}

/// As where nobody is identified: the bound for one user is none for all of them.
#[tokio::test]
async fn the_anonymous_may_fill_the_whole_queue() {
    let builder = Admission::builder().total(1).class(Class::ANONYMOUS, 100).wait(Duration::from_secs(3600));
    let admission = builder.max_waiting(20, 2).build(Quota::local());
    let _held = admission.admit(Visitor::anonymous()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let admission = admission.clone();
        waiting.push(tokio::spawn(async move { admission.admit(Visitor::anonymous()).await }));
    }
    eventually("all of them wait", 20, async || admission.status().waiting).await;
    let rejection = within("a refusal at once", admission.admit(Visitor::anonymous())).await.unwrap_err();
    assert_eq!(rejection.reason(), Reason::WaitFull);
    waiting.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn closing_sends_home_who_waits_and_lets_open_streams_end() {
    let admission = house(1, Duration::from_secs(3600));
    let held = admission.admit(user("ada")).await.unwrap();
    let waiting = tokio::spawn({
        let admission = admission.clone();
        async move { admission.admit(user("bob")).await.map(drop) }
    });
    eventually("bob waits", 1, async || admission.status().waiting).await;
    admission.close();
    let rejection = within("bob is sent home", waiting).await.unwrap().unwrap_err();
    assert_eq!(rejection.reason(), Reason::Draining);
    let rejection = admission.admit(Visitor::anonymous()).await.unwrap_err();
    assert_eq!((rejection.reason(), rejection.status().as_u16()), (Reason::Draining, 503));

    let mut emptied = pin!(admission.emptied());
    assert!(futures_util::poll!(emptied.as_mut()).is_pending());
    drop(held);
    within("the last stream ends", emptied).await;
}
