//! Life by observation, and what is lost.

use std::time::{Duration, Instant};

use forebay_quota::{BeatKind, DynamoStore, MemberId, Settled, Standing, Store};
use forebay_sandbox::DynamoDb;

use super::{
    LONG, PATIENCE, TABLE, beat, client, delete, exact, handle, holders, settle, settled_handle, settlement,
};
use crate::support::{namespace, until};

const TTL: Duration = Duration::from_millis(800);

/// Beats until `what` is true of the member's name for it.
async fn beat_until(
    what: &str,
    store: &DynamoStore,
    member: &MemberId,
    mut condition: impl AsyncFnMut() -> bool,
) {
    until(what, PATIENCE, async || {
        let pulse = store.beat(beat(member, BeatKind::Stay, TTL)).await.unwrap();
        assert!(matches!(pulse.standing, Standing::Alive { .. }), "{pulse:?}");
        condition().await
    })
    .await;
}

#[tokio::test]
async fn the_dead_lose_what_they_held_once_a_handle_has_watched_them_for_a_ttl() {
    let namespace = namespace("death");
    let (first, gone) = (settled_handle(&namespace).await, MemberId::new("gone", 1));
    first.beat(beat(&gone, BeatKind::Join, TTL)).await.unwrap();
    settle(&first, &gone, 1, vec![exact("k:x", 3, 0, 3)]).await;
    // It has been dead for long when somebody comes who never saw it alive.
    tokio::time::sleep(2 * TTL).await;

    let (store, heir) = (handle(&namespace).await, MemberId::new("heir", 1));
    let begun = Instant::now();
    let pulse = store.beat(beat(&heir, BeatKind::Join, TTL)).await.unwrap();
    assert_eq!(pulse.members, 2, "whoever comes new believes that everybody lives");
    let mut sequence = 0;
    beat_until("the heir gets what the dead held", &store, &heir, async || {
        sequence += 1;
        let answer = settle(&store, &heir, sequence, vec![exact("k:x", 3, 0, 3)]).await[0];
        assert!(answer.count == 0 || answer.count == 3, "{answer:?}");
        answer.count == 3
    })
    .await;
    assert!(begun.elapsed() >= TTL, "after {:?}", begun.elapsed());
    assert_eq!(holders(&store, "k:x").await, [(heir, 3)]);

    let late = store.settle(settlement(&gone, 2, vec![exact("k:x", 3, 3, 3)])).await.unwrap();
    assert_eq!(late, Settled::Unknown, "the dead don't come back by settling");
    let pulse = first.beat(beat(&gone, BeatKind::Stay, TTL)).await.unwrap();
    assert_eq!(pulse.standing, Standing::Unknown);
}

#[tokio::test]
async fn a_member_that_beats_is_never_taken_for_dead_however_closely_it_is_watched() {
    let namespace = namespace("alive");
    let (first, second) = (settled_handle(&namespace).await, handle(&namespace).await);
    let (watched, watcher) = (MemberId::new("watched", 1), MemberId::new("watcher", 1));
    first.beat(beat(&watched, BeatKind::Join, TTL)).await.unwrap();
    second.beat(beat(&watcher, BeatKind::Join, TTL)).await.unwrap();
    let begun = Instant::now();
    let mut last = begun;
    while begun.elapsed() < 3 * TTL {
        if last.elapsed() > TTL / 2 {
            last = Instant::now();
            let pulse = first.beat(beat(&watched, BeatKind::Stay, TTL)).await.unwrap();
            assert_eq!(pulse.standing, Standing::Alive { sequence: 0 });
        }
        let pulse = second.beat(beat(&watcher, BeatKind::Stay, TTL)).await.unwrap();
        assert_eq!(pulse.members, 2);
    }
}

#[tokio::test]
async fn nobody_dies_of_an_outage_of_the_store() {
    let server = DynamoDb::start().unwrap();
    let connect = async || DynamoStore::create_table(client(server.url()), TABLE, "outage").await.unwrap();
    let members = [MemberId::new("a", 1), MemberId::new("b", 1)];
    let stores = [connect().await, connect().await];
    for (store, member) in stores.iter().zip(&members) {
        store.beat(beat(member, BeatKind::Join, TTL)).await.unwrap();
        store.beat(beat(member, BeatKind::Stay, TTL)).await.unwrap();
    }
    server.freeze();
    tokio::time::sleep(3 * TTL).await;
    server.thaw();
    for (store, member) in stores.iter().zip(&members) {
        let pulse = store.beat(beat(member, BeatKind::Stay, TTL)).await.unwrap();
        assert_eq!((pulse.standing, pulse.members), (Standing::Alive { sequence: 0 }, 2));
    }
}

