//! Members in DynamoDB: reads the namespace, applies heartbeats, and removes members that expire or
//! leave.
//!
//! Invariant: a member is known while its item exists and has the current generation. Joining,
//! renewing, replacing and expiring are each one conditional write of that item.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use tokio::task::JoinSet;

use super::items::{GenerationItem, MemberItem, expiry_attribute, millis, number, text};
use super::outcome::{TransactionOutcome, WriteOutcome, failed, transaction_outcome, write_outcome};
use super::retry_backoff::RetryBackoff;
use super::table::{GENERATION, MEMBER};
use super::{AttributeMap, DynamoStore};
use crate::random_id::random_id;
use crate::store::{Heartbeat, HeartbeatKind, HeartbeatReply, MemberId, Membership, StoreError};

/// Maximum number of expired members removed at a time; the next read removes more.
const MAX_REMOVALS: usize = 16;
/// Writes per transaction; DynamoDB allows 100.
const PER_TRANSACTION: usize = 90;

/// The generation and the members of a namespace, read by one query.
#[derive(Debug)]
pub(super) struct NamespaceSnapshot {
    pub(super) generation: Option<GenerationItem>,
    pub(super) rebuild_left: Duration,
    /// All members of the current generation.
    pub(super) members: BTreeMap<MemberId, MemberItem>,
}

impl NamespaceSnapshot {
    /// Returns the number of members that weren't replaced.
    pub(super) fn live_members(&self) -> u32 {
        u32::try_from(self.members.values().filter(|member| !member.replaced).count()).unwrap_or(u32::MAX)
    }

    /// Returns the other incarnations of the same name that weren't replaced.
    fn other_incarnations(&self, id: &MemberId) -> Vec<MemberId> {
        let is_other =
            |other: &&MemberItem| other.id != *id && other.id.name() == id.name() && !other.replaced;
        self.members.values().filter(is_other).map(|other| other.id.clone()).collect()
    }
}

impl DynamoStore {
    /// Reads the namespace, removes expired members, and ends a rebuild whose time is over.
    pub(super) async fn read_snapshot(&self) -> Result<NamespaceSnapshot, StoreError> {
        let mut backoff = RetryBackoff::default();
        loop {
            let (generation, members) = self.read_namespace().await?;
            let (rebuild_left, expired) = self.observe_members(generation, &members);
            let rebuilt = generation.filter(|generation| generation.rebuilding && rebuild_left.is_zero());
            if let Some(rebuilt) = rebuilt
                && self.end_rebuild(rebuilt).await? != WriteOutcome::Done
            {
                // Retry: another member ended the rebuild, or the generation was lost.
                backoff.wait().await?;
                continue;
            }
            let removed = self.remove_expired(expired).await?;
            let known = |member: &MemberItem| {
                generation.is_some_and(|present| present.number == member.generation)
                    && !removed.contains(&member.id)
            };
            let members = members.into_iter().filter(known).map(|member| (member.id.clone(), member));
            return Ok(NamespaceSnapshot { generation, rebuild_left, members: members.collect() });
        }
    }

    fn observe_members(
        &self,
        generation: Option<GenerationItem>,
        members: &[MemberItem],
    ) -> (Duration, Vec<MemberItem>) {
        let mut liveness = self.liveness.lock();
        liveness.observe(generation, members, Instant::now());
        let rebuild_left = generation.map_or(Duration::ZERO, |generation| {
            liveness.rebuild_left(generation, RebuildReports::count(generation, members))
        });
        let expired = members.iter().filter(|member| liveness.ttl_left(member).is_zero());
        (rebuild_left, expired.take(MAX_REMOVALS).cloned().collect())
    }

