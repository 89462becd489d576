//! Members that share a DynamoDB table.

mod liveness;
mod random_faults;
mod tokens;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region};
use aws_sdk_dynamodb::types::AttributeValue;
use forebay_quota::{
    Allocation, BudgetConfig, DynamoStore, Heartbeat, HeartbeatKind, MemberId, OutagePolicy, Quota,
    QuotaRefusal, Settlement, SettlementReply, ShareReply, ShareRequest, Store, StoreError,
};
use forebay_sandbox::DynamoDb;
use forebay_testkit::{Direction, Proxy};
use futures_util::future::join_all;

use crate::rebuild::start_in_a_new_namespace;
use crate::support::{namespace, steady, until};

const TABLE: &str = "quota";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn client(url: String) -> Client {
    let credentials = Credentials::new("sandbox", "sandbox", None, None, "sandbox");
    let config = DynamoStore::client_config()
        .endpoint_url(url)
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials)
        .build();
    Client::from_conf(config)
}

/// Creates a handle in a namespace of the shared server.
async fn handle(namespace: &str) -> DynamoStore {
    let client = client(DynamoDb::shared().url());
    DynamoStore::create_table(client, TABLE, namespace).await.unwrap()
}

/// Creates a handle in a namespace that needs no rebuild.
async fn settled_handle(namespace: &str) -> DynamoStore {
    let store = handle(namespace).await;
    let generation = [
        ("pk", AttributeValue::S(format!("namespace#{namespace}"))),
        ("sk", AttributeValue::S("generation".into())),
        ("gen", AttributeValue::N("1".into())),
        ("rebuilding", AttributeValue::Bool(false)),
        ("life_ms", AttributeValue::N("1".into())),
    ];
    put(generation.map(|(name, value)| (name.into(), value)).into()).await;
    store
}

async fn put(item: HashMap<String, AttributeValue>) {
    let put = client(DynamoDb::shared().url()).put_item().table_name(TABLE).set_item(Some(item));
    put.send().await.unwrap();
}

async fn get(partition: String, sort: String) -> Option<HashMap<String, AttributeValue>> {
    let get = client(DynamoDb::shared().url()).get_item().table_name(TABLE).consistent_read(true);
    let get = get.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
    get.send().await.unwrap().item
}

async fn delete(partition: String, sort: String) {
    let delete = client(DynamoDb::shared().url()).delete_item().table_name(TABLE);
    let delete = delete.key("pk", AttributeValue::S(partition)).key("sk", AttributeValue::S(sort));
    delete.send().await.unwrap();
}

fn heartbeat(member: &MemberId, kind: HeartbeatKind, ttl: Duration) -> Heartbeat {
    Heartbeat { member: member.clone(), ttl, kind, generation: 7, members_before: 0, has_reported: false }
}

fn exact(account: &str, limit: u32, floor: u32, want: u32) -> ShareRequest {
    ShareRequest { account: account.into(), limit, floor, want, used: want, allocation: Allocation::Exact }
}

fn settlement(member: &MemberId, sequence: u64, requests: Vec<ShareRequest>) -> Settlement {
    Settlement {
        member: member.clone(),
        sequence,
        last_acknowledged: 0,
        pressure: Duration::ZERO,
        rebuild_parts: 0,
        requests,
    }
}

async fn settle(
    store: &DynamoStore,
    member: &MemberId,
    sequence: u64,
    requests: Vec<ShareRequest>,
) -> Vec<ShareReply> {
    match store.settle(settlement(member, sequence, requests)).await.unwrap() {
        SettlementReply::Applied(replies) => replies,
        settled => panic!("{member} wasn't settled: {settled:?}"),
    }
}

async fn holders(store: &DynamoStore, account: &str) -> Vec<(MemberId, u32)> {
    let holdings = store.query_holdings(vec![account.into()]).await.unwrap();
    let shares = holdings.accounts.into_iter().flat_map(|account| account.shares);
    shares.map(|share| (share.member, share.count)).collect()
}

#[test]
fn dynamodb_replies_as_the_ledger_does() {
    // About two seconds on an idle machine; FOREBAY_CASES sets more.
    let cases = std::env::var("FOREBAY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(8);
    crate::store_conformance::check(cases, async || {
        let namespace = namespace("agreement");
        [settled_handle(&namespace).await, settled_handle(&namespace).await]
    });
}

#[test]
fn dynamodb_replies_as_the_ledger_does_during_a_rebuild() {
    crate::store_conformance::check_rebuild(8, async || {
        let namespace = namespace("agreement-rebuild");
        [handle(&namespace).await, handle(&namespace).await]
    });
}

#[tokio::test]
async fn a_new_table_grants_at_once_unless_the_policy_is_closed() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        let (server, namespace) = (DynamoDb::shared(), namespace("first-start"));
        let table = namespace.clone();
        start_in_a_new_namespace(policy, async |name, policy| {
            let client = client(server.url());
            let store = DynamoStore::create_table(client, &table, &namespace).await.unwrap();
            Quota::join(store, steady(name).policy(policy)).await
        })
        .await;
    }
}