#[tokio::test]
async fn a_new_namespace_grants_nothing_new_until_a_ttl_was_watched() {
    let namespace = namespace("new");
    let (store, member) = (handle(&namespace).await, MemberId::new("a", 1));
    let begun = Instant::now();
    let pulse = store.beat(beat(&member, BeatKind::Join, TTL)).await.unwrap();
    assert_eq!((pulse.standing, pulse.generation, pulse.rebuild_left), (Standing::Joined, 7, TTL));
    let held = settle(&store, &member, 1, vec![exact("k:x", 3, 1, 2)]).await[0];
    assert_eq!(held.count, 1, "what it holds is written down, no more");

    let mut sequence = 1;
    beat_until("the rebuild ends", &store, &member, async || {
        sequence += 1;
        settle(&store, &member, sequence, vec![exact("k:x", 3, 1, 2)]).await[0].count == 2
    })
    .await;
    assert!(begun.elapsed() >= TTL, "after {:?}", begun.elapsed());
    let other = handle(&namespace).await;
    let pulse = other.beat(beat(&MemberId::new("b", 1), BeatKind::Join, TTL)).await.unwrap();
    assert_eq!(pulse.rebuild_left, Duration::ZERO, "whoever comes later needs not wait");
}

#[tokio::test]
async fn a_store_that_lost_its_memory_is_rebuilt_from_what_the_members_hold() {
    let namespace = namespace("amnesia");
    let (store, member) = (settled_handle(&namespace).await, MemberId::new("a", 1));
    store.beat(beat(&member, BeatKind::Join, TTL)).await.unwrap();
    settle(&store, &member, 1, vec![exact("k:x", 3, 0, 2)]).await;
    // The generation alone is enough: whoever was known before is unknown to the next.
    delete(format!("namespace#{namespace}"), "generation".into()).await;
    delete("account#k:x".into(), format!("in#{namespace}")).await;

    let (lost, asks) = (Instant::now(), || vec![exact("k:x", 3, 2, 2)]);
    assert_eq!(store.settle(settlement(&member, 2, asks())).await.unwrap(), Settled::Unknown);
    let pulse = store.beat(beat(&member, BeatKind::Stay, TTL)).await.unwrap();
    assert_eq!((pulse.standing, pulse.generation, pulse.members), (Standing::Unknown, 7, 0));
    assert!(pulse.rebuild_left > Duration::ZERO);

    let reborn = MemberId::new("a", 2);
    store.beat(beat(&reborn, BeatKind::Join, LONG)).await.unwrap();
    assert_eq!(settle(&store, &reborn, 1, asks()).await[0].count, 2);
    let greedy = MemberId::new("b", 1);
    store.beat(beat(&greedy, BeatKind::Join, TTL)).await.unwrap();
    let mut sequence = 0;
    beat_until("the rebuild ends", &store, &greedy, async || {
        sequence += 1;
        settle(&store, &greedy, sequence, vec![exact("k:x", 3, 0, 3)]).await[0].count > 0
    })
    .await;
    assert!(lost.elapsed() >= TTL, "after {:?}", lost.elapsed());
    assert_eq!(holders(&store, "k:x").await, [(reborn, 2), (greedy, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_take_over_from_each_other_one_stays() {
    let namespace = namespace("twins");
    let stores = [settled_handle(&namespace).await, handle(&namespace).await];
    for round in 0..10 {
        let twins = [MemberId::new("twin", 2 * round), MemberId::new("twin", 2 * round + 1)];
        for (store, twin) in stores.iter().zip(&twins) {
            store.beat(beat(twin, BeatKind::Join, TTL)).await.unwrap();
        }
        let (one, two) = tokio::join!(
            stores[0].beat(beat(&twins[0], BeatKind::TakeOver, TTL)),
            stores[1].beat(beat(&twins[1], BeatKind::TakeOver, TTL)),
        );
        let alive =
            [one.unwrap(), two.unwrap()].map(|pulse| matches!(pulse.standing, Standing::Alive { .. }));
        assert_eq!(alive.iter().filter(|alive| **alive).count(), 1, "round {round}: {alive:?}");
    }
}
