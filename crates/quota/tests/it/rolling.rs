//! A rolling deployment: members of release 0.1 and of this one share a namespace, and count as one.

use std::pin::Pin;
use std::sync::Arc;

use forebay_quota::{
    Beat, BudgetConfig, Calling, Draw, Drawn, Holdings, MemberId, Pulse, Quota, RedisStore, Refusal, Settled,
    Settlement, Store,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use proptest::prelude::*;

use crate::release_0_1::Release01Store;
use crate::support::{PATIENCE, namespace, settled_store, steady, until};

/// A store of either release.
pub(crate) enum AnyRelease {
    Old(Release01Store),
    New(RedisStore),
}

impl AnyRelease {
    pub(crate) async fn old(server: &Redis, namespace: &str) -> Self {
        settled_store(server, namespace).await;
        AnyRelease::Old(Release01Store::new(RedisClient::connect(server.url()).await.unwrap(), namespace))
    }

    pub(crate) async fn new(server: &Redis, namespace: &str) -> Self {
        AnyRelease::New(settled_store(server, namespace).await)
    }

    fn store(&self) -> &dyn Store {
        match self {
            AnyRelease::Old(store) => store,
            AnyRelease::New(store) => store,
        }
    }
}

impl Store for AnyRelease {
    fn beat(&self, beat: Beat) -> Calling<'_, Pulse> {
        self.store().beat(beat)
    }

    fn settle(&self, settlement: Settlement) -> Calling<'_, Settled> {
        self.store().settle(settlement)
    }

    fn leave(&self, member: MemberId) -> Calling<'_, ()> {
        self.store().leave(member)
    }

    fn draw(&self, draw: Draw) -> Calling<'_, Drawn> {
        self.store().draw(draw)
    }

    fn look(&self, accounts: Vec<Arc<str>>) -> Calling<'_, Holdings> {
        self.store().look(accounts)
    }

    fn pressed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store().pressed()
    }

    fn kind(&self) -> &'static str {
        self.store().kind()
    }
}

/// Every other call goes through the scripts of the other release: whatever one writes, the other reads as the ledger does.
#[test]
fn calls_of_both_releases_in_turn_are_answered_as_the_ledger_does() {
    let server = Redis::shared();
    // Release 0.1 writes down no depth, so the members of a bucket agree on it here.
    let draw = (0_u32..2, 0_u32..5).prop_map(|(bucket, want)| Draw {
        bucket: format!("r:{bucket}").into(),
        per_second: 1.0 / f64::from((1 + bucket) * 3600),
        burst: 3 + bucket,
        want,
    });
    crate::agreement::check_with(draw, 100, async || {
        let namespace = namespace("rolling");
        [AnyRelease::old(server, &namespace).await, AnyRelease::new(server, &namespace).await]
    });
}

#[tokio::test]
async fn members_of_both_releases_share_budgets_limits_and_the_names_of_keys() {
    const LIMIT: u32 = 6;
    let (server, namespace) = (Redis::shared(), namespace("rolling-members"));
    let old = Quota::join(AnyRelease::old(server, &namespace).await, steady("old")).await;
    let new = Quota::join(AnyRelease::new(server, &namespace).await, steady("new")).await;
    until("both know of both", PATIENCE, async || old.members() == 2 && new.members() == 2).await;
    let budgets = [&old, &new].map(|quota| quota.budget("streams", BudgetConfig::new(LIMIT)));
    let keyed = [&old, &new].map(|quota| quota.keyed("user", LIMIT));
    let (mut streams, mut units) = (Vec::new(), Vec::new());
    for turn in 0..LIMIT as usize {
        streams.push(budgets[turn % 2].take().await.unwrap());
        units.push(keyed[turn % 2].take("ip:1.2.3.4").await.unwrap());
    }
    for turn in 0..2 {
        assert!(matches!(budgets[turn].take().await, Err(Refusal::Full { .. })));
        let refusal = keyed[turn].take("ip:1.2.3.4").await.unwrap_err();
        assert_eq!(refusal, Refusal::Full { used: LIMIT, limit: LIMIT });
        assert_eq!(keyed[turn].holders("ip:1.2.3.4").await.unwrap().len(), 2);
    }
    drop((streams, units));
    old.leave().await;
    until("the new one has everything", PATIENCE, async || {
        let mut all = Vec::new();
        while let Ok(lease) = budgets[1].take().await {
            all.push(lease);
        }
        all.len() == LIMIT as usize
    })
    .await;
}