    async fn read_namespace(&self) -> Result<(Option<GenerationItem>, Vec<MemberItem>), StoreError> {
        let (mut generation, mut members, mut next) = (None, Vec::new(), None);
        loop {
            let page = self
                .client
                .query()
                .table_name(&self.table)
                .key_condition_expression("pk = :pk")
                .expression_attribute_values(":pk", text(self.namespace_key()))
                .consistent_read(true)
                .set_exclusive_start_key(next)
                .send()
                .await
                .map_err(failed)?;
            for item in page.items() {
                let sort_key = item.get("sk").and_then(|value| value.as_s().ok());
                let sort_key =
                    sort_key.ok_or_else(|| StoreError::Unexpected("an item without a sort key".into()))?;
                if sort_key == GENERATION {
                    generation = Some(GenerationItem::read(item)?);
                } else if let Some(id) = sort_key.strip_prefix(MEMBER) {
                    members.push(MemberItem::read(id, item)?);
                }
            }
            next = page.last_evaluated_key;
            if next.is_none() {
                return Ok((generation, members));
            }
        }
    }

    async fn end_rebuild(&self, generation: GenerationItem) -> Result<WriteOutcome, StoreError> {
        let change = ConditionalUpdate {
            key: self.generation_key(),
            set: "SET rebuilding = :no",
            only_if: "gen = :gen AND rebuilding = :yes",
            values: [
                (":gen".into(), number(generation.number)),
                (":yes".into(), AttributeValue::Bool(true)),
                (":no".into(), AttributeValue::Bool(false)),
            ]
            .into(),
        };
        self.apply(change).await
    }

