//! Expiry of members by observation, and data loss.

use std::time::{Duration, Instant};

use forebay_quota::{DynamoStore, HeartbeatKind, MemberId, Membership, SettlementReply, Store};
use forebay_sandbox::DynamoDb;

use super::{
    LONG, TABLE, TEST_TIMEOUT, client, delete, exact, handle, heartbeat, holders, settle, settled_handle,
    settlement,
};
use crate::support::{namespace, until};

const TTL: Duration = Duration::from_millis(800);

/// Sends heartbeats until `condition` holds.
async fn beat_until(
    what: &str,
    store: &DynamoStore,
    member: &MemberId,
    mut condition: impl AsyncFnMut() -> bool,
) {
    until(what, TEST_TIMEOUT, async || {
        let reply = store.heartbeat(heartbeat(member, HeartbeatKind::Renew, TTL)).await.unwrap();
        assert!(matches!(reply.membership, Membership::Alive { .. }), "{reply:?}");
        condition().await
    })
    .await;
}

#[tokio::test]
async fn a_dead_members_units_are_free_once_a_handle_has_observed_it_for_a_ttl() {
    let namespace = namespace("death");
    let (first, gone) = (settled_handle(&namespace).await, MemberId::new("gone", 1));
    first.heartbeat(heartbeat(&gone, HeartbeatKind::Join, TTL)).await.unwrap();
    settle(&first, &gone, 1, vec![exact("k:x", 3, 0, 3)]).await;
    // It has expired long before a handle that never saw it alive.
    tokio::time::sleep(2 * TTL).await;

    let (store, heir) = (handle(&namespace).await, MemberId::new("heir", 1));
    let started = Instant::now();
    let reply = store.heartbeat(heartbeat(&heir, HeartbeatKind::Join, TTL)).await.unwrap();
    assert_eq!(reply.members, 2, "a new handle counts every member as alive");
    let mut sequence = 0;
    beat_until("the heir gets the dead member's units", &store, &heir, async || {
        sequence += 1;
        let reply = settle(&store, &heir, sequence, vec![exact("k:x", 3, 0, 3)]).await[0];
        assert!(reply.count == 0 || reply.count == 3, "{reply:?}");
        reply.count == 3
    })
    .await;
    assert!(started.elapsed() >= TTL, "after {:?}", started.elapsed());
    assert_eq!(holders(&store, "k:x").await, [(heir, 3)]);

    let late = store.settle(settlement(&gone, 2, vec![exact("k:x", 3, 3, 3)])).await.unwrap();
    assert_eq!(late, SettlementReply::UnknownMember, "a settlement doesn't restore an expired member");
    let reply = first.heartbeat(heartbeat(&gone, HeartbeatKind::Renew, TTL)).await.unwrap();
    assert_eq!(reply.membership, Membership::Unknown);
}

#[tokio::test]
async fn a_member_with_heartbeats_never_expires_however_often_it_is_observed() {
    let namespace = namespace("alive");
    let (first, second) = (settled_handle(&namespace).await, handle(&namespace).await);
    let (watched, watcher) = (MemberId::new("watched", 1), MemberId::new("watcher", 1));
    first.heartbeat(heartbeat(&watched, HeartbeatKind::Join, TTL)).await.unwrap();
    second.heartbeat(heartbeat(&watcher, HeartbeatKind::Join, TTL)).await.unwrap();
    let started = Instant::now();
    let mut last = started;
    while started.elapsed() < 3 * TTL {
        if last.elapsed() > TTL / 2 {
            last = Instant::now();
            let reply = first.heartbeat(heartbeat(&watched, HeartbeatKind::Renew, TTL)).await.unwrap();
            assert_eq!(reply.membership, Membership::Alive { sequence: 0 });
        }
        let reply = second.heartbeat(heartbeat(&watcher, HeartbeatKind::Renew, TTL)).await.unwrap();
        assert_eq!(reply.members, 2);
    }
}

#[tokio::test]
async fn no_member_expires_because_of_a_store_outage() {
    let server = DynamoDb::start().unwrap();
    let connect = async || DynamoStore::create_table(client(server.url()), TABLE, "outage").await.unwrap();
    let members = [MemberId::new("a", 1), MemberId::new("b", 1)];
    let stores = [connect().await, connect().await];
    for (store, member) in stores.iter().zip(&members) {
        store.heartbeat(heartbeat(member, HeartbeatKind::Join, TTL)).await.unwrap();
        store.heartbeat(heartbeat(member, HeartbeatKind::Renew, TTL)).await.unwrap();
    }
    server.freeze();
    tokio::time::sleep(3 * TTL).await;
    server.thaw();
    for (store, member) in stores.iter().zip(&members) {
        let reply = store.heartbeat(heartbeat(member, HeartbeatKind::Renew, TTL)).await.unwrap();
        assert_eq!((reply.membership, reply.members), (Membership::Alive { sequence: 0 }, 2));
    }
}

