//! Clients that disconnect at various points: the counts return to zero.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_admission::Admission;
use forebay_quota::{MemberConfig, Quota, RedisStore};
use forebay_sandbox::Redis;
use forebay_testkit::{Direction, Proxy, TEST_TIMEOUT};

use crate::support::{
    RawHttpClient, admission_of, by_header, eventually, serve, user, wait_until_released, within,
};

const ADA: [(&str, &str); 1] = [("x-user-id", "ada")];

#[tokio::test]
async fn a_client_that_disconnects_before_the_response_head_releases_its_permit() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_header()).await;
    let client = RawHttpClient::send(server, "/stalled", &ADA).await;
    eventually("the stream holds a permit", 1, async || admission.open_streams()).await;
    drop(client);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn a_client_that_disconnects_from_an_idle_stream_releases_its_permit() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_header()).await;
    let (head, mut client) = RawHttpClient::get(server, "/endless", &ADA).await;
    assert_eq!((head.status, admission.open_streams()), (200, 1));
    within("the one event", client.until(b"data: hello")).await;
    drop(client);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn a_client_that_disconnects_from_an_unread_body_releases_its_permit() {
    let admission = admission_of(10, 3);
    let server = serve(&admission, by_header()).await;
    let (head, client) = RawHttpClient::get(server, "/busy", &ADA).await;
    assert_eq!((head.status, admission.open_streams()), (200, 1));
    drop(client);
    wait_until_released(&admission).await;
}

#[tokio::test]
async fn a_client_that_disconnects_while_queued_leaves_the_queue() {
    let builder = Admission::builder().total(1).per_user(3).wait(Duration::from_secs(3600));
    let admission = builder.build(Quota::local());
    let server = serve(&admission, by_header()).await;
    let (_, first) = RawHttpClient::get(server, "/endless", &ADA).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(RawHttpClient::send(server, "/endless", &ADA).await);
    }
    eventually("five wait", 5, async || admission.status().waiting).await;
    drop(waiting);
    eventually("the queue is empty", 0, async || admission.status().waiting).await;
    assert_eq!(admission.open_streams(), 1);
    drop(first);
    wait_until_released(&admission).await;
}

/// Redis stalls, so the decision about the user stays pending.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_cancelled_before_the_decision_holds_no_unit() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.addr());
    let store = RedisStore::open(&format!("redis://{}", proxy.addr()), "leaving").unwrap();
    // Long enough that no heartbeat is missed: a member that lost the store decides locally and
    // immediately.
    let member =
        MemberConfig::new("one").ttl(Duration::from_secs(6)).heartbeat_interval(Duration::from_millis(100));
    let quota = Quota::join(store, member.call_timeout(TEST_TIMEOUT).join_timeout(TEST_TIMEOUT)).await;
    let admission = Admission::builder().total(10).per_user(1).build(quota);
    // A new store may grant nothing for one TTL.
    eventually("a first permit", true, async || admission.admit(user("ada")).await.is_ok()).await;
    wait_until_released(&admission).await;

    proxy.stall(Direction::ToClient);
    {
        let mut pending = pin!(admission.admit(user("bob")));
        assert!(matches!(pending.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    }
    proxy.resume();
    wait_until_released(&admission).await;
    // If the cancelled request held a unit, none would be free now.
    let try_admit = async || admission.admit(user("bob")).await.is_ok();
    eventually("the limit of one is free again", true, try_admit).await;
    wait_until_released(&admission).await;
}

/// Many clients, each cancelled after a pseudo-random delay.
#[tokio::test(flavor = "multi_thread")]
async fn many_requests_cancelled_at_random_points_release_everything() {
    let builder = Admission::builder().total(20).per_user(3).wait(Duration::from_millis(5));
    let admission = builder.build(Quota::local());
    let mut tasks = Vec::new();
    for client in 0..400_u64 {
        let admission = admission.clone();
        tasks.push(tokio::spawn(async move {
            let visitor_of = || user(&format!("user-{}", client % 17));
            let cancel_after = Duration::from_micros(client * 7919 % 9_000);
            let stay = async {
                if let Ok(permit) = admission.admit(visitor_of()).await {
                    tokio::time::sleep(Duration::from_micros(client * 104_729 % 3_000)).await;
                    drop(permit);
                }
            };
            let _ = tokio::time::timeout(cancel_after, stay).await;
        }));
    }
    for task in tasks {
        within("every task ends", task).await.unwrap();
    }
    wait_until_released(&admission).await;
    assert_eq!(admission.status().waiting, 0);
    let permits = (0..20).map(|n| admission.admit(user(&format!("late-{n}"))));
    for permit in permits {
        drop(permit.await.unwrap());
    }
}
