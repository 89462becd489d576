//! Settlements, written by transactions; and queries of the holders.
//!
//! Invariant: every transaction of a settlement begins with our own member's item. The first
//! transaction sets its sequence, the others check it, so that delayed writes of an earlier
//! settlement fail.
//! All requests go into one transaction, up to DynamoDB's limit. If it is cancelled, the accounts
//! in conflict are retried separately, so that a contended budget doesn't delay the keys of single
//! users.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, KeysAndAttributes, Put, TransactWriteItem,
};

use super::account_settlement::{self, MembershipView};
use super::items::{AccountItem, MemberItem, PressureMark, StampedItem, number, text, wall_clock};
use super::members::{ConditionalUpdate, NamespaceSnapshot};
use super::outcome::{TransactionOutcome, failed};
use super::retry_backoff::RetryBackoff;
use super::table::partition;
use super::{AttributeMap, DynamoStore};
use crate::store::{
    AccountShares, Holdings, MemberLiveness, Settlement, SettlementReply, Share, ShareReply, ShareRequest,
    StoreError,
};

/// DynamoDB allows 100 writes in a transaction, one of them our own member, and 100 keys in a read.
const PER_TRANSACTION: usize = 90;

type Accounts = HashMap<String, StampedItem<AccountItem>>;

/// Outcome of a part of a settlement's requests.
enum BatchOutcome {
    Applied(Vec<ShareReply>),
    /// Nothing was written, because of these requests or, if empty, our own member.
    Cancelled(Vec<usize>),
    Rejected(SettlementReply),
}

impl DynamoStore {
    pub(super) async fn run_settle(&self, settlement: Settlement) -> Result<SettlementReply, StoreError> {
        let all: Vec<usize> = (0..settlement.requests.len()).collect();
        let mut parts: VecDeque<Vec<usize>> = all.chunks(PER_TRANSACTION).map(<[usize]>::to_vec).collect();
        if parts.is_empty() {
            parts.push_back(Vec::new()); // the sequence is written even without requests
        }
        let mut replies = vec![None; all.len()];
        let (mut sequence_written, mut backoff) = (false, RetryBackoff::default());
        while let Some(part) = parts.pop_front() {
            match self.settle_part(&settlement, &part, sequence_written).await? {
                BatchOutcome::Rejected(settled) => return Ok(settled),
                BatchOutcome::Applied(found) => {
                    sequence_written = true;
                    part.into_iter().zip(found).for_each(|(request, reply)| replies[request] = Some(reply));
                }
                BatchOutcome::Cancelled(conflicting) => {
                    let (conflicting, rest): (Vec<_>, Vec<_>) =
                        part.into_iter().partition(|request| conflicting.contains(request));
                    if conflicting.is_empty() || rest.is_empty() {
                        parts.push_front(if conflicting.is_empty() { rest } else { conflicting });
                        backoff.wait().await?;
                    } else {
                        parts.push_front(rest);
                        parts.push_back(conflicting);
                    }
                }
            }
        }
        Ok(SettlementReply::Applied(replies.into_iter().flatten().collect()))
    }

    async fn settle_part(
        &self,
        settlement: &Settlement,
        part: &[usize],
        sequence_written: bool,
    ) -> Result<BatchOutcome, StoreError> {
        let requests: Vec<&ShareRequest> =
            part.iter().map(|request| &settlement.requests[*request]).collect();
        let names: Vec<_> = requests.iter().map(|request| request.account.clone()).collect();
        let (accounts, snapshot) = tokio::join!(self.read_accounts(&names), self.read_snapshot());
        let (mut accounts, mut snapshot) = (accounts?, snapshot?);
        if accounts.values().any(|account| has_unknown_holder(&account.content, &snapshot)) {
            // It may have joined between the two reads. A member that is missing in a read after
            // the account's has expired or left.
            snapshot = self.read_snapshot().await?;
        }
        let own = match check_own_member(&snapshot, settlement, sequence_written) {
            Ok(own) => own,
            Err(settled) => return Ok(BatchOutcome::Rejected(settled)),
        };
        let (mut writes, mut writers) = (vec![self.fence(settlement, own, sequence_written)], Vec::new());
        let view = MembershipView {
            me: &settlement.member,
            members: &snapshot.members,
            live_members: snapshot.live_members(),
            rebuild_parts: (!snapshot.rebuild_left.is_zero()).then_some(settlement.rebuild_parts),
        };
        let mut replies = Vec::with_capacity(requests.len());
        for (index, request) in part.iter().zip(requests) {
            let read = accounts.remove(&partition("account", &request.account));
            let (write, reply) = self.settle_one(read, request, view, settlement);
            replies.push(reply);
            if let Some(write) = write {
                writes.push(write);
                writers.push(*index);
            }
        }
        if sequence_written && writers.is_empty() {
            // The sequence is written, and nothing else has changed.
            return Ok(BatchOutcome::Applied(replies));
        }
        Ok(match self.transact(writes).await? {
            TransactionOutcome::Done => BatchOutcome::Applied(replies),
            TransactionOutcome::Cancelled(failed) => {
                let requests = failed.into_iter().filter_map(|write| writers.get(write.checked_sub(1)?));
                BatchOutcome::Cancelled(requests.copied().collect())
            }
        })
    }

