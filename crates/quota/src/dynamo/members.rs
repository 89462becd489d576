//! Who lives: reading the namespace, beats, and leaving.
//!
//! Invariant: a member is known as long as its item is there and of the present generation. Beating, entering, being
//! replaced and dying are each one conditional write of that item.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use tokio::task::JoinSet;

use super::fault::{Pace, Transacted, Wrote, failed, random, transacted, wrote};
use super::items::{Generation, Member, millis, number, text, ttl};
use super::table::{GENERATION, MEMBER};
use super::{DynamoStore, Item};
use crate::store::{Beat, BeatKind, MemberId, Pulse, Standing, StoreError};

/// So many of the dead are buried at a time; the rest wait for the next look.
const MAX_BURIALS: usize = 16;
/// Writes of one transaction: DynamoDB takes 100.
const PER_TRANSACTION: usize = 90;

/// What a namespace looked like.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) generation: Option<Generation>,
    pub(super) rebuild_left: Duration,
    /// Everybody whom the present generation knows.
    pub(super) members: BTreeMap<MemberId, Member>,
}

impl Survey {
    /// Members that weren't replaced.
    pub(super) fn living(&self) -> u32 {
        u32::try_from(self.members.values().filter(|member| !member.replaced).count()).unwrap_or(u32::MAX)
    }

    /// Other incarnations of the same name that weren't replaced.
    fn rivals(&self, id: &MemberId) -> Vec<MemberId> {
        let rival = |other: &&Member| other.id != *id && other.id.name() == id.name() && !other.replaced;
        self.members.values().filter(rival).map(|other| other.id.clone()).collect()
    }
}

impl DynamoStore {
    /// Looks around: who is there, who has died meanwhile, and whether the rebuild is over.
    pub(super) async fn survey(&self) -> Result<Survey, StoreError> {
        let mut pace = Pace::default();
        loop {
            let (generation, members) = self.read_namespace().await?;
            let (rebuild_left, dead) = self.watch_over(generation, &members);
            let rebuilt = generation.filter(|generation| generation.rebuilding && rebuild_left.is_zero());
            if let Some(rebuilt) = rebuilt
                && self.end_rebuild(rebuilt).await? != Wrote::Done
            {
                pace.again().await?; // somebody else ended it, or it was lost
                continue;
            }
            let buried = self.bury(dead).await?;
            let known = |member: &Member| {
                generation.is_some_and(|present| present.number == member.generation)
                    && !buried.contains(&member.id)
            };
            let members = members.into_iter().filter(known).map(|member| (member.id.clone(), member));
            return Ok(Survey { generation, rebuild_left, members: members.collect() });
        }
    }

    fn watch_over(&self, generation: Option<Generation>, members: &[Member]) -> (Duration, Vec<Member>) {
        let mut watch = self.watch();
        watch.look(generation, members, Instant::now());
        let rebuild_left = generation.map_or(Duration::ZERO, |generation| watch.rebuild_left(generation));
        let dead = members.iter().filter(|member| watch.life_left(member).is_zero());
        (rebuild_left, dead.take(MAX_BURIALS).cloned().collect())
    }