#[tokio::test]
async fn handles_that_create_the_table_at_once_share_it() {
    let namespace = namespace("table");
    let stores = join_all((0..4).map(|_| handle(&namespace))).await;
    let member = MemberId::new("a", 1);
    stores[0].heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
    let seen = stores[3].query_holdings(Vec::new()).await.unwrap();
    assert_eq!(seen.members.len(), 1);
    assert_eq!(stores[0].kind(), "dynamodb");
    assert_eq!(
        format!("{:?}", stores[0]),
        format!("DynamoStore {{ table: {TABLE:?}, namespace: {namespace:?}, .. }}")
    );
}

#[tokio::test]
async fn errors_name_their_cause_and_no_credentials() {
    let member = MemberId::new("a", 1);
    let nowhere = DynamoStore::new(client(DynamoDb::shared().url()), "no-such-table", "x");
    let error = nowhere.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unexpected(_)), "{error:?}");
    assert!(error.to_string().contains("ResourceNotFoundException"), "{error}");

    let silent =
        DynamoStore::new(client(format!("http://127.0.0.1:{}", forebay_sandbox::free_port())), TABLE, "x");
    let error = silent.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(!format!("{error:?}").contains("sandbox"), "credentials: {error:?}");
}

/// In each round, all members request one unit at once. Exactly the limit is granted, despite the
/// conflicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_conflicts_end_with_the_right_count_and_no_false_refusal() {
    const HANDLES: usize = 10;
    const LIMIT: u32 = 4;
    let namespace = namespace("conflicts");
    settled_handle(&namespace).await;
    let members = join_all((0..HANDLES).map(async |number| {
        let (store, member) = (handle(&namespace).await, MemberId::new(&format!("m{number}"), 1));
        store.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
        (store, member)
    }))
    .await;
    for round in 0..4 {
        let settle_all = |want, sequence: u64| {
            let budget =
                ShareRequest { allocation: Allocation::Blocks, ..exact("b:all", 2 * LIMIT, 0, want) };
            let requests = vec![exact("k:one", LIMIT, 0, want), budget];
            join_all(
                members.iter().map(move |(store, member)| settle(store, member, sequence, requests.clone())),
            )
        };
        let replies = settle_all(1, 2 * round + 1).await;
        let held = |account: usize| replies.iter().map(|replies| replies[account].count).sum::<u32>();
        assert_eq!((held(0), held(1)), (LIMIT, 2 * LIMIT), "round {round}: {replies:?}");
        assert!(replies.iter().all(|replies| replies[0].total <= LIMIT && replies[1].total <= 2 * LIMIT));
        let written = holders(&members[0].0, "k:one").await;
        assert_eq!(written.iter().map(|(_, count)| count).sum::<u32>(), LIMIT);
        settle_all(0, 2 * round + 2).await;
        assert_eq!(holders(&members[0].0, "k:one").await, []);
    }
}

#[tokio::test]
async fn a_settlement_of_more_accounts_than_a_transaction_takes_is_replied_to_in_order() {
    let (store, member) = (settled_handle(&namespace("many")).await, MemberId::new("a", 1));
    store.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
    let requests = |more: u32| (0..230).map(|key| exact(&format!("k:{key}"), 1000, 0, key + more)).collect();
    for (sequence, more) in [(1, 1), (2, 2)] {
        let replies = settle(&store, &member, sequence, requests(more)).await;
        assert!(replies.iter().zip(0..).all(|(reply, key)| reply.count == key + more), "{replies:?}");
    }
    assert_eq!(store.settle(settlement(&member, 2, requests(3))).await.unwrap(), SettlementReply::Stale);
    assert_eq!(settle(&store, &member, 3, Vec::new()).await, []);
}

#[tokio::test]
async fn a_name_of_any_length_can_be_counted() {
    let (store, member) = (settled_handle(&namespace("long")).await, MemberId::new("a", 1));
    store.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
    let names = [1, 1024, 1025, 2048, 1 << 20].map(|length| "x".repeat(length));
    let requests = names.iter().zip(1..).map(|(name, want)| exact(name, 9, 0, want)).collect();
    settle(&store, &member, 1, requests).await;
    for (name, want) in names.iter().zip(1..) {
        assert_eq!(holders(&store, name).await, [(member.clone(), want)], "{} bytes", name.len());
    }
}

