//! Settlements: what a member holds, written by transactions; and who holds what.
//!
//! Invariant: every transaction of a settlement begins with our own member's item. The first sets its sequence, the others
//! check it, so that whatever of an earlier settlement is still on its way finds a later sequence there, and fails.
//! All asks go into one transaction, up to what DynamoDB takes. When it is cancelled, the accounts that others were writing,
//! too, are tried again by themselves, so that a budget that everybody wants doesn't hold up the keys of single users.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, KeysAndAttributes, Put, TransactWriteItem,
};

use super::account::{self, Scene};
use super::fault::{Pace, Transacted, failed};
use super::items::{Account, Member, Pressed, Stamped, number, text, wall};
use super::members::{Change, Survey};
use super::table::partition;
use super::{DynamoStore, Item};
use crate::store::{Answer, Ask, Holdings, Life, Settled, Settlement, Share, Shares, StoreError};

/// DynamoDB takes 100 writes in a transaction, of which one is our own member, and 100 keys in a read.
const PER_TRANSACTION: usize = 90;

type Accounts = HashMap<String, Stamped<Account>>;

/// What became of some of a settlement's asks.
enum Part {
    Landed(Vec<Answer>),
    /// Nothing was written, because of these asks or, if there are none, our own member.
    Cancelled(Vec<usize>),
    Over(Settled),
}