    async fn read_namespace(&self) -> Result<(Option<Generation>, Vec<Member>), StoreError> {
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
                let sort = item.get("sk").and_then(|sort| sort.as_s().ok());
                let sort = sort.ok_or_else(|| StoreError::Unexpected("an item without a sort key".into()))?;
                if sort == GENERATION {
                    generation = Some(Generation::read(item)?);
                } else if let Some(id) = sort.strip_prefix(MEMBER) {
                    members.push(Member::read(id, item)?);
                }
            }
            next = page.last_evaluated_key;
            if next.is_none() {
                return Ok((generation, members));
            }
        }
    }

    async fn end_rebuild(&self, generation: Generation) -> Result<Wrote, StoreError> {
        let change = Change {
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

    /// Removes those that have stood still for their life, unless they have moved since.
    async fn bury(&self, dead: Vec<Member>) -> Result<Vec<MemberId>, StoreError> {
        let mut burials = JoinSet::new();
        for member in dead {
            let delete = self
                .client
                .delete_item()
                .table_name(&self.table)
                .set_key(Some(self.member_key(&member.id)))
                .condition_expression("gen = :gen AND beats = :beats")
                .expression_attribute_values(":gen", number(member.generation))
                .expression_attribute_values(":beats", number(member.beats));
            burials.spawn(async move { (member.id, wrote(delete.send().await)) });
        }
        let mut buried = Vec::new();
        while let Some(burial) = burials.join_next().await {
            let (id, outcome) =
                burial.map_err(|_| StoreError::Unexpected("the runtime ended meanwhile".into()))?;
            if outcome? == Wrote::Done {
                tracing::info!(member = %id, "a quota member stopped beating, and what it held is free");
                buried.push(id);
            }
        }
        Ok(buried)
    }

    pub(super) async fn run_beat(&self, beat: Beat) -> Result<Pulse, StoreError> {
        let mut pace = Pace::default();
        loop {
            let mut survey = self.survey().await?;
            match survey.generation {
                None => self.begin_generation(&beat).await?,
                Some(generation) => {
                    if let Some(standing) = self.stand(&beat, generation, &mut survey).await? {
                        let (generation, rebuild_left) = (generation.number, survey.rebuild_left);
                        return Ok(Pulse { standing, generation, rebuild_left, members: survey.living() });
                    }
                }
            }
            pace.again().await?;
        }
    }

    /// Whoever comes first begins it; for the others it is there when they look again.
    async fn begin_generation(&self, beat: &Beat) -> Result<(), StoreError> {
        let mut item = self.generation_key();
        Generation { number: beat.generation, rebuilding: true, life: beat.ttl }.write(&mut item);
        let put = self.client.put_item().table_name(&self.table).set_item(Some(item));
        wrote(put.condition_expression("attribute_not_exists(pk)").send().await).map(drop)
    }

    /// What the beat does, by the ledger's rule. Nothing: somebody was quicker, and it must look again.
    async fn stand(
        &self,
        beat: &Beat,
        generation: Generation,
        survey: &mut Survey,
    ) -> Result<Option<Standing>, StoreError> {
        let own = survey.members.get(&beat.member).map(|own| (own.replaced, own.sequence));
        let rivals = survey.rivals(&beat.member);
        let (wrote, standing) = match (beat.kind, own) {
            (BeatKind::Join | BeatKind::TakeOver | BeatKind::Stay, Some((true, _))) => {
                (Wrote::Done, Standing::Replaced)
            }
            (BeatKind::Join, None) => {
                let newcomer = newcomer(beat, generation);
                let wrote = self.enter(&newcomer).await?;
                survey.members.insert(newcomer.id.clone(), newcomer);
                (wrote, Standing::Joined)
            }
            (BeatKind::Join, Some((false, _))) => {
                (self.apply(self.sign_of_life(beat, generation)).await?, Standing::Joined)
            }
            (BeatKind::Stay, Some((false, sequence))) => {
                (self.apply(self.sign_of_life(beat, generation)).await?, Standing::Alive { sequence })
            }
            (BeatKind::TakeOver, Some((false, sequence))) => {
                let wrote = self.take_over(beat, generation, &rivals).await?;
                survey.members.values_mut().filter(|member| rivals.contains(&member.id)).for_each(replace);
                (wrote, Standing::Alive { sequence })
            }
            (BeatKind::TakeOver | BeatKind::Stay, None) if !rivals.is_empty() => {
                (Wrote::Done, Standing::Replaced)
            }
            (BeatKind::TakeOver | BeatKind::Stay, None) => (Wrote::Done, Standing::Unknown),
        };
        Ok((wrote == Wrote::Done).then_some(standing))
    }

    async fn enter(&self, newcomer: &Member) -> Result<Wrote, StoreError> {
        let mut item = self.member_key(&newcomer.id);
        newcomer.write(&mut item);
        let _turn = self.own.lock().await;
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression("attribute_not_exists(pk) OR gen <> :gen")
            .expression_attribute_values(":gen", number(newcomer.generation));
        wrote(put.send().await)
    }

    fn sign_of_life(&self, beat: &Beat, generation: Generation) -> Change {
        Change {
            key: self.member_key(&beat.member),
            set: "SET beats = beats + :one, life_ms = :life, #ttl = :ttl",
            only_if: "gen = :gen AND replaced = :no",
            values: [
                (":gen".into(), number(generation.number)),
                (":no".into(), AttributeValue::Bool(false)),
                (":one".into(), number(1)),
                (":life".into(), millis(beat.ttl)),
                (":ttl".into(), ttl()),
            ]
            .into(),
        }
    }

    /// In one transaction with our own beat: of two that take over from each other, one must find itself replaced.
    async fn take_over(
        &self,
        beat: &Beat,
        generation: Generation,
        rivals: &[MemberId],
    ) -> Result<Wrote, StoreError> {
        if rivals.is_empty() {
            return self.apply(self.sign_of_life(beat, generation)).await;
        }
        for rivals in rivals.chunks(PER_TRANSACTION) {
            let mut writes = vec![self.sign_of_life(beat, generation).transactional(&self.table)];
            for rival in rivals {
                let change = Change {
                    key: self.member_key(rival),
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
            if self.transact(writes).await? != Transacted::Done {
                return Ok(Wrote::Busy);
            }
        }
        Ok(Wrote::Done)
    }

    pub(super) async fn run_leave(&self, member: MemberId) -> Result<(), StoreError> {
        let mut pace = Pace::default();
        loop {
            let delete = self.client.delete_item().table_name(&self.table);
            let delete = delete.set_key(Some(self.member_key(&member)));
            let outcome = {
                let _turn = self.own.lock().await;
                wrote(delete.send().await)?
            };
            match outcome {
                Wrote::Done | Wrote::Refused => return Ok(()),
                Wrote::Busy => pace.again().await?,
            }
        }
    }

    async fn apply(&self, change: Change) -> Result<Wrote, StoreError> {
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
        let _turn = self.own.lock().await;
        wrote(update.send().await)
    }

    /// All of these writes, or none.
    pub(super) async fn transact(&self, writes: Vec<TransactWriteItem>) -> Result<Transacted, StoreError> {
        let _turn = self.own.lock().await;
        transacted(self.client.transact_write_items().set_transact_items(Some(writes)).send().await)
    }
}

fn replace(member: &mut Member) {
    member.replaced = true;
}

/// Its beats begin anywhere: one that was gone and comes again must not seem to have stood still.
fn newcomer(beat: &Beat, generation: Generation) -> Member {
    Member {
        id: beat.member.clone(),
        generation: generation.number,
        beats: random() >> 16,
        life: beat.ttl,
        replaced: false,
        sequence: 0,
    }
}

/// A conditional update of one item.
pub(super) struct Change {
    pub(super) key: Item,
    pub(super) set: &'static str,
    pub(super) only_if: &'static str,
    pub(super) values: Item,
}

impl Change {
    /// `ttl` is a reserved word.
    fn names(&self) -> Option<HashMap<String, String>> {
        self.set.contains("#ttl").then(|| [("#ttl".into(), "ttl".into())].into())
    }

    /// As a part of a transaction.
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
