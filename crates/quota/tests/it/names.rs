//! Limits and keys of any name: no two of them share a count.

use forebay_quota::{
    Allocation, Heartbeat, HeartbeatKind, MemberId, MemoryStore, Quota, QuotaRefusal, Settlement,
    SettlementReply, ShareRequest, Store,
};
use forebay_sandbox::Redis;

use crate::support::{TEST_TIMEOUT, namespace, settled_store, steady};

/// Pairs that an unencoded separator would mix up, and keys that a client may send.
const NAMES: [(&str, &str); 16] = [
    ("user", "ip:1.2.3.4"),
    ("user:ip", "1.2.3.4"),
    ("user%3Aip", "1.2.3.4"),
    ("user", ""),
    ("user:", ""),
    ("", "user:"),
    ("", ""),
    (":", ""),
    ("user", "a b=3"),
    ("user", "a=3 b"),
    ("user", "nul\0nul"),
    ("user", "nul"),
    ("user", "line\r\nline"),
    ("user", "ünï¢ödé 名"),
    ("user", "#"),
    ("user", "!"),
];

/// Asserts that each pair has its own limit of one, which one unit fills.
pub(crate) async fn assert_each_pair_has_its_own_count(quota: &Quota, other: &Quota) {
    let long = "x".repeat(5000);
    let longer = format!("{long}y");
    let names = NAMES.iter().copied().chain([("user", long.as_str()), ("user", longer.as_str())]);
    let mut held = Vec::new();
    for (limit, key) in names.clone() {
        let lease = quota.keyed_limit(limit, 1).take(key).await;
        held.push(lease.unwrap_or_else(|refusal| panic!("{limit:?}, {key:?}: {refusal}")));
    }
    for (limit, key) in names {
        let refusal = other.keyed_limit(limit, 1).take(key).await.unwrap_err();
        assert_eq!(refusal, QuotaRefusal::Full { used: 1, limit: 1 }, "{limit:?}, {key:?}");
        let holders = other.keyed_limit(limit, 1).holders(key).await.unwrap();
        assert_eq!(holders.iter().map(|share| share.count).collect::<Vec<_>>(), [1], "{limit:?}, {key:?}");
    }
}

#[tokio::test]
async fn no_two_limits_and_keys_share_a_count_in_memory() {
    let store = MemoryStore::new();
    let (quota, other) =
        (Quota::join(store.clone(), steady("a")).await, Quota::join(store, steady("b")).await);
    assert_each_pair_has_its_own_count(&quota, &other).await;
}

#[tokio::test]
async fn no_two_limits_and_keys_share_a_count_in_redis() {
    let (server, namespace) = (Redis::shared(), namespace("names"));
    let quota = Quota::join(settled_store(server, &namespace).await, steady("a b=1\n")).await;
    let other = Quota::join(settled_store(server, &namespace).await, steady("a=1 b")).await;
    assert_each_pair_has_its_own_count(&quota, &other).await;
}

#[tokio::test]
async fn a_member_of_any_name_is_counted_in_an_exact_account() {
    let store = settled_store(Redis::shared(), &namespace("member-names")).await;
    let names = ["a b", "a=7 b", "", "!", "?", "#", "a:b", "ü"];
    let members: Vec<_> = names.iter().zip(1..).map(|(name, epoch)| MemberId::new(name, epoch)).collect();
    for member in &members {
        let heartbeat = Heartbeat {
            member: member.clone(),
            ttl: TEST_TIMEOUT,
            kind: HeartbeatKind::Join,
            generation: 1,
            members_before: 0,
            has_reported: false,
        };
        store.heartbeat(heartbeat).await.unwrap();
    }
    for (member, held) in members.iter().zip(1..) {
        let request = ShareRequest {
            account: "k:x".into(),
            limit: 8,
            floor: 0,
            want: 1,
            used: 1,
            allocation: Allocation::Exact,
        };
        let settlement = Settlement {
            member: member.clone(),
            sequence: 1,
            last_acknowledged: 0,
            pressure: TEST_TIMEOUT,
            rebuild_parts: 0,
            requests: vec![request],
        };
        let settled = store.settle(settlement).await.unwrap();
        assert!(
            matches!(&settled, SettlementReply::Applied(replies) if replies[0].count == 1),
            "{member}: {settled:?}"
        );
        let holdings = store.query_holdings(vec!["k:x".into()]).await.unwrap();
        assert_eq!(holdings.accounts[0].shares.len(), held, "{member}");
    }
}
