//! Token buckets in DynamoDB: the rate holds for all members.

use std::time::Instant;

use aws_sdk_dynamodb::types::AttributeValue;
use forebay_quota::{DynamoStore, Store, TokenRequest};
use forebay_testkit::within;
use futures_util::future::join_all;

use super::{get, handle, put};
use crate::support::namespace;

/// Slow, with a large burst, so that a busy machine can keep up.
const RATE: f64 = 20.0;
const BURST: u32 = 10;

fn draw(want: u32) -> TokenRequest {
    TokenRequest { bucket: "r:dial".into(), per_second: RATE, burst: BURST, want }
}

/// Draws as fast as the bucket allows until `wanted` tokens are given. Returns how many were given.
async fn draw_until(store: &DynamoStore, wanted: u32) -> u32 {
    let mut given = 0;
    while given < wanted {
        let reply = store.draw(draw(BURST)).await.unwrap();
        given += reply.tokens;
        if reply.tokens == 0 {
            tokio::time::sleep(reply.wait).await;
        }
    }
    given
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_holds_for_concurrent_draws() {
    let namespace = namespace("rate");
    let stores = join_all((0..5).map(|_| handle(&namespace))).await;
    let started = Instant::now();
    let drawing = join_all(stores.iter().map(|store| draw_until(store, BURST)));
    let given = within("all get their tokens despite conflicts", drawing).await;
    let (given, allowed) =
        (given.iter().sum::<u32>(), f64::from(BURST) + RATE * started.elapsed().as_secs_f64());
    assert!(f64::from(given) <= allowed, "{given} of {allowed}");
}

/// A machine whose clock was an hour ahead has drawn tokens and has ended.
#[tokio::test]
async fn a_clock_that_was_ahead_costs_one_burst_at_most_and_blocks_no_caller() {
    let namespace = namespace("ahead");
    let store = handle(&namespace).await;
    store.draw(draw(1)).await.unwrap();
    let mut bucket = get("bucket#r:dial".into(), format!("in#{namespace}")).await.unwrap();
    for time in ["clock", "full_at"] {
        let nanos: u64 = bucket[time].as_n().unwrap().parse().unwrap();
        bucket.insert(time.into(), AttributeValue::N((nanos + 3_600_000_000_000).to_string()));
    }
    put(bucket).await;

    let started = Instant::now();
    let given = within("it is not blocked", draw_until(&store, 5 * BURST)).await;
    let earned = RATE * started.elapsed().as_secs_f64();
    assert!(f64::from(given) <= f64::from(BURST) + earned, "{given} of {earned}");
}