    /// Deletes expired members and returns the deleted ones. A member that has sent a heartbeat
    /// since the read is kept.
    async fn remove_expired(&self, expired: Vec<MemberItem>) -> Result<Vec<MemberId>, StoreError> {
        let mut removals = JoinSet::new();
        for member in expired {
            let delete = self
                .client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(self.member_key(&member.id)))
                .condition_expression("gen = :gen AND beats = :beats")
                .expression_attribute_values(":gen", number(member.generation))
                .expression_attribute_values(":beats", number(member.heartbeats));
            removals.spawn(async move { (member.id, write_outcome(delete.send().await)) });
        }
        let mut removed = Vec::new();
        while let Some(removal) = removals.join_next().await {
            let (id, outcome) =
                removal.map_err(|_| StoreError::Unexpected("the runtime ended meanwhile".into()))?;
            if outcome? == WriteOutcome::Done {
                tracing::info!(member = %id, "quota member expired: its units are free");
                removed.push(id);
            }
        }
        Ok(removed)
    }

    pub(super) async fn run_heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let mut backoff = RetryBackoff::default();
        loop {
            let mut snapshot = self.read_snapshot().await?;
            match snapshot.generation {
                None => self.begin_generation(&heartbeat).await?,
                Some(generation) => {
                    if let Some(membership) =
                        self.renew_membership(&heartbeat, generation, &mut snapshot).await?
                    {
                        let (rebuild_left, expected) = self.rebuild_after(generation, &snapshot);
                        let (generation, members) = (generation.number, snapshot.live_members());
                        let reply =
                            HeartbeatReply { membership, generation, rebuild_left, members, expected };
                        return Ok(reply);
                    }
                }
            }
            backoff.wait().await?;
        }
    }

    /// Returns the time left of the rebuild, and the members expected to report, after a heartbeat
    /// was applied. The next read ends the rebuild.
    fn rebuild_after(&self, generation: GenerationItem, snapshot: &NamespaceSnapshot) -> (Duration, u32) {
        if snapshot.rebuild_left.is_zero() {
            return (Duration::ZERO, 0);
        }
        let reports = RebuildReports::count(generation, snapshot.members.values());
        let left = self.liveness.lock().rebuild_left(generation, reports);
        (left.max(Duration::from_millis(1)), reports.expected)
    }

    /// Starts a generation. If several members try, the first write wins, and the others find it at
    /// their next read.
    async fn begin_generation(&self, heartbeat: &Heartbeat) -> Result<(), StoreError> {
        let mut item = self.generation_key();
        GenerationItem { number: heartbeat.generation, rebuilding: true, ttl: heartbeat.ttl }
            .write(&mut item);
        let put = self.client.put_item().table_name(&self.table).set_item(Some(item));
        write_outcome(put.condition_expression("attribute_not_exists(pk)").send().await).map(drop)
    }

    /// Applies the heartbeat as `StoreLedger::heartbeat` does. Returns `None` if a concurrent write
    /// or throttling prevented it: the caller must read again.
    async fn renew_membership(
        &self,
        heartbeat: &Heartbeat,
        generation: GenerationItem,
        snapshot: &mut NamespaceSnapshot,
    ) -> Result<Option<Membership>, StoreError> {
        let own = snapshot.members.get(&heartbeat.member).map(|own| (own.replaced, own.sequence));
        let others = snapshot.other_incarnations(&heartbeat.member);
        if let Some(own) = snapshot.members.get_mut(&heartbeat.member) {
            (own.members_before, own.has_reported) = (heartbeat.members_before, has_reported(heartbeat));
        }
        let (outcome, membership) = match (heartbeat.kind, own) {
            (HeartbeatKind::Join | HeartbeatKind::TakeOver | HeartbeatKind::Renew, Some((true, _))) => {
                (WriteOutcome::Done, Membership::Replaced)
            }
            (HeartbeatKind::Join, None) => {
                let new_member = new_member(heartbeat, generation);
                let outcome = self.insert_member(&new_member).await?;
                snapshot.members.insert(new_member.id.clone(), new_member);
                (outcome, Membership::Joined)
            }
            (HeartbeatKind::Join, Some((false, _))) => {
                (self.apply(self.renewal(heartbeat, generation)).await?, Membership::Joined)
            }
            (HeartbeatKind::Renew, Some((false, sequence))) => {
                (self.apply(self.renewal(heartbeat, generation)).await?, Membership::Alive { sequence })
            }
            (HeartbeatKind::TakeOver, Some((false, sequence))) => {
                let outcome = self.take_over(heartbeat, generation, &others).await?;
                snapshot
                    .members
                    .values_mut()
                    .filter(|member| others.contains(&member.id))
                    .for_each(mark_replaced);
                (outcome, Membership::Alive { sequence })
            }
            (HeartbeatKind::TakeOver | HeartbeatKind::Renew, None) if !others.is_empty() => {
                (WriteOutcome::Done, Membership::Replaced)
            }
            (HeartbeatKind::TakeOver | HeartbeatKind::Renew, None) => {
                (WriteOutcome::Done, Membership::Unknown)
            }
        };
        Ok((outcome == WriteOutcome::Done).then_some(membership))
    }

    async fn insert_member(&self, new_member: &MemberItem) -> Result<WriteOutcome, StoreError> {
        let mut item = self.member_key(&new_member.id);
        new_member.write(&mut item);
        let _guard = self.own_item_lock.lock().await;
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(pk) OR gen <> :gen")
            .expression_attribute_values(":gen", number(new_member.generation));
        write_outcome(put.send().await)
    }

    fn renewal(&self, heartbeat: &Heartbeat, generation: GenerationItem) -> ConditionalUpdate {
        ConditionalUpdate {
            key: self.member_key(&heartbeat.member),
            set: "SET beats = beats + :one, life_ms = :life, #ttl = :ttl, members_before = :before, reported = :reported",
            only_if: "gen = :gen AND replaced = :no",
            values: [
                (":gen".into(), number(generation.number)),
                (":no".into(), AttributeValue::Bool(false)),
                (":one".into(), number(1)),
                (":life".into(), millis(heartbeat.ttl)),
                (":ttl".into(), expiry_attribute()),
                (":before".into(), number(heartbeat.members_before.into())),
                (":reported".into(), AttributeValue::Bool(has_reported(heartbeat))),
            ]
            .into(),
        }
    }

    /// Marks the other incarnations as replaced, and renews our own member in the same transaction.
    /// If two members replace each other, only one transaction succeeds.
    async fn take_over(
        &self,
        heartbeat: &Heartbeat,
        generation: GenerationItem,
        others: &[MemberId],
    ) -> Result<WriteOutcome, StoreError> {
        if others.is_empty() {
            return self.apply(self.renewal(heartbeat, generation)).await;
        }
        for others in others.chunks(PER_TRANSACTION) {
            let mut writes = vec![self.renewal(heartbeat, generation).transactional(&self.table)];
            for other in others {
                let change = ConditionalUpdate {
                    key: self.member_key(other),
                    set: "SET replaced = :yes",
                    only_if: "gen = :gen",
                    values: [
                        (":gen".into(), number(generation.number)),
                        (":yes".into(), AttributeValue::Bool(true)),
                    ]
                    .into(),
                };
                writes.push(change.transactional(&self.table));
            }
            if self.transact(writes).await? != TransactionOutcome::Done {
                return Ok(WriteOutcome::Busy);
            }
        }
        Ok(WriteOutcome::Done)
    }

    pub(super) async fn run_leave(&self, member: MemberId) -> Result<(), StoreError> {
        let mut backoff = RetryBackoff::default();
        loop {
            let delete = self.client.delete_item().table_name(&self.table);
            let delete = delete.set_key(Some(self.member_key(&member)));
            let outcome = {
                let _guard = self.own_item_lock.lock().await;
                write_outcome(delete.send().await)?
            };
            match outcome {
                WriteOutcome::Done | WriteOutcome::Refused => return Ok(()),
                WriteOutcome::Busy => backoff.wait().await?,
            }
        }
    }

    async fn apply(&self, change: ConditionalUpdate) -> Result<WriteOutcome, StoreError> {
        let names = change.names();
        let update = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(change.key))
            .update_expression(change.set)
            .condition_expression(change.only_if)
            .set_expression_attribute_names(names)
            .set_expression_attribute_values(Some(change.values));
        let _guard = self.own_item_lock.lock().await;
        write_outcome(update.send().await)
    }

    /// Writes all items, or none.
    pub(super) async fn transact(
        &self,
        writes: Vec<TransactWriteItem>,
    ) -> Result<TransactionOutcome, StoreError> {
        let _guard = self.own_item_lock.lock().await;
        transaction_outcome(self.client.transact_write_items().set_transact_items(Some(writes)).send().await)
    }
}