/// The first settlement's write is delayed and its caller times out. A later one is applied; then
/// the first arrives.
#[tokio::test]
async fn a_settlement_that_arrives_after_a_later_one_changes_nothing() {
    let (namespace, member) = (namespace("late"), MemberId::new("a", 1));
    let direct = settled_handle(&namespace).await;
    direct.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
    let proxy = Proxy::start(DynamoDb::shared().addr());
    let slow = DynamoStore::new(client(format!("http://{}", proxy.addr())), TABLE, &namespace);
    let mut late = slow.settle(settlement(&member, 1, vec![exact("k:x", 5, 0, 5)]));
    let mut wait_for = async |what: &str, direction| {
        until(what, TEST_TIMEOUT, async || {
            let over = tokio::time::timeout(Duration::from_millis(5), &mut late).await;
            assert!(over.is_err(), "its write must still be in flight");
            proxy.forwarded_bytes(direction) > 0
        })
        .await;
    };
    // Requests are blocked while the reads are still on their way back: the write that follows is
    // held.
    proxy.stall(Direction::ToClient);
    wait_for("it asks", Direction::ToServer).await;
    proxy.stall(Direction::ToServer);
    proxy.unstall(Direction::ToClient);
    wait_for("it has read", Direction::ToClient).await;
    let sent = proxy.forwarded_bytes(Direction::ToServer);
    let writing = tokio::time::timeout(Duration::from_secs(2), late).await;
    assert!(writing.is_err(), "nothing can have been written");

    settle(&direct, &member, 2, vec![exact("k:x", 5, 0, 0)]).await;
    proxy.resume();
    until("the late one arrives", TEST_TIMEOUT, async || {
        proxy.forwarded_bytes(Direction::ToServer) > sent + 500
    })
    .await;
    let arrived = Instant::now();
    while arrived.elapsed() < Duration::from_millis(500) {
        assert_eq!(holders(&direct, "k:x").await, []);
    }
}

/// A store restored to an earlier state reports the lost writes.
#[tokio::test]
async fn a_restored_store_reports_lost_writes() {
    let namespace = namespace("lost");
    let (store, member) = (settled_handle(&namespace).await, MemberId::new("a", 1));
    store.heartbeat(heartbeat(&member, HeartbeatKind::Join, LONG)).await.unwrap();
    settle(&store, &member, 1, vec![exact("k:x", 5, 0, 1)]).await;
    let old = get(format!("namespace#{namespace}"), format!("member#{member}")).await.unwrap();
    settle(&store, &member, 2, vec![exact("k:x", 5, 1, 2)]).await;
    put(old).await;

    let requests = vec![exact("k:x", 5, 2, 3)];
    let next = Settlement { last_acknowledged: 2, ..settlement(&member, 3, requests) };
    assert_eq!(store.settle(next).await.unwrap(), SettlementReply::LostWrites);
    let reply = store.heartbeat(heartbeat(&member, HeartbeatKind::Renew, LONG)).await.unwrap();
    assert_eq!(reply.membership, forebay_quota::Membership::Alive { sequence: 1 });
    assert_eq!(holders(&store, "k:x").await, [(member, 2)], "nothing was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_share_a_budget_and_a_keyed_limit() {
    let namespace = namespace("quota");
    settled_handle(&namespace).await;
    let join = async |name: &str| Quota::join(handle(&namespace).await, steady(name)).await;
    let (a, b) = (join("a").await, join("b").await);
    let budgets = [&a, &b].map(|quota| quota.budget("streams", BudgetConfig::new(6)));
    let keyed = [&a, &b].map(|quota| quota.keyed_limit("user", 3));
    let (mut leases, mut units) = (Vec::new(), Vec::new());
    for turn in 0..6 {
        leases.push(budgets[turn % 2].take().await.unwrap());
    }
    for turn in 0..3 {
        units.push(keyed[turn % 2].take("alice").await.unwrap());
    }
    for turn in 0..2 {
        // The used units of a budget are those of each member's last report.
        let refusal = budgets[turn].take().await.unwrap_err();
        assert!(matches!(refusal, QuotaRefusal::Full { used: 5..=6, limit: 6 }), "{refusal:?}");
        assert_eq!(keyed[turn].take("alice").await.unwrap_err(), QuotaRefusal::Full { used: 3, limit: 3 });
    }
    assert!(keyed[0].take("bob").await.is_ok());
    assert_eq!(a.query_holdings().await.unwrap().members.len(), 2);

    drop((leases.remove(0), units.remove(0)));
    until("b gets the unit that a returned", TEST_TIMEOUT, async || budgets[1].take().await.is_ok()).await;
    until("and the unit of the key", TEST_TIMEOUT, async || keyed[1].take("alice").await.is_ok()).await;
    a.leave().await;
    until("b alone can take everything", TEST_TIMEOUT, async || {
        let mut all = Vec::new();
        while let Ok(lease) = budgets[1].take().await {
            all.push(lease);
        }
        all.len() == 3
    })
    .await;
    let holdings = b.query_holdings().await.unwrap();
    assert_eq!(holdings.members.len(), 1);
    let shares: Vec<_> = holdings.accounts.iter().flat_map(|account| &account.shares).collect();
    assert!(shares.iter().all(|share| share.count <= 6), "{shares:?}");
    drop((leases, units));
}

#[tokio::test]
async fn no_two_limits_and_keys_share_a_count() {
    let namespace = namespace("names");
    settled_handle(&namespace).await;
    let join = async |name: &str| Quota::join(handle(&namespace).await, steady(name)).await;
    crate::names::assert_each_pair_has_its_own_count(&join("a b").await, &join("b=a").await).await;
}