    /// Returns the write that a request needs, if any, and its reply.
    fn settle_one(
        &self,
        read: Option<StampedItem<AccountItem>>,
        request: &ShareRequest,
        view: MembershipView<'_>,
        settlement: &Settlement,
    ) -> (Option<TransactWriteItem>, ShareReply) {
        let before = read.as_ref().map(|read| read.content.clone()).unwrap_or_default();
        let pressed =
            self.liveness.lock().is_pressed(&request.account, before.pressed.as_ref(), Instant::now());
        let lasts = settlement.pressure;
        let refusal = (!lasts.is_zero()).then(|| PressureMark { stamp: self.stamps.next(), lasts });
        let (after, reply) = account_settlement::settle(before.clone(), request, view, pressed, refusal);
        let key = self.account_key(&request.account);
        let write = match read {
            None if after.is_empty() => None,
            Some(read) if after == before && !read.needs_rewrite(wall_clock()) => None,
            Some(read) if after.is_empty() => Some(self.delete(key, read.stamp)),
            read => Some(self.put(key, &after, read.map(|read| read.stamp))),
        };
        (write, reply)
    }

    /// Builds the first item of every transaction: the condition on our own member.
    fn fence(&self, settlement: &Settlement, own: &MemberItem, sequence_written: bool) -> TransactWriteItem {
        let mut values: AttributeMap = [
            (":gen".into(), number(own.generation)),
            (":no".into(), AttributeValue::Bool(false)),
            (":seq".into(), number(settlement.sequence)),
        ]
        .into();
        let key = self.member_key(&settlement.member);
        if sequence_written {
            let check = ConditionCheck::builder()
                .table_name(&self.table)
                .set_key(Some(key))
                .condition_expression("gen = :gen AND replaced = :no AND seq = :seq")
                .set_expression_attribute_values(Some(values))
                .build()
                .expect("every required part is set");
            return TransactWriteItem::builder().condition_check(check).build();
        }
        values.insert(":landed".into(), number(settlement.last_acknowledged));
        let change = ConditionalUpdate {
            key,
            set: "SET seq = :seq",
            only_if: "gen = :gen AND replaced = :no AND seq < :seq AND seq >= :landed",
            values,
        };
        change.transactional(&self.table)
    }

    fn put(&self, key: AttributeMap, account: &AccountItem, stamp: Option<String>) -> TransactWriteItem {
        let mut item = key;
        account.write(self.stamps.next(), &mut item);
        let put = Put::builder().table_name(&self.table).set_item(Some(item));
        let put = match stamp {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(stamp) => {
                put.condition_expression("stamp = :stamp").expression_attribute_values(":stamp", text(stamp))
            }
        };
        let put = put.build().expect("every required part is set");
        TransactWriteItem::builder().put(put).build()
    }

    fn delete(&self, key: AttributeMap, stamp: String) -> TransactWriteItem {
        let delete = Delete::builder()
            .table_name(&self.table)
            .set_key(Some(key))
            .condition_expression("stamp = :stamp")
            .expression_attribute_values(":stamp", text(stamp))
            .build()
            .expect("every required part is set");
        TransactWriteItem::builder().delete(delete).build()
    }

