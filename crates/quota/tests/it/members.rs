//! Members of one process that share a store in memory, under a paused clock.

use std::time::Duration;

use forebay_quota::{
    BudgetConfig, MemberConfig, MemoryStore, OutagePolicy, Quota, QuotaMode, QuotaRefusal, RateConfig,
};
use futures_util::FutureExt;

/// How long a refusal is cached.
const REFUSAL_CACHE_TTL: Duration = Duration::from_millis(50);

async fn join(store: &MemoryStore, name: &str) -> Quota {
    Quota::join(store.clone(), MemberConfig::new(name)).await
}

#[tokio::test(start_paused = true)]
async fn a_budget_lends_its_limit_and_a_returned_unit_is_lent_again() {
    let quota = Quota::local();
    let budget = quota.budget("streams", BudgetConfig::new(3));
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(budget.take().await.unwrap());
    }
    assert_eq!(budget.take().await.unwrap_err(), QuotaRefusal::Full { used: 3, limit: 3 });
    drop(held.pop());
    held.push(budget.take().await.unwrap());
    assert_eq!(budget.usage().used, 3);
}

#[tokio::test(start_paused = true)]
async fn idle_units_of_one_member_reach_another_that_needs_them() {
    let store = MemoryStore::new();
    let (a, b) = (join(&store, "a").await, join(&store, "b").await);
    let (ours, theirs) =
        (a.budget("streams", BudgetConfig::new(100)), b.budget("streams", BudgetConfig::new(100)));
    let one = ours.take().await.unwrap();
    assert!(ours.usage().slice > 20, "it was given a block: {:?}", ours.usage());
    let mut held = Vec::new();
    while let Ok(lease) = theirs.take().await {
        held.push(lease);
    }
    assert_eq!(held.len(), 99, "nothing is refused while units lie idle elsewhere");
    assert_eq!(ours.take().await.unwrap_err(), QuotaRefusal::Full { used: 100, limit: 100 });
    drop(one);
    tokio::time::sleep(REFUSAL_CACHE_TTL).await;
    assert!(theirs.take().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn limits_rise_and_fall_and_leases_stay() {
    let store = MemoryStore::new();
    let quota = join(&store, "a").await;
    let (budget, users) = (quota.budget("streams", BudgetConfig::new(2)), quota.keyed_limit("user", 1));
    let mut held = vec![budget.take().await.unwrap(), budget.take().await.unwrap()];
    let one = users.take("ann").await.unwrap();
    assert!(budget.take().await.is_err() && users.take("ann").await.is_err());

    budget.set_limit(3);
    users.set_limit(2);
    held.push(budget.take().await.unwrap());
    let two = users.take("ann").await.unwrap();

    budget.set_limit(1);
    users.set_limit(1);
    assert_eq!((budget.usage().used, budget.limit(), users.limit()), (3, 1, 1));
    held.truncate(1);
    assert_eq!(budget.take().await.unwrap_err(), QuotaRefusal::Full { used: 1, limit: 1 });
    drop(one);
    assert_eq!(users.take("ann").await.unwrap_err(), QuotaRefusal::Full { used: 1, limit: 1 });
    drop((two, held));
    assert!(budget.take().await.is_ok() && users.take("ann").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn freed_resolves_when_a_unit_is_returned() {
    let quota = Quota::local();
    let budget = quota.budget("streams", BudgetConfig::new(1));
    let held = budget.take().await.unwrap();
    let mut freed = std::pin::pin!(budget.freed());
    assert!(!freed.as_mut().enable());
    assert!(budget.take().await.is_err());
    drop(held);
    freed.await;
    assert!(budget.take().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_member_that_leaves_returns_everything_at_once() {
    let store = MemoryStore::new();
    let (a, b) = (join(&store, "a").await, join(&store, "b").await);
    let budget = a.budget("streams", BudgetConfig::new(1));
    let _held = budget.take().await.unwrap();
    let theirs = b.budget("streams", BudgetConfig::new(1));
    assert!(theirs.take().await.is_err());
    a.leave().await;
    tokio::time::sleep(REFUSAL_CACHE_TTL).await;
    assert!(theirs.take().await.is_ok());
    assert!(matches!(budget.take().await, Err(QuotaRefusal::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_member_leaves_when_its_last_handle_and_lease_are_dropped() {
    let store = MemoryStore::new();
    let watcher = join(&store, "watcher").await;
    let quota = join(&store, "a").await;
    let lease = quota.budget("streams", BudgetConfig::new(9)).take().await.unwrap();
    drop(quota);
    assert_eq!(watcher.query_holdings().await.unwrap().members.len(), 2, "a lease keeps its member");
    drop(lease);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(watcher.query_holdings().await.unwrap().members.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_with_one_name_the_first_continues_under_another() {
    let store = MemoryStore::new();
    let first = join(&store, "same").await;
    let (budget, users) = (first.budget("streams", BudgetConfig::new(4)), first.keyed_limit("user", 3));
    let _held = (budget.take().await.unwrap(), users.take("ann").await.unwrap());
    let second = join(&store, "same").await;
    tokio::time::sleep(Duration::from_secs(3)).await; // one heartbeat
    let (name, other) = (first.status().member, second.status().member);
    assert!(name.name().starts_with("same+") && other.name() == "same", "{name} and {other}");
    assert_eq!((first.status().mode, second.status().mode), (QuotaMode::Normal, QuotaMode::Normal));
    assert_eq!(users.holders("ann").await.unwrap().len(), 1, "what it holds is counted under its new name");
    let theirs = second.budget("streams", BudgetConfig::new(4));
    let mut held = Vec::new();
    while let Ok(lease) = theirs.take().await {
        held.push(lease);
    }
    assert_eq!(held.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_its_data_grants_nothing_by_the_closed_policy_until_it_is_rebuilt() {
    let store = MemoryStore::new();
    let quota = Quota::join(store.clone(), MemberConfig::new("a").policy(OutagePolicy::Closed)).await;
    let (budget, users) = (quota.budget("streams", BudgetConfig::new(10)), quota.keyed_limit("user", 3));
    let _held = (budget.take().await.unwrap(), users.take("ann").await.unwrap());
    store.lose_everything();
    assert!(users.take("ann").await.is_err(), "the store may lack the shares of other members");
    tokio::time::sleep(Duration::from_millis(2100)).await; // one heartbeat
    assert_eq!(quota.status().mode, QuotaMode::Rebuilding);
    assert!(quota.status().why.is_some());
    assert_eq!(users.holders("ann").await.unwrap()[0].count, 1);
    let refusal = users.take("bob").await.unwrap_err();
    let QuotaRefusal::Rebuilding { left } = refusal else { panic!("{refusal:?}") };
    assert!(left <= Duration::from_secs(10));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(quota.status().mode, QuotaMode::Normal);
    assert!(users.take("bob").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_loses_its_data_grants_a_members_part_by_the_share_policy() {
    let store = MemoryStore::new();
    let (quota, other) = (join(&store, "a").await, join(&store, "b").await);
    tokio::time::sleep(Duration::from_secs(3)).await; // one heartbeat: both count two members
    let (ours, theirs) =
        (quota.budget("streams", BudgetConfig::new(10)), other.budget("streams", BudgetConfig::new(10)));
    let mut held = vec![ours.take().await.unwrap()];
    for _ in 0..4 {
        held.push(theirs.take().await.unwrap());
    }
    store.lose_everything();
    let refusal = loop {
        match ours.take().await {
            Ok(lease) => held.push(lease),
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, QuotaRefusal::Rebuilding { .. }), "{refusal:?}");
    assert_eq!((ours.usage().used_here, held.len()), (5, 9));
    let why = quota.status().why.unwrap();
    assert!(why.contains("this member lends its part"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn ready_resolves_when_the_store_grants_without_restriction() {
    let store = MemoryStore::new();
    store.lose_everything();
    let quota = Quota::join(store.clone(), MemberConfig::new("a").policy(OutagePolicy::Closed)).await;
    assert_eq!(quota.ready().now_or_never(), None, "the store is new");
    let started = tokio::time::Instant::now();
    quota.ready().await.unwrap();
    assert_eq!((started.elapsed(), quota.mode()), (Duration::from_secs(10), QuotaMode::Normal));
    assert!(quota.budget("streams", BudgetConfig::new(10)).take().await.is_ok());
    assert_eq!(quota.ready().now_or_never(), Some(Ok(())));

    store.lose_everything();
    tokio::time::sleep(Duration::from_millis(2100)).await; // one heartbeat
    let (waited, ()) = tokio::join!(quota.ready(), quota.leave());
    for outcome in [waited, quota.ready().await] {
        assert!(matches!(outcome, Err(QuotaRefusal::Unavailable { .. })), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_is_json_without_keys() {
    let quota = Quota::local();
    let _lease = quota.budget("streams", BudgetConfig::new(5)).take().await.unwrap();
    let _held = quota.keyed_limit("user", 3).take("secret-user").await.unwrap();
    let status = serde_json::to_value(quota.status()).unwrap();
    assert_eq!(status["store"], "memory");
    assert_eq!(status["mode"], "normal");
    assert_eq!(
        (&status["budgets"][0]["name"], &status["budgets"][0]["used"]),
        (&"streams".into(), &1.into())
    );
    assert_eq!((&status["keyed"][0]["keys"], &status["keyed"][0]["held"]), (&1.into(), &1.into()));
    assert!(!status.to_string().contains("secret-user"), "keys may be users' names");
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_over_all_members_and_serves_in_order() {
    let store = MemoryStore::new();
    let (a, b) = (join(&store, "a").await, join(&store, "b").await);
    let config = RateConfig::per_second(100.0).burst(10);
    let (ours, theirs) = (a.rate("dial", config), b.rate("dial", config));
    let started = tokio::time::Instant::now();
    let taking = |rate: &forebay_quota::Rate| {
        let rate = rate.clone();
        async move {
            for _ in 0..55 {
                rate.take().await.unwrap().spend();
            }
        }
    };
    tokio::join!(taking(&ours), taking(&theirs));
    let took = started.elapsed();
    assert!(
        (Duration::from_millis(1000)..Duration::from_millis(1020)).contains(&took),
        "110 tokens took {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_not_spent_goes_to_the_next_and_is_lost_after_a_second() {
    let quota = Quota::local();
    let rate = quota.rate("dial", RateConfig::per_second(1.0));
    drop(rate.take().await.unwrap());
    let again = rate.take().now_or_never().expect("it is available at once").unwrap();
    again.spend();
    let started = tokio::time::Instant::now();
    drop(rate.take().await.unwrap());
    assert_eq!(started.elapsed().as_millis(), 1000);
    // By now the bucket has another token. Once that is taken, only the returned one can be
    // available at once.
    tokio::time::sleep(Duration::from_millis(999)).await;
    drop(rate.take().now_or_never().expect("the returned one is still valid"));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let started = tokio::time::Instant::now();
    rate.take().await.unwrap().spend();
    rate.take().await.unwrap().spend();
    assert_eq!(
        started.elapsed().as_millis(),
        1000,
        "the returned one has expired, and the next comes from the bucket"
    );
}

#[test]
fn policies_parse_from_their_names() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        assert_eq!(policy.as_str().parse(), Ok(policy));
    }
    let error = "half".parse::<OutagePolicy>().unwrap_err();
    assert_eq!(error.to_string(), "no policy is called \"half\"; there are: closed, share, open");
}

#[test]
fn a_take_after_the_members_runtime_has_ended_is_answered() {
    let theirs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let quota = theirs.block_on(async { Quota::local() });
    let budget = quota.budget("streams", BudgetConfig::new(10));
    drop(theirs);
    let ours = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reply = ours.block_on(async { tokio::time::timeout(Duration::from_secs(20), budget.take()).await });
    assert!(reply.is_ok(), "it never ends");
}

#[tokio::test(start_paused = true)]
async fn extreme_rates_still_give_tokens() {
    let quota = Quota::local();
    for per_second in [1e300, 1e-300] {
        let rate = quota.rate(&per_second.to_string(), RateConfig::per_second(per_second));
        let token = tokio::time::timeout(Duration::from_millis(1), rate.take()).await;
        token.expect("the first is there at once").unwrap().spend();
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_drawn_for_a_dropped_caller_go_to_the_next() {
    let quota = Quota::local();
    let rate = quota.rate("dial", RateConfig::per_second(1.0));
    // The caller is dropped while its draw is in flight.
    assert!(rate.take().now_or_never().is_none());
    tokio::task::yield_now().await;
    tokio::time::timeout(Duration::from_millis(1), rate.take())
        .await
        .expect("it was drawn already")
        .unwrap()
        .spend();
}
