//! `RuntimeState`: the core of a member, its mode and its calls in flight.
//! `RuntimeEffects`: what to do after the mutex is released.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::OutagePolicy;
use crate::core::member::{MemberCall, QuotaMember, TakeVerdict};
use crate::driven_call::{DrivenCall, InFlightCall};
use crate::status::{MemberNotice, QuotaMode};
use crate::store::Settlement;
use crate::take_future::TakeSender;

/// State of a member behind the mutex of `MemberRuntime`.
pub(crate) struct RuntimeState {
    pub(crate) member: QuotaMember<TakeSender>,
    pub(crate) mode: QuotaMode,
    pub(crate) mode_since: Instant,
    pub(crate) timer_at: Option<Instant>,
    /// Tasks of calls that may still be in flight. The timer task enforces their deadlines: a timer
    /// per call would cost more than the call.
    pub(crate) call_tasks: Vec<CallTask>,
    pub(crate) driven: DrivenCall,
    /// One for each budget, notified when a unit is returned or the slice grows.
    pub(crate) freed: Vec<Arc<Notify>>,
}

/// The task of a call in flight.
pub(crate) struct CallTask {
    pub(crate) deadline: Instant,
    pub(crate) task: AbortHandle,
}

/// What to do after the mutex is released.
#[derive(Default)]
pub(crate) struct RuntimeEffects {
    pub(crate) settlement: Option<Settlement>,
    /// Heartbeats and leaves.
    pub(crate) calls: Vec<MemberCall>,
    pub(crate) verdicts: Vec<(TakeSender, TakeVerdict)>,
    pub(crate) notices: Vec<MemberNotice>,
    pub(crate) mode_change: Option<(QuotaMode, QuotaMode, Option<String>)>,
    pub(crate) reset_timer: bool,
    /// A call that its caller no longer drives.
    pub(crate) reclaimed: Option<InFlightCall>,
}

impl RuntimeState {
    pub(crate) fn new(member: QuotaMember<TakeSender>, now: Instant) -> Self {
        RuntimeState {
            mode: member.mode(now),
            member,
            mode_since: now,
            timer_at: None,
            call_tasks: Vec::new(),
            driven: DrivenCall::default(),
            freed: Vec::new(),
        }
    }

    /// Assigns the settlement, if there is one, to the caller that waits for it.
    pub(crate) fn begin_driving(
        &mut self,
        effects: &mut RuntimeEffects,
        hand_over_at: Instant,
    ) -> Option<(u64, Settlement)> {
        if effects.settlement.is_none() || self.member.has_more_to_settle() {
            return None;
        }
        let id = self.driven.begin(hand_over_at)?;
        effects.reset_timer |= self.timer_at.is_none_or(|at| at > hand_over_at);
        Some(id).zip(effects.settlement.take())
    }

    pub(crate) fn take_expired_calls(&mut self, now: Instant) -> Vec<AbortHandle> {
        let has_expired = |call: &mut CallTask| call.deadline <= now;
        self.call_tasks.extract_if(.., has_expired).map(|call| call.task).collect()
    }

    /// Collects the effects that the core wants performed.
    pub(crate) fn collect_effects(&mut self, now: Instant) -> RuntimeEffects {
        let mut effects = RuntimeEffects::default();
        while let Some(call) = self.member.poll(now) {
            match call {
                // At most one settlement is in flight.
                MemberCall::Settle(settlement) => effects.settlement = Some(settlement),
                MemberCall::Heartbeat(_) | MemberCall::Leave(_) => effects.calls.push(call),
            }
        }
        effects.verdicts = self.member.take_verdicts();
        effects.notices = self.member.take_notices();
        if self.member.has_more_to_settle() {
            effects.reclaimed = self.driven.reclaim();
        }
        if !effects.verdicts.is_empty() {
            self.freed.iter().for_each(|freed| freed.notify_waiters());
        }
        let wake_at = self.member.wake_at(now);
        effects.reset_timer = wake_at.is_some_and(|at| self.timer_at.is_none_or(|set| at < set));
        let mode = self.member.mode(now);
        if mode != self.mode {
            effects.mode_change = Some((self.mode, mode, why(&self.member, mode, now)));
            (self.mode, self.mode_since) = (mode, now);
        }
        effects
    }
}

/// Returns why the mode isn't `normal`, for status and log.
pub(crate) fn why(member: &QuotaMember<TakeSender>, mode: QuotaMode, now: Instant) -> Option<String> {
    match mode {
        QuotaMode::Normal => None,
        QuotaMode::Rebuilding => {
            let (left, policy) = (member.rebuild_left(now).unwrap_or_default(), member.policy());
            let grants = match policy {
                OutagePolicy::Closed => "nothing new is granted",
                OutagePolicy::Share => "this member lends its part",
                OutagePolicy::Open => "the units reported so far count",
            };
            Some(format!("members report to the store what they hold; {grants} for up to {left:?}"))
        }
        QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
            Some(member.outage().unwrap_or("the store was not heard in time").to_string())
        }
    }
}
