//! Clients that go away at every point: the counts return to zero.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_admission::Admission;
use forebay_quota::{MemberConfig, Quota, RedisStore};
use forebay_sandbox::Redis;
use forebay_testkit::{Direction, PATIENCE, Proxy};

use crate::support::{Client, by_header, empties, eventually, house, serve, user, within};

const ADA: [(&str, &str); 1] = [("x-user-id", "ada")];

#[tokio::test]
async fn before_the_head_of_the_response() {
    let admission = house(10, 3);
    let server = serve(&admission, by_header()).await;
    let client = Client::send(server, "/stalled", &ADA).await;
    eventually("the stream holds a permit", 1, async || admission.open()).await;
    drop(client);
    empties(&admission).await;
}

#[tokio::test]
async fn while_nothing_comes_from_upstream() {
    let admission = house(10, 3);
    let server = serve(&admission, by_header()).await;
    let (head, mut client) = Client::get(server, "/endless", &ADA).await;
    assert_eq!((head.status, admission.open()), (200, 1));
    within("the one event", client.until(b"data: hello")).await;
    drop(client);
    empties(&admission).await;
}

#[tokio::test]
async fn in_the_middle_of_a_body_that_nobody_reads() {
    let admission = house(10, 3);
    let server = serve(&admission, by_header()).await;
    let (head, client) = Client::get(server, "/busy", &ADA).await;
    assert_eq!((head.status, admission.open()), (200, 1));
    drop(client);
    empties(&admission).await;
}

#[tokio::test]
async fn while_waiting_in_the_queue() {
    let builder = Admission::builder().total(1).per_user(3).wait(Duration::from_secs(3600));
    let admission = builder.build(Quota::local());
    let server = serve(&admission, by_header()).await;
    let (_, first) = Client::get(server, "/endless", &ADA).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(Client::send(server, "/endless", &ADA).await);
    }
    eventually("five wait", 5, async || admission.status().waiting).await;
    drop(waiting);
    eventually("nobody waits", 0, async || admission.status().waiting).await;
    assert_eq!(admission.open(), 1);
    drop(first);
    empties(&admission).await;
}

/// On a real Redis that answers no more, so that the decision about the user is open for as long as we like.
#[tokio::test(flavor = "multi_thread")]
async fn before_the_decision() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.addr());
    let store = RedisStore::open(&format!("redis://{}", proxy.addr()), "leaving").unwrap();
    // Long enough that no beat is missed: a member that has lost the store decides alone, and at once.
    let member =
        MemberConfig::new("one").ttl(Duration::from_secs(6)).heartbeat_interval(Duration::from_millis(100));
    let quota = Quota::join(store, member.call_timeout(PATIENCE).join_timeout(PATIENCE)).await;
    let admission = Admission::builder().total(10).per_user(1).build(quota);
    // A store that is new may take a TTL to grant anything.
    eventually("a first permit", true, async || admission.admit(user("ada")).await.is_ok()).await;
    empties(&admission).await;

    proxy.stall(Direction::ToClient);
    {
        let mut asked = pin!(admission.admit(user("bob")));
        assert!(matches!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    }
    proxy.resume();
    empties(&admission).await;
    // Had the visitor who left kept a unit, there would be none now.
    let ask = async || admission.admit(user("bob")).await.is_ok();
    eventually("the limit of one is free again", true, ask).await;
    empties(&admission).await;
}

/// A whole crowd, each of whom leaves after a random while.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_comes_and_goes_leaves_nothing() {
    let builder = Admission::builder().total(20).per_user(3).wait(Duration::from_millis(5));
    let admission = builder.build(Quota::local());
    let mut tasks = Vec::new();
    for visitor in 0..400_u64 {
        let admission = admission.clone();
        tasks.push(tokio::spawn(async move {
            let visitor_of = || user(&format!("user-{}", visitor % 17));
            let patience = Duration::from_micros(visitor * 7919 % 9_000);
            let stay = async {
                if let Ok(permit) = admission.admit(visitor_of()).await {
                    tokio::time::sleep(Duration::from_micros(visitor * 104_729 % 3_000)).await;
                    drop(permit);
                }
            };
            let _ = tokio::time::timeout(patience, stay).await;
        }));
    }
    for task in tasks {
        within("everybody leaves", task).await.unwrap();
    }
    empties(&admission).await;
    assert_eq!(admission.status().waiting, 0);
    let permits = (0..20).map(|n| admission.admit(user(&format!("late-{n}"))));
    for permit in permits {
        drop(permit.await.unwrap());
    }
}
