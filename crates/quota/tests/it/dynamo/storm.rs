//! Members under load, a DynamoDB that stands still and a network that breaks; the oracle is that of `storm.rs`.

use std::time::Duration;

use forebay_quota::{DynamoStore, Mode, Policy, Quota};
use forebay_sandbox::DynamoDb;
use forebay_testkit::{Dice, Proxy};

use super::{PATIENCE, TABLE, client};
use crate::storm::{MEMBERS, config, rage, span};
use crate::support::until;

/// The emulator takes tens of milliseconds for a call.
const TTL: Duration = Duration::from_secs(3);

async fn dynamo_storm(policy: Policy, span: Duration) {
    let server = DynamoDb::start().unwrap();
    let proxy = Proxy::start(server.addr());
    let mut members = Vec::new();
    for index in 0..MEMBERS {
        let client = client(format!("http://{}", proxy.addr()));
        let store = DynamoStore::create_table(client, TABLE, "storm").await.unwrap();
        members.push(Quota::join(store, config(index, policy, TTL)).await);
    }
    until("the namespace is no longer new", PATIENCE, async || {
        members.iter().all(|quota| quota.mode() == Mode::Normal)
    })
    .await;
    let strike = async |dice: &mut Dice| match dice.below(4) {
        0 => {
            server.freeze();
            tokio::time::sleep(TTL.mul_f64(1.3)).await;
            server.thaw();
            "frozen for longer than the TTL"
        }
        1 => {
            server.freeze();
            tokio::time::sleep(TTL / 8).await;
            server.thaw();
            "frozen"
        }
        2 => {
            proxy.delay(TTL / 4); // longer than a call may take
            tokio::time::sleep(TTL / 2).await;
            proxy.resume();
            "slow"
        }
        _ => {
            proxy.reset();
            "reset"
        }
    };
    rage(&members, policy, span, strike).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_never_lends_more_than_the_limit_by_the_closed_policy() {
    dynamo_storm(Policy::Closed, TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes: FOREBAY_SEED and FOREBAY_SECONDS"]
async fn a_long_storm_keeps_the_bounds_of_each_policy() {
    for policy in [Policy::Closed, Policy::Share, Policy::Open] {
        dynamo_storm(policy, span()).await;
    }
}
