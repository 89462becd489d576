//! DynamoDB answers as the ledger does, call by call, where time plays no part.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_quota::{
    Ask, BeatKind, DynamoStore, Holdings, MemberId, MemoryStore, Settlement, Sharing, Store,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{LONG, beat, settled_handle};
use crate::support::namespace;

#[derive(Debug, Clone)]
enum Step {
    Beat { member: usize, kind: BeatKind },
    Settle { member: usize, asks: Vec<Ask>, stale: bool, lost: bool },
    Leave { member: usize },
}

fn asks() -> impl Strategy<Value = Vec<Ask>> {
    let sharing = prop_oneof![Just(Sharing::Exact), Just(Sharing::Blocks), Just(Sharing::BlocksUntilExpiry)];
    let prefix = |sharing| if sharing == Sharing::Exact { "k" } else { "b" };
    let ask = (0_u8..2, sharing, 0_u32..12, 0_u32..6, 0_u32..8, 0_u32..4).prop_map(
        move |(account, sharing, limit, floor, more, used)| Ask {
            account: format!("{}:{sharing:?}:{account}", prefix(sharing)).into(),
            limit,
            floor,
            want: floor + more,
            used,
            sharing,
        },
    );
    prop::collection::vec(ask, 0..5).prop_map(|mut asks| {
        asks.sort_by(|a, b| a.account.cmp(&b.account));
        asks.dedup_by(|a, b| a.account == b.account);
        asks.reverse();
        asks
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        3 => Just(BeatKind::Join),
        1 => Just(BeatKind::TakeOver),
        2 => Just(BeatKind::Stay),
    ];
    let step = prop_oneof![
        3 => (0_usize..5, kind).prop_map(|(member, kind)| Step::Beat { member, kind }),
        6 => (0_usize..5, asks(), prop::bool::weighted(0.1), prop::bool::weighted(0.05))
            .prop_map(|(member, asks, stale, lost)| Step::Settle { member, asks, stale, lost }),
        1 => (0_usize..5).prop_map(|member| Step::Leave { member }),
    ];
    prop::collection::vec(step, 10..40)
}

/// Five incarnations of three names.
fn members() -> [MemberId; 5] {
    [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a:b", 1)].map(|(name, epoch)| MemberId::new(name, epoch))
}

/// Each step goes to one of two handles, in turn: what one has done, the other knows.
async fn compare(handles: &[DynamoStore; 2], steps: Vec<Step>) {
    let (memory, members) = (MemoryStore::new(), members());
    let mut seen: BTreeSet<Arc<str>> = BTreeSet::new();
    for (step, number) in steps.into_iter().zip(1_u64..) {
        let store = &handles[(number % 2) as usize];
        match &step {
            Step::Beat { member, kind } => {
                let beat = beat(&members[*member], *kind, LONG);
                let (ours, theirs) = (memory.beat(beat.clone()).await, store.beat(beat).await);
                assert_eq!(theirs.unwrap(), ours.unwrap(), "{step:?}");
            }
            Step::Settle { member, asks, stale, lost } => {
                let settlement = Settlement {
                    member: members[*member].clone(),
                    sequence: if *stale { number / 2 } else { number },
                    landed: if *lost { number } else { 0 },
                    pressure: LONG,
                    asks: asks.clone(),
                };
                let ours = memory.settle(settlement.clone()).await.unwrap();
                assert_eq!(store.settle(settlement).await.unwrap(), ours, "{step:?}");
                seen.extend(asks.iter().map(|ask| ask.account.clone()));
            }
            Step::Leave { member } => {
                memory.leave(members[*member].clone()).await.unwrap();
                store.leave(members[*member].clone()).await.unwrap();
            }
        }
        if number % 4 == 0 {
            let known: Vec<_> = seen.iter().cloned().collect();
            let (ours, theirs) = (memory.look(known.clone()).await, store.look(known).await);
            assert_eq!(timeless(theirs.unwrap()), timeless(ours.unwrap()), "after {step:?}");
        }
    }
}

fn timeless(mut holdings: Holdings) -> Holdings {
    holdings.members.iter_mut().for_each(|life| life.expires_in_ms = None);
    holdings
}

#[test]
fn dynamodb_answers_as_the_ledger_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Some two seconds on a quiet machine; FOREBAY_CASES asks for more.
    let cases = std::env::var("FOREBAY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(8);
    TestRunner::new(ProptestConfig { cases, ..ProptestConfig::default() })
        .run(&steps(), |steps| {
            runtime.block_on(async {
                let namespace = namespace("agreement");
                let handles = [settled_handle(&namespace).await, settled_handle(&namespace).await];
                compare(&handles, steps).await;
            });
            Ok(())
        })
        .unwrap();
}
