//! Two instances with one Redis share their limits.

use std::time::Duration;

use forebay_admission::{Admission, RejectionReason, State};
use forebay_quota::{MemberConfig, OutagePolicy, Quota, QuotaMode, RedisStore};
use forebay_sandbox::Redis;
use forebay_testkit::TEST_TIMEOUT;

use crate::support::{
    RawHttpClient, by_header, eventually, refusal, serve, user, wait_until_released, within,
};

/// Heartbeats must not exceed it during the whole test. The counts of a new store are rebuilt for
/// one TTL.
const TTL: Duration = Duration::from_secs(6);

async fn join(redis: &Redis, name: &str, policy: OutagePolicy) -> Quota {
    let store = RedisStore::open(&redis.url(), "cluster").unwrap();
    let member = MemberConfig::new(name)
        .ttl(TTL)
        .policy(policy)
        .heartbeat_interval(Duration::from_millis(200))
        .call_timeout(TEST_TIMEOUT);
    Quota::join(store, member.join_timeout(TEST_TIMEOUT)).await
}

fn admission(quota: Quota) -> Admission {
    Admission::builder().total(8).per_user(3).build(quota)
}

#[tokio::test]
async fn the_first_instance_of_a_new_namespace_admits_at_once_unless_the_policy_is_closed() {
    let redis = Redis::start().unwrap();
    let closed = admission(join(&redis, "closed", OutagePolicy::Closed).await);
    let rejection = closed.admit(user("ada")).await.unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::Rebuilding);
    assert!(rejection.retry_after_seconds().is_some_and(|seconds| u64::from(seconds) <= TTL.as_secs()));

    let quota = join(&redis, "share", OutagePolicy::Share).await;
    let open = admission(quota.clone());
    let mut permits = Vec::new();
    let rejection = loop {
        match open.admit(user(&format!("user-{}", permits.len()))).await {
            Ok(permit) => permits.push(permit),
            Err(rejection) => break rejection,
        }
    };
    assert_eq!((permits.len(), rejection.reason()), (4, RejectionReason::Rebuilding), "half of the limit");
    assert_eq!(quota.mode(), QuotaMode::Rebuilding);
    assert!(closed.admit(user("ada")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_across_instances_and_a_unit_released_by_one_is_granted_to_another() {
    let redis = Redis::start().unwrap();
    let quotas =
        [join(&redis, "one", OutagePolicy::Share).await, join(&redis, "two", OutagePolicy::Share).await];
    for quota in &quotas {
        within("the counts are complete", quota.ready()).await.unwrap();
    }
    let [one, two] = quotas.map(admission);
    let (first, second) = (serve(&one, by_header()).await, serve(&two, by_header()).await);
    let mut open = Vec::new();
    for server in [first, second, first] {
        let (head, client) = RawHttpClient::get(server, "/endless", &[("x-user-id", "ada")]).await;
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
            RawHttpClient::get(if n % 2 == 0 { first } else { second }, "/endless", &[("x-user-id", &id)])
                .await;
        assert_eq!(head.status, 200);
        open.push(client);
    }
    for (server, admission) in [(first, &one), (second, &two)] {
        assert_eq!(refusal(server, "/endless", &[("x-user-id", "late")]).await.0.status, 503);
        assert!(admission.statistics().redis_enabled);
    }
    let full = async || (one.statistics().total_connections, two.statistics().total_connections);
    eventually("both instances see the limit reached", (8, 8), full).await;
    eventually("the state is exhausted", State::Exhausted, async || one.statistics().state).await;

    drop(open);
    wait_until_released(&one).await;
    wait_until_released(&two).await;
    let free = async || admit_all(&two).await;
    eventually("all units are free again for either instance", true, free).await;
}

/// Returns whether one instance alone can use the whole limit.
async fn admit_all(admission: &Admission) -> bool {
    let mut permits = Vec::new();
    for n in 0..8 {
        match admission.admit(user(&format!("again-{n}"))).await {
            Ok(permit) => permits.push(permit),
            Err(rejection) => assert_eq!(rejection.reason(), RejectionReason::Exhausted),
        }
    }
    permits.len() == 8
}
