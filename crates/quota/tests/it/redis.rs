//! Members that share a real Redis.

use forebay_quota::{BudgetConfig, Quota, Refusal};
use forebay_sandbox::Redis;

use crate::support::{namespace, quick, settled_store};

#[tokio::test]
async fn two_members_share_a_budget_and_a_limit() {
    let (server, namespace) = (Redis::shared(), namespace("share"));
    let a = Quota::join(settled_store(server, &namespace).await, quick("a")).await;
    let b = Quota::join(settled_store(server, &namespace).await, quick("b")).await;
    let (ours, theirs) = (a.keyed("user", 3), b.keyed("user", 3));
    let mut held = vec![ours.take("ann").await.unwrap(), theirs.take("ann").await.unwrap()];
    held.push(ours.take("ann").await.unwrap());
    assert_eq!(theirs.take("ann").await.unwrap_err(), Refusal::Full { used: 3, limit: 3 });
    drop(held.pop());
    let budget = a.budget("streams", BudgetConfig::new(10));
    let other = b.budget("streams", BudgetConfig::new(10));
    let mut leases = Vec::new();
    while let Ok(lease) = budget.take().await {
        leases.push(lease);
        match other.take().await {
            Ok(lease) => leases.push(lease),
            Err(_) => break,
        }
    }
    println!("{} {:?} {:?} {:?}", leases.len(), budget.usage(), other.usage(), a.look().await);
    assert!(leases.len() <= 10);
}
