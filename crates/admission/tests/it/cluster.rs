//! Two instances on one Redis are one house.

use std::time::Duration;

use forebay_admission::{Admission, Reason, State};
use forebay_quota::{MemberConfig, Quota, RedisStore};
use forebay_sandbox::Redis;
use forebay_testkit::PATIENCE;

use crate::support::{Client, by_header, empties, eventually, refusal, serve, user};

/// Both must beat within it for the whole test, and a new store grants nothing before it has passed
/// once.
const TTL: Duration = Duration::from_secs(6);

async fn instance(redis: &Redis, name: &str) -> Admission {
    let store = RedisStore::open(&redis.url(), "house").unwrap();
    let member = MemberConfig::new(name)
        .ttl(TTL)
        .heartbeat_interval(Duration::from_millis(200))
        .call_timeout(PATIENCE);
    Admission::builder().total(8).per_user(3).build(Quota::join(store, member.join_timeout(PATIENCE)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_across_instances_and_what_one_gives_back_the_other_gets() {
    let redis = Redis::start().unwrap();
    let (one, two) = (instance(&redis, "one").await, instance(&redis, "two").await);
    // A store that is new may take a TTL to grant anything.
    for admission in [&one, &two] {
        eventually("a first permit", true, async || admission.admit(user("first")).await.is_ok()).await;
        empties(admission).await;
    }
    let (first, second) = (serve(&one, by_header()).await, serve(&two, by_header()).await);
    let mut open = Vec::new();
    for server in [first, second, first] {
        let (head, client) = Client::get(server, "/endless", &[("x-user-id", "ada")]).await;
        assert_eq!(head.status, 200);
        open.push(client);
    }
    for server in [first, second] {
        let (head, body) = refusal(server, "/endless", &[("x-user-id", "ada")]).await;
        assert_eq!((head.status, &body["details"]["current"]), (429, &3.into()), "{body}");
    }
    for n in 0..5 {
        let id = format!("user-{n}");
        let (head, client) =
            Client::get(if n % 2 == 0 { first } else { second }, "/endless", &[("x-user-id", &id)]).await;
        assert_eq!(head.status, 200);
        open.push(client);
    }
    for (server, admission) in [(first, &one), (second, &two)] {
        assert_eq!(refusal(server, "/endless", &[("x-user-id", "late")]).await.0.status, 503);
        assert!(admission.statistics().redis_enabled);
    }
    let full = async || (one.statistics().total_connections, two.statistics().total_connections);
    eventually("both know that the house is full", (8, 8), full).await;
    eventually("and say so", State::Exhausted, async || one.statistics().state).await;

    drop(open);
    empties(&one).await;
    empties(&two).await;
    let free = async || admit_all(&two).await;
    eventually("all places are free again, for either of them", true, free).await;
}

/// Whether one instance alone can fill the house.
async fn admit_all(admission: &Admission) -> bool {
    let mut permits = Vec::new();
    for n in 0..8 {
        match admission.admit(user(&format!("again-{n}"))).await {
            Ok(permit) => permits.push(permit),
            Err(rejection) => assert_eq!(rejection.reason(), Reason::Exhausted),
        }
    }
    permits.len() == 8
}