fn mark_replaced(member: &mut MemberItem) {
    member.replaced = true;
}

/// Creates the item of a new member. Its heartbeat counter starts at a random number, so that a
/// member that was deleted and joins again does not look unchanged.
fn new_member(heartbeat: &Heartbeat, generation: GenerationItem) -> MemberItem {
    MemberItem {
        id: heartbeat.member.clone(),
        generation: generation.number,
        heartbeats: random_id() >> 16,
        ttl: heartbeat.ttl,
        replaced: false,
        sequence: 0,
        members_before: heartbeat.members_before,
        has_reported: has_reported(heartbeat),
    }
}

/// Returns whether the sender was alive before the rebuild and has reported all that it holds.
fn has_reported(heartbeat: &Heartbeat) -> bool {
    heartbeat.has_reported && heartbeat.members_before > 0
}

/// How many members were alive before a rebuild, and how many of them have reported.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RebuildReports {
    pub(super) expected: u32,
    pub(super) reported: u32,
}

impl RebuildReports {
    fn count<'a>(generation: GenerationItem, members: impl IntoIterator<Item = &'a MemberItem>) -> Self {
        let is_current = |member: &&MemberItem| !member.replaced && generation.number == member.generation;
        let mut reports = RebuildReports::default();
        for member in members.into_iter().filter(is_current) {
            reports.expected = reports.expected.max(member.members_before);
            reports.reported += u32::from(member.has_reported);
        }
        reports
    }

    pub(super) fn are_complete(self) -> bool {
        self.expected > 0 && self.reported >= self.expected
    }
}

/// A conditional update of one item.
pub(super) struct ConditionalUpdate {
    pub(super) key: AttributeMap,
    pub(super) set: &'static str,
    pub(super) only_if: &'static str,
    pub(super) values: AttributeMap,
}

impl ConditionalUpdate {
    /// Returns the placeholder for `ttl`, which is a reserved word of DynamoDB.
    fn names(&self) -> Option<HashMap<String, String>> {
        self.set.contains("#ttl").then(|| [("#ttl".into(), "ttl".into())].into())
    }

    /// Converts the update to an item of a transaction.
    pub(super) fn transactional(self, table: &str) -> TransactWriteItem {
        let update = Update::builder()
            .table_name(table)
            .set_expression_attribute_names(self.names())
            .set_key(Some(self.key))
            .update_expression(self.set)
            .condition_expression(self.only_if)
            .set_expression_attribute_values(Some(self.values))
            .build()
            .expect("every required part is set");
        TransactWriteItem::builder().update(update).build()
    }
}