    /// Reads the accounts that exist, by partition key.
    async fn read_accounts(&self, names: &[Arc<str>]) -> Result<Accounts, StoreError> {
        let mut accounts = Accounts::new();
        let names: Vec<_> = names.iter().collect::<HashSet<_>>().into_iter().collect();
        for names in names.chunks(PER_TRANSACTION) {
            let mut keys: Vec<_> = names.iter().map(|name| self.account_key(name)).collect();
            let mut backoff = RetryBackoff::default();
            while !keys.is_empty() {
                let wanted = KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true).build();
                let wanted = wanted.expect("every required part is set");
                let read = self.client.batch_get_item().request_items(&self.table, wanted);
                let read = read.send().await.map_err(failed)?;
                for item in read.responses().into_iter().flat_map(HashMap::values).flatten() {
                    let partition = item.get("pk").and_then(|key| key.as_s().ok()).cloned();
                    accounts.insert(partition.unwrap_or_default(), StampedItem::<AccountItem>::read(item)?);
                }
                let left = read.unprocessed_keys.unwrap_or_default().remove(&self.table);
                keys = left.map(|left| left.keys).unwrap_or_default();
                if !keys.is_empty() {
                    backoff.wait().await?;
                }
            }
        }
        Ok(accounts)
    }

    pub(super) async fn run_query_holdings(&self, names: Vec<Arc<str>>) -> Result<Holdings, StoreError> {
        let mut accounts = self.read_accounts(&names).await?;
        let snapshot = self.read_snapshot().await?;
        let liveness = self.liveness.lock();
        let member_liveness = |member: &MemberItem| MemberLiveness {
            member: member.id.clone(),
            expires_in_ms: u64::try_from(liveness.ttl_left(member).as_millis()).ok(),
            replaced: member.replaced,
        };
        let mut holdings = Holdings {
            members: snapshot.members.values().map(member_liveness).collect(),
            accounts: Vec::new(),
        };
        for name in names {
            let Some(account) = accounts.remove(&partition("account", &name)) else { continue };
            // In exact accounts, a replaced member's share doesn't count.
            let counts = |member: &MemberItem| !(member.replaced && name.starts_with("k:"));
            let held = account.content.shares.into_iter();
            let held = held.filter(|(id, _)| snapshot.members.get(id).is_some_and(counts));
            let shares: Vec<_> =
                held.map(|(member, held)| Share { member, count: held.count, used: held.used }).collect();
            if !shares.is_empty() {
                holdings.accounts.push(AccountShares { account: name, shares });
            }
        }
        Ok(holdings)
    }
}

fn has_unknown_holder(account: &AccountItem, snapshot: &NamespaceSnapshot) -> bool {
    account.shares.keys().any(|id| !snapshot.members.contains_key(id))
}

/// Returns our own member if it may settle; otherwise the reply to the settlement.
fn check_own_member<'a>(
    snapshot: &'a NamespaceSnapshot,
    settlement: &Settlement,
    sequence_written: bool,
) -> Result<&'a MemberItem, SettlementReply> {
    let own = snapshot.members.get(&settlement.member).filter(|own| !own.replaced);
    let own = own.ok_or(SettlementReply::UnknownMember)?;
    let last = own.sequence;
    if last > settlement.sequence || (last == settlement.sequence && !sequence_written) {
        Err(SettlementReply::Stale)
    } else if last < settlement.last_acknowledged || (last < settlement.sequence && sequence_written) {
        Err(SettlementReply::LostWrites)
    } else {
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::store::MemberId;

    /// Returns the reply to settlement 5 with last acknowledged sequence 3, in a store that has
    /// `sequence`.
    fn verdict(sequence: Option<u64>, replaced: bool, sequence_written: bool) -> Option<SettlementReply> {
        let id = MemberId::new("a", 1);
        let known = |sequence| {
            let ttl = Duration::from_secs(1);
            let (id, generation, heartbeats) = (id.clone(), 1, 1);
            let (members_before, has_reported) = (0, false);
            let member = MemberItem {
                id: id.clone(),
                generation,
                heartbeats,
                ttl,
                replaced,
                sequence,
                members_before,
                has_reported,
            };
            (id, member)
        };
        let members: BTreeMap<_, _> = sequence.map(known).into_iter().collect();
        let snapshot = NamespaceSnapshot { generation: None, rebuild_left: Duration::ZERO, members };
        let settlement = Settlement {
            member: id,
            sequence: 5,
            last_acknowledged: 3,
            pressure: Duration::ZERO,
            rebuild_parts: 0,
            requests: Vec::new(),
        };
        check_own_member(&snapshot, &settlement, sequence_written).err()
    }

    #[test]
    fn a_settlement_is_applied_only_after_the_sequence_it_expects() {
        for sequence_written in [false, true] {
            assert_eq!(verdict(None, false, sequence_written), Some(SettlementReply::UnknownMember));
            assert_eq!(verdict(Some(3), true, sequence_written), Some(SettlementReply::UnknownMember));
            assert_eq!(verdict(Some(2), false, sequence_written), Some(SettlementReply::LostWrites));
            assert_eq!(verdict(Some(6), false, sequence_written), Some(SettlementReply::Stale));
        }
        assert_eq!(verdict(Some(3), false, false), None);
        assert_eq!(verdict(Some(4), false, false), None, "applied, but its reply was lost");
        assert_eq!(verdict(Some(5), false, false), Some(SettlementReply::Stale));
        assert_eq!(verdict(Some(5), false, true), None, "its first part was applied");
        assert_eq!(
            verdict(Some(4), false, true),
            Some(SettlementReply::LostWrites),
            "its first part was lost"
        );
    }
}
