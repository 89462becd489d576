//! Members under load with a frozen DynamoDB and network faults; checks as in `random_faults.rs`
//! for Redis.

use std::time::Duration;

use forebay_quota::{DynamoStore, OutagePolicy, Quota, QuotaMode};
use forebay_sandbox::DynamoDb;
use forebay_testkit::{Proxy, TestRng};

use super::{TABLE, TEST_TIMEOUT, client};
use crate::random_faults::{MEMBERS, config, run_with_faults, span};
use crate::support::until;

/// The emulator takes tens of milliseconds for a call.
const TTL: Duration = Duration::from_secs(3);

async fn run_dynamo_faults(policy: OutagePolicy, span: Duration) {
    let server = DynamoDb::start().unwrap();
    let proxy = Proxy::start(server.addr());
    let mut members = Vec::new();
    for index in 0..MEMBERS {
        let client = client(format!("http://{}", proxy.addr()));
        let store = DynamoStore::create_table(client, TABLE, "faults").await.unwrap();
        members.push(Quota::join(store, config(index, policy, TTL)).await);
    }
    until("the namespace is no longer new", TEST_TIMEOUT, async || {
        members.iter().all(|quota| quota.mode() == QuotaMode::Normal)
    })
    .await;
    let inject_fault = async |rng: &mut TestRng| match rng.below(4) {
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
            proxy.delay(TTL / 4); // longer than the call timeout
            tokio::time::sleep(TTL / 2).await;
            proxy.resume();
            "slow"
        }
        _ => {
            proxy.reset();
            "reset"
        }
    };
    run_with_faults(&members, policy, span, inject_fault).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_never_lend_more_than_the_limit_by_the_closed_policy() {
    run_dynamo_faults(OutagePolicy::Closed, TTL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: FOREBAY_SEED and FOREBAY_SECONDS"]
async fn long_random_faults_keep_the_bounds_of_each_policy() {
    for policy in [OutagePolicy::Closed, OutagePolicy::Share, OutagePolicy::Open] {
        run_dynamo_faults(policy, span()).await;
    }
}
