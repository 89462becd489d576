//! A rolling upgrade: members of release 0.1 and of this release share a namespace and its counts.

use std::pin::Pin;
use std::sync::Arc;

use forebay_quota::{
    BudgetConfig, Heartbeat, HeartbeatReply, Holdings, MemberId, Quota, QuotaRefusal, RedisStore, Settlement,
    SettlementReply, Store, StoreFuture, TokenReply, TokenRequest,
};
use forebay_redis::RedisClient;
use forebay_sandbox::Redis;
use proptest::prelude::*;

use crate::release_0_1::Release01Store;
use crate::support::{TEST_TIMEOUT, namespace, settled_store, steady, until};

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
    fn heartbeat(&self, heartbeat: Heartbeat) -> StoreFuture<'_, HeartbeatReply> {
        self.store().heartbeat(heartbeat)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<'_, SettlementReply> {
        self.store().settle(settlement)
    }

    fn leave(&self, member: MemberId) -> StoreFuture<'_, ()> {
        self.store().leave(member)
    }

    fn draw(&self, draw: TokenRequest) -> StoreFuture<'_, TokenReply> {
        self.store().draw(draw)
    }

    fn query_holdings(&self, accounts: Vec<Arc<str>>) -> StoreFuture<'_, Holdings> {
        self.store().query_holdings(accounts)
    }

    fn wait_for_pressure(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store().wait_for_pressure()
    }

    fn kind(&self) -> &'static str {
        self.store().kind()
    }
}

/// Calls alternate between the scripts of both releases: each must read what the other writes as
/// the ledger does.
#[test]
fn alternating_calls_of_both_releases_are_replied_to_as_the_ledger_does() {
    let server = Redis::shared();
    // Release 0.1 writes no depth, so all draws of a bucket use the same burst here.
    let draw = (0_u32..2, 0_u32..5).prop_map(|(bucket, want)| TokenRequest {
        bucket: format!("r:{bucket}").into(),
        per_second: 1.0 / f64::from((1 + bucket) * 3600),
        burst: 3 + bucket,
        want,
    });
    crate::store_conformance::check_with(draw, 100, async || {
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
    until("both members count two members", TEST_TIMEOUT, async || old.members() == 2 && new.members() == 2)
        .await;
    let budgets = [&old, &new].map(|quota| quota.budget("streams", BudgetConfig::new(LIMIT)));
    let keyed = [&old, &new].map(|quota| quota.keyed_limit("user", LIMIT));
    let (mut streams, mut units) = (Vec::new(), Vec::new());
    for turn in 0..LIMIT as usize {
        streams.push(budgets[turn % 2].take().await.unwrap());
        units.push(keyed[turn % 2].take("ip:1.2.3.4").await.unwrap());
    }
    for turn in 0..2 {
        assert!(matches!(budgets[turn].take().await, Err(QuotaRefusal::Full { .. })));
        let refusal = keyed[turn].take("ip:1.2.3.4").await.unwrap_err();
        assert_eq!(refusal, QuotaRefusal::Full { used: LIMIT, limit: LIMIT });
        assert_eq!(keyed[turn].holders("ip:1.2.3.4").await.unwrap().len(), 2);
    }
    drop((streams, units));
    old.leave().await;
    until("the new member can take everything", TEST_TIMEOUT, async || {
        let mut all = Vec::new();
        while let Ok(lease) = budgets[1].take().await {
            all.push(lease);
        }
        all.len() == LIMIT as usize
    })
    .await;
}