impl DynamoStore {
    pub(super) async fn run_settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let all: Vec<usize> = (0..settlement.asks.len()).collect();
        let mut parts: VecDeque<Vec<usize>> = all.chunks(PER_TRANSACTION).map(<[usize]>::to_vec).collect();
        if parts.is_empty() {
            parts.push_back(Vec::new()); // its sequence lands all the same
        }
        let mut answers = vec![None; all.len()];
        let (mut begun, mut pace) = (false, Pace::default());
        while let Some(part) = parts.pop_front() {
            match self.settle_part(&settlement, &part, begun).await? {
                Part::Over(settled) => return Ok(settled),
                Part::Landed(found) => {
                    begun = true;
                    part.into_iter().zip(found).for_each(|(ask, answer)| answers[ask] = Some(answer));
                }
                Part::Cancelled(met) => {
                    let (met, rest): (Vec<_>, Vec<_>) = part.into_iter().partition(|ask| met.contains(ask));
                    if met.is_empty() || rest.is_empty() {
                        parts.push_front(if met.is_empty() { rest } else { met });
                        pace.again().await?;
                    } else {
                        parts.push_front(rest);
                        parts.push_back(met);
                    }
                }
            }
        }
        Ok(Settled::Landed(answers.into_iter().flatten().collect()))
    }

    async fn settle_part(
        &self,
        settlement: &Settlement,
        part: &[usize],
        begun: bool,
    ) -> Result<Part, StoreError> {
        let asks: Vec<&Ask> = part.iter().map(|ask| &settlement.asks[*ask]).collect();
        let names: Vec<_> = asks.iter().map(|ask| ask.account.clone()).collect();
        let (accounts, survey) = tokio::join!(self.read_accounts(&names), self.survey());
        let (mut accounts, mut survey) = (accounts?, survey?);
        if accounts.values().any(|account| has_stranger(&account.content, &survey)) {
            // It may have joined between the two reads. Read after the account, a member that isn't there is gone.
            survey = self.survey().await?;
        }
        let own = match standing(&survey, settlement, begun) {
            Ok(own) => own,
            Err(settled) => return Ok(Part::Over(settled)),
        };
        let (mut writes, mut writers) = (vec![self.fence(settlement, own, begun)], Vec::new());
        let scene = Scene {
            me: &settlement.member,
            members: &survey.members,
            living: survey.living(),
            rebuilding: !survey.rebuild_left.is_zero(),
        };
        let mut answers = Vec::with_capacity(asks.len());
        for (index, ask) in part.iter().zip(asks) {
            let read = accounts.remove(&partition("account", &ask.account));
            let (write, answer) = self.settle_one(read, ask, scene, settlement);
            answers.push(answer);
            if let Some(write) = write {
                writes.push(write);
                writers.push(*index);
            }
        }
        if begun && writers.is_empty() {
            return Ok(Part::Landed(answers)); // the sequence is down, and there is nothing else to write
        }
        Ok(match self.transact(writes).await? {
            Transacted::Done => Part::Landed(answers),
            Transacted::Cancelled(culprits) => {
                let asks = culprits.into_iter().filter_map(|write| writers.get(write.checked_sub(1)?));
                Part::Cancelled(asks.copied().collect())
            }
        })
    }

    /// The write that an ask needs, if any, and its answer.
    fn settle_one(
        &self,
        read: Option<Stamped<Account>>,
        ask: &Ask,
        scene: Scene<'_>,
        settlement: &Settlement,
    ) -> (Option<TransactWriteItem>, Answer) {
        let before = read.as_ref().map(|read| read.content.clone()).unwrap_or_default();
        let pressed = self.watch().is_pressed(&ask.account, before.pressed.as_ref(), Instant::now());
        let lasts = settlement.pressure;
        let refusal = (!lasts.is_zero()).then(|| Pressed { stamp: self.stamps.next(), lasts });
        let (after, answer) = account::settle(before.clone(), ask, scene, pressed, refusal);
        let key = self.account_key(&ask.account);
        let write = match read {
            None if after.is_blank() => None,
            Some(read) if after == before && !read.is_old(wall()) => None,
            Some(read) if after.is_blank() => Some(self.delete(key, read.stamp)),
            read => Some(self.put(key, &after, read.map(|read| read.stamp))),
        };
        (write, answer)
    }

    /// Our own member, as every transaction must find it.
    fn fence(&self, settlement: &Settlement, own: &Member, begun: bool) -> TransactWriteItem {
        let mut values: Item = [
            (":gen".into(), number(own.generation)),
            (":no".into(), AttributeValue::Bool(false)),
            (":seq".into(), number(settlement.sequence)),
        ]
        .into();
        let key = self.member_key(&settlement.member);
        if begun {
            let check = ConditionCheck::builder()
                .table_name(&self.table)
                .set_key(Some(key))
                .condition_expression("gen = :gen AND replaced = :no AND seq = :seq")
                .set_expression_attribute_values(Some(values))
                .build()
                .expect("every required part is set");
            return TransactWriteItem::builder().condition_check(check).build();
        }
        values.insert(":landed".into(), number(settlement.landed));
        let change = Change {
            key,
            set: "SET seq = :seq",
            only_if: "gen = :gen AND replaced = :no AND seq < :seq AND seq >= :landed",
            values,
        };
        change.transactional(&self.table)
    }

    fn put(&self, key: Item, account: &Account, stamp: Option<String>) -> TransactWriteItem {
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

    fn delete(&self, key: Item, stamp: String) -> TransactWriteItem {
        let delete = Delete::builder()
            .table_name(&self.table)
            .set_key(Some(key))
            .condition_expression("stamp = :stamp")
            .expression_attribute_values(":stamp", text(stamp))
            .build()
            .expect("every required part is set");
        TransactWriteItem::builder().delete(delete).build()
    }

    /// The accounts of these names that are there, by partition key.
    async fn read_accounts(&self, names: &[Arc<str>]) -> Result<Accounts, StoreError> {
        let mut accounts = Accounts::new();
        let names: Vec<_> = names.iter().collect::<HashSet<_>>().into_iter().collect();
        for names in names.chunks(PER_TRANSACTION) {
            let mut keys: Vec<_> = names.iter().map(|name| self.account_key(name)).collect();
            let mut pace = Pace::default();
            while !keys.is_empty() {
                let wanted = KeysAndAttributes::builder().set_keys(Some(keys)).consistent_read(true).build();
                let wanted = wanted.expect("every required part is set");
                let read = self.client.batch_get_item().request_items(&self.table, wanted);
                let read = read.send().await.map_err(failed)?;
                for item in read.responses().into_iter().flat_map(HashMap::values).flatten() {
                    let partition = item.get("pk").and_then(|key| key.as_s().ok()).cloned();
                    accounts.insert(partition.unwrap_or_default(), Stamped::<Account>::read(item)?);
                }
                let left = read.unprocessed_keys.unwrap_or_default().remove(&self.table);
                keys = left.map(|left| left.keys).unwrap_or_default();
                if !keys.is_empty() {
                    pace.again().await?;
                }
            }
        }
        Ok(accounts)
    }

    pub(super) async fn run_look(&self, names: Vec<Arc<str>>) -> Result<Holdings, StoreError> {
        let mut accounts = self.read_accounts(&names).await?;
        let survey = self.survey().await?;
        let watch = self.watch();
        let life = |member: &Member| Life {
            member: member.id.clone(),
            expires_in_ms: u64::try_from(watch.life_left(member).as_millis()).ok(),
            replaced: member.replaced,
        };
        let mut holdings =
            Holdings { members: survey.members.values().map(life).collect(), accounts: Vec::new() };
        for name in names {
            let Some(account) = accounts.remove(&partition("account", &name)) else { continue };
            // Of exact accounts, a replaced member's share counts for nothing.
            let counts = |member: &Member| !(member.replaced && name.starts_with("k:"));
            let held = account.content.shares.into_iter();
            let held = held.filter(|(id, _)| survey.members.get(id).is_some_and(counts));
            let shares: Vec<_> =
                held.map(|(member, held)| Share { member, count: held.count, used: held.used }).collect();
            if !shares.is_empty() {
                holdings.accounts.push(Shares { account: name, shares });
            }
        }
        Ok(holdings)
    }
}