#[tokio::test]
async fn without_a_part_in_a_rebuild_nothing_new_is_granted_until_a_ttl_was_observed() {
    let namespace = namespace("new");
    let (store, member) = (handle(&namespace).await, MemberId::new("a", 1));
    let started = Instant::now();
    let reply = store.heartbeat(heartbeat(&member, HeartbeatKind::Join, TTL)).await.unwrap();
    assert_eq!((reply.membership, reply.generation, reply.rebuild_left), (Membership::Joined, 7, TTL));
    let held = settle(&store, &member, 1, vec![exact("k:x", 3, 1, 2)]).await[0];
    assert_eq!(held.count, 1, "only what it holds is recorded");

    let mut sequence = 1;
    beat_until("the rebuild ends", &store, &member, async || {
        sequence += 1;
        settle(&store, &member, sequence, vec![exact("k:x", 3, 1, 2)]).await[0].count == 2
    })
    .await;
    assert!(started.elapsed() >= TTL, "after {:?}", started.elapsed());
    let other = handle(&namespace).await;
    let reply = other.heartbeat(heartbeat(&MemberId::new("b", 1), HeartbeatKind::Join, TTL)).await.unwrap();
    assert_eq!(reply.rebuild_left, Duration::ZERO, "a later member doesn't wait");
}

#[tokio::test]
async fn a_store_that_lost_its_data_is_rebuilt_from_what_the_members_hold() {
    let namespace = namespace("data-loss");
    let (store, member) = (settled_handle(&namespace).await, MemberId::new("a", 1));
    store.heartbeat(heartbeat(&member, HeartbeatKind::Join, TTL)).await.unwrap();
    settle(&store, &member, 1, vec![exact("k:x", 3, 0, 2)]).await;
    // Deleting the generation is enough: its members are unknown to the next one.
    delete(format!("namespace#{namespace}"), "generation".into()).await;
    delete("account#k:x".into(), format!("in#{namespace}")).await;

    let (lost, requests) = (Instant::now(), || vec![exact("k:x", 3, 2, 2)]);
    assert_eq!(
        store.settle(settlement(&member, 2, requests())).await.unwrap(),
        SettlementReply::UnknownMember
    );
    let reply = store.heartbeat(heartbeat(&member, HeartbeatKind::Renew, TTL)).await.unwrap();
    assert_eq!((reply.membership, reply.generation, reply.members), (Membership::Unknown, 7, 0));
    assert!(reply.rebuild_left > Duration::ZERO);

    let rejoined = MemberId::new("a", 2);
    store.heartbeat(heartbeat(&rejoined, HeartbeatKind::Join, LONG)).await.unwrap();
    assert_eq!(settle(&store, &rejoined, 1, requests()).await[0].count, 2);
    let greedy = MemberId::new("b", 1);
    store.heartbeat(heartbeat(&greedy, HeartbeatKind::Join, TTL)).await.unwrap();
    let mut sequence = 0;
    beat_until("the rebuild ends", &store, &greedy, async || {
        sequence += 1;
        settle(&store, &greedy, sequence, vec![exact("k:x", 3, 0, 3)]).await[0].count > 0
    })
    .await;
    assert!(lost.elapsed() >= TTL, "after {:?}", lost.elapsed());
    assert_eq!(holders(&store, "k:x").await, [(rejoined, 2), (greedy, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_members_that_replace_each_other_one_stays() {
    let namespace = namespace("twins");
    let stores = [settled_handle(&namespace).await, handle(&namespace).await];
    for round in 0..10 {
        let twins = [MemberId::new("twin", 2 * round), MemberId::new("twin", 2 * round + 1)];
        for (store, twin) in stores.iter().zip(&twins) {
            store.heartbeat(heartbeat(twin, HeartbeatKind::Join, TTL)).await.unwrap();
        }
        let (one, two) = tokio::join!(
            stores[0].heartbeat(heartbeat(&twins[0], HeartbeatKind::TakeOver, TTL)),
            stores[1].heartbeat(heartbeat(&twins[1], HeartbeatKind::TakeOver, TTL)),
        );
        let alive =
            [one.unwrap(), two.unwrap()].map(|reply| matches!(reply.membership, Membership::Alive { .. }));
        assert_eq!(alive.iter().filter(|alive| **alive).count(), 1, "round {round}: {alive:?}");
    }
}