fn has_stranger(account: &Account, survey: &Survey) -> bool {
    account.shares.keys().any(|id| !survey.members.contains_key(id))
}

/// Our own member if it may settle; else what becomes of the settlement.
fn standing<'a>(survey: &'a Survey, settlement: &Settlement, begun: bool) -> Result<&'a Member, Settled> {
    let own = survey.members.get(&settlement.member).filter(|own| !own.replaced);
    let own = own.ok_or(Settled::Unknown)?;
    let last = own.sequence;
    if last > settlement.sequence || (last == settlement.sequence && !begun) {
        Err(Settled::Stale)
    } else if last < settlement.landed || (last < settlement.sequence && begun) {
        Err(Settled::LostWrites)
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

    /// What becomes of the settlement 5, after 3 had landed, where the store knows `sequence`.
    fn verdict(sequence: Option<u64>, replaced: bool, begun: bool) -> Option<Settled> {
        let id = MemberId::new("a", 1);
        let known = |sequence| {
            let life = Duration::from_secs(1);
            (id.clone(), Member { id: id.clone(), generation: 1, beats: 1, life, replaced, sequence })
        };
        let members: BTreeMap<_, _> = sequence.map(known).into_iter().collect();
        let survey = Survey { generation: None, rebuild_left: Duration::ZERO, members };
        let settlement =
            Settlement { member: id, sequence: 5, landed: 3, pressure: Duration::ZERO, asks: Vec::new() };
        standing(&survey, &settlement, begun).err()
    }

    #[test]
    fn a_settlement_goes_on_only_from_where_it_may() {
        for begun in [false, true] {
            assert_eq!(verdict(None, false, begun), Some(Settled::Unknown));
            assert_eq!(verdict(Some(3), true, begun), Some(Settled::Unknown));
            assert_eq!(verdict(Some(2), false, begun), Some(Settled::LostWrites));
            assert_eq!(verdict(Some(6), false, begun), Some(Settled::Stale));
        }
        assert_eq!(verdict(Some(3), false, false), None);
        assert_eq!(verdict(Some(4), false, false), None, "one that landed unheard");
        assert_eq!(verdict(Some(5), false, false), Some(Settled::Stale));
        assert_eq!(verdict(Some(5), false, true), None, "its first part has landed");
        assert_eq!(verdict(Some(4), false, true), Some(Settled::LostWrites), "its first part was lost");
    }
}
