//! Calls to the store, and their replies.

use std::time::Instant;

use super::{AccountId, CallError, MemberCall, PendingHeartbeat, PendingSettlement, QuotaMember};
use crate::core::account::TakeWaiter;
use crate::error::QuotaRefusal;
use crate::status::{MemberNotice, RejoinReason};
use crate::store::{
    Heartbeat, HeartbeatKind, HeartbeatReply, Membership, Settlement, SettlementReply, ShareReply,
};

impl<W: TakeWaiter> QuotaMember<W> {
    /// Returns the next call to make. Call it until it returns `None`.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<MemberCall> {
        if self.has_left {
            return None;
        }
        if self.pending_heartbeat.is_none() && now >= self.heartbeat_due {
            return Some(self.begin_heartbeat(now));
        }
        if self.outage.is_some() || self.next_heartbeat == HeartbeatKind::Join || now >= self.slice_deadline {
            return None; // the next heartbeat shows whether the store is available
        }
        if self.pending_pushes == 0
            && !self.leave_pending
            && let Some(predecessor) = self.predecessor.clone()
        {
            self.leave_pending = true;
            return Some(MemberCall::Leave(predecessor));
        }
        self.enqueue_due_retries(now);
        if self.pending_settlement.is_none() && !self.request_queue.is_empty() {
            return self.begin_settlement().map(MemberCall::Settle);
        }
        None
    }

    /// Returns whether accounts are queued behind the settlement in flight.
    pub(crate) fn has_more_to_settle(&self) -> bool {
        self.pending_settlement.is_some() && !self.request_queue.is_empty()
    }

    /// Returns when to poll again without another event: for the next heartbeat, a retry, or a
    /// change of mode.
    pub(crate) fn wake_at(&self, now: Instant) -> Option<Instant> {
        if self.has_left {
            return None;
        }
        let heartbeat = self.pending_heartbeat.is_none().then_some(self.heartbeat_due);
        let changes =
            [Some(self.slice_deadline), self.rebuild_ends_at].into_iter().flatten().filter(|at| *at > now);
        let again = self.budgets.iter().filter_map(|entry| entry.account.retry_at);
        // During an outage, retries wait for its end.
        let again = again.filter(|_| self.outage.is_none() && now < self.slice_deadline);
        changes.chain(heartbeat).chain(again).min()
    }

    pub(super) fn begin_heartbeat(&mut self, now: Instant) -> MemberCall {
        self.counters.heartbeats += 1;
        self.heartbeat_due = now + self.rules.heartbeat_interval;
        self.pending_heartbeat = Some(PendingHeartbeat {
            member: self.id.clone(),
            sent: now,
            last_acknowledged: self.last_acknowledged,
        });
        MemberCall::Heartbeat(Heartbeat {
            member: self.id.clone(),
            ttl: self.rules.ttl,
            kind: self.next_heartbeat,
            generation: self.ids.next_id(),
            members_before: self.known_members_before(),
            has_reported: self.rebuild_ends_at.is_some() && self.counted_before && self.has_reported_all(),
        })
    }

    /// Returns the number of members before the rebuild. A member that joins again may not know yet
    /// that there is one.
    fn known_members_before(&self) -> u32 {
        let joins_again = self.next_heartbeat == HeartbeatKind::Join && self.generation.is_some();
        match self.rebuild_ends_at {
            Some(_) => self.members_before,
            None if joins_again => self.members,
            None => 0,
        }
    }

    pub(super) fn begin_settlement(&mut self) -> Option<Settlement> {
        let (mut requests, mut accounts) = (Vec::new(), Vec::new());
        while requests.len() < self.rules.batch {
            let Some(account_id) = self.request_queue.pop_front() else { break };
            let (terms, held_back) = (self.terms(&account_id), self.predecessor.is_some());
            let Some(account) = self.find_account_mut(&account_id) else { continue };
            account.queued = false;
            let before = account.waiters.len();
            account.waiters.retain(|waiter| !waiter.is_cancelled());
            let gone = before - account.waiters.len();
            // While the predecessor still counts, a request for more would count our share twice.
            let asks_now = account.needs_request(terms)
                && !account.has_pending_request()
                && (account.needs_push || !held_back);
            if asks_now {
                let name = self.store_name(&account_id);
                requests.push(self.account_or_default(&account_id).build_request(name, terms));
                accounts.push(account_id);
            } else {
                self.remove_if_unused(&account_id);
            }
            self.waiting -= gone;
        }
        if requests.is_empty() {
            return None;
        }
        self.sequence += 1;
        self.counters.settlements += 1;
        self.counters.share_requests += requests.len() as u64;
        let (member, sequence) = (self.id.clone(), self.sequence);
        self.pending_settlement = Some(PendingSettlement { member: member.clone(), sequence, accounts });
        Some(Settlement {
            member,
            sequence,
            last_acknowledged: self.last_acknowledged,
            pressure: self.rules.heartbeat_interval * 2,
            rebuild_parts: self.rebuild_parts(),
            requests,
        })
    }

    pub(crate) fn on_heartbeat_reply(&mut self, result: Result<HeartbeatReply, CallError>, now: Instant) {
        let Some(pending) = self.pending_heartbeat.take() else { return };
        if self.has_left {
            return;
        }
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return self.on_outage(&error, now),
        };
        if pending.member != self.id {
            self.heartbeat_due = now;
            return;
        }
        self.on_store_reply();
        self.remember_members_before(&reply, now);
        (self.members, self.expected) = (reply.members, reply.expected);
        // The next heartbeat updates it; the store's clock may have been wrong.
        let rebuild_left = reply.rebuild_left.min(self.rules.ttl);
        self.rebuild_ends_at = (!rebuild_left.is_zero()).then(|| now + rebuild_left);
        if let Some(rebuild_ends_at) = self.rebuild_ends_at {
            // The store ends a rebuild when it processes a heartbeat.
            self.heartbeat_due = self.heartbeat_due.min(rebuild_ends_at);
        }
        if self.generation.replace(reply.generation).is_some_and(|before| before != reply.generation) {
            self.notices.push(MemberNotice::StoreLostData);
        }
        match reply.membership {
            Membership::Alive { sequence } => {
                (self.next_heartbeat, self.takes_over) = (HeartbeatKind::Renew, false);
                // After the deadline, the store may have expired this member and applied an earlier
                // join that had timed out.
                let joined_again = now >= self.slice_deadline && sequence < self.last_acknowledged;
                if !joined_again {
                    self.extend_deadline(pending.sent);
                }
                if joined_again || sequence < pending.last_acknowledged {
                    self.rejoin(RejoinReason::StoreLostWrites, now);
                } else {
                    self.refresh_accounts(now);
                }
            }
            Membership::Joined => {
                self.next_heartbeat =
                    if self.takes_over { HeartbeatKind::TakeOver } else { HeartbeatKind::Renew };
                if self.takes_over {
                    self.heartbeat_due = now;
                }
                if now >= self.slice_deadline {
                    self.clear_slices();
                }
                self.extend_deadline(pending.sent);
                self.notices.push(MemberNotice::Joined { member: self.id.clone(), members: self.members });
                self.push_all_accounts();
            }
            Membership::Unknown => self.rejoin(RejoinReason::UnknownToStore, now),
            Membership::Replaced => self.rejoin(RejoinReason::NameTaken, now),
        }
    }

    /// When a rebuild begins, keeps the number of members of the time before it, and whether this
    /// member was surely one of them.
    fn remember_members_before(&mut self, reply: &HeartbeatReply, now: Instant) {
        let was_rebuilding = self.rebuild_ends_at.is_some();
        let store_lost_data = self.generation.is_some_and(|before| before != reply.generation);
        if reply.rebuild_left.is_zero() || (was_rebuilding && !store_lost_data) {
            return;
        }
        self.members_before = match (self.generation, was_rebuilding) {
            (None, _) => 0,
            (Some(_), false) => self.members,
            (Some(_), true) => self.sharing_members(),
        };
        // After its deadline, others may have counted without it. In a second rebuild, it can't
        // know whether it was counted before the first.
        self.counted_before = !was_rebuilding && now < self.slice_deadline;
    }

    pub(super) fn extend_deadline(&mut self, sent: Instant) {
        self.slice_deadline = self.slice_deadline.max(sent + (self.rules.ttl - self.rules.margin));
    }

    pub(crate) fn on_settlement_reply(&mut self, result: Result<SettlementReply, CallError>, now: Instant) {
        let Some(pending) = self.pending_settlement.take() else { return };
        if pending.member != self.id {
            // It belongs to an earlier incarnation; the current one has pushed everything again.
            return result.err().into_iter().for_each(|error| self.on_outage(&error, now));
        }
        match result {
            Ok(SettlementReply::Applied(replies)) if replies.len() != pending.accounts.len() => {
                let (replies, requests) = (replies.len(), pending.accounts.len());
                let error = CallError::WrongCount { replies, requests };
                self.on_settlement_failure(pending.accounts, &error, now);
            }
            Ok(SettlementReply::Applied(replies)) => {
                self.on_settlement_success();
                self.last_acknowledged = self.last_acknowledged.max(pending.sequence);
                for (account_id, reply) in pending.accounts.iter().zip(replies) {
                    self.on_share_reply(account_id, reply, now);
                }
                let is_pushed = |account_id: &AccountId| {
                    self.find_account(account_id).is_none_or(|account| !account.needs_push)
                };
                let pushed = pending.accounts.iter().filter(|account_id| is_pushed(account_id)).count();
                let were_pending = self.pending_pushes > 0;
                self.pending_pushes = self.pending_pushes.saturating_sub(pushed);
                if were_pending && self.pending_pushes == 0 && self.rebuild_ends_at.is_some() {
                    self.heartbeat_due = now; // The next heartbeat reports it.
                }
            }
            Ok(SettlementReply::Stale) => self.mark_unacknowledged(pending.accounts),
            Ok(SettlementReply::UnknownMember) => {
                self.mark_unacknowledged(pending.accounts);
                let is_new_incarnation = self.last_acknowledged == 0;
                self.rejoin(RejoinReason::UnknownToStore, now);
                if is_new_incarnation {
                    // The store may repeat this without end; callers must not wait for it.
                    self.on_settlement_failure(Vec::new(), &CallError::Forgotten, now);
                    self.heartbeat_due = now + self.rules.retry;
                }
            }
            Ok(SettlementReply::LostWrites) => {
                self.mark_unacknowledged(pending.accounts);
                self.rejoin(RejoinReason::StoreLostWrites, now);
            }
            Err(error) => self.on_settlement_failure(pending.accounts, &error, now),
        }
    }

    fn on_settlement_failure(&mut self, accounts: Vec<AccountId>, error: &CallError, now: Instant) {
        self.mark_unacknowledged(accounts);
        self.on_outage(error, now);
        self.settlement_failure = Some(error.to_string());
    }

    fn on_settlement_success(&mut self) {
        if self.settlement_failure.take().is_some() && self.outage.is_none() {
            self.notices.push(MemberNotice::StoreAvailable);
        }
        self.on_store_reply();
    }

    pub(super) fn on_share_reply(&mut self, account_id: &AccountId, reply: ShareReply, now: Instant) {
        let (terms, within_deadline, left) =
            (self.terms(account_id), now < self.slice_deadline, self.rebuild_left(now));
        let hold = self.rules.refusal_hold;
        let Some(account) = self.find_account_mut(account_id) else { return };
        if !within_deadline {
            // The reply came after the deadline: the store may have granted the units to others
            // since.
            account.mark_unacknowledged();
            return self.enqueue(account_id);
        }
        let was_push = account.needs_push;
        let short = account.apply_reply(reply);
        self.serve_waiters(account_id);
        let account = self.account_or_default(account_id);
        // A request never exceeds the limit. If all of it is lent here, another request can't help
        // the remaining callers.
        let all_here = account.used >= terms.limit && !account.waiters.is_empty();
        let short = short || all_here;
        // During a rebuild, a request that lacks no room has reached its ceiling.
        let at_ceiling = left.filter(|_| reply.total < terms.limit && !all_here);
        let waits = terms.allocation.in_blocks()
            && at_ceiling.is_none()
            && short
            && !all_here
            && account.wait_for_idle_units(reply, terms.limit, now);
        if short && !was_push && !waits {
            let refusal = match at_ceiling {
                None => QuotaRefusal::Full { used: reply.used.max(account.used), limit: terms.limit },
                Some(left) => QuotaRefusal::Rebuilding { left },
            };
            if terms.allocation.in_blocks() && at_ceiling.is_none() {
                account.cache_refusal(now + hold, reply.used.max(account.used));
            }
            let refused = std::mem::take(&mut account.waiters);
            self.waiting -= refused.len();
            self.counters.refused += refused.len() as u64;
            self.verdicts.extend(refused.into_iter().map(|waiter| (waiter, Err(refusal.clone()))));
        }
        if self.account_or_default(account_id).needs_request(terms) {
            self.enqueue(account_id);
        }
        self.remove_if_unused(account_id);
    }

    pub(crate) fn on_leave_reply(&mut self, result: Result<(), CallError>, now: Instant) {
        self.leave_pending = false;
        match result {
            Ok(()) => {
                self.predecessor = None;
                self.enqueue_accounts_in_need();
            }
            Err(error) => self.on_outage(&error, now),
        }
    }

    /// Returns all idle units, because a member was refused.
    pub(crate) fn on_pressure(&mut self) {
        for index in 0..self.budgets.len() {
            let account = &mut self.budgets[index].account;
            account.raise_pressure();
            if account.idle() > 0 {
                self.enqueue(&AccountId::Budget(index));
            }
        }
    }

    /// Ends an outage, because the store has replied.
    pub(super) fn on_store_reply(&mut self) {
        if self.outage.take().is_some() {
            if self.settlement_failure.is_none() {
                self.notices.push(MemberNotice::StoreAvailable);
            }
            self.enqueue_accounts_in_need();
        }
    }

    pub(super) fn on_outage(&mut self, error: &CallError, now: Instant) {
        let why = error.to_string();
        self.counters.failures += 1;
        self.heartbeat_due = self.heartbeat_due.min(now + self.rules.retry);
        if self.outage().is_none() {
            self.notices.push(MemberNotice::StoreUnavailable { why: why.clone() });
        }
        self.outage = Some(why);
        // During an outage the queue is empty; it is filled again when the store replies.
        for account_id in std::mem::take(&mut self.request_queue) {
            self.find_account_mut(&account_id).into_iter().for_each(|account| account.queued = false);
            self.remove_if_unused(&account_id);
        }
        self.budgets.iter_mut().for_each(|entry| entry.account.retry_at = None);
        // Callers wait only for replies that are still in flight.
        for account_id in self.accounts_with_waiters() {
            if self.account_or_default(&account_id).has_pending_request() {
                continue;
            }
            for waiter in self.drain_waiters(&account_id) {
                let verdict = self.take_by_policy(&account_id, now).map(|()| account_id.clone());
                self.verdicts.push((waiter, verdict));
            }
            self.remove_if_unused(&account_id);
        }
    }

    /// Queues the budgets whose retry for other members' idle units is due.
    pub(super) fn enqueue_due_retries(&mut self, now: Instant) {
        for index in 0..self.budgets.len() {
            let account = &mut self.budgets[index].account;
            if account.retry_at.is_some_and(|at| at <= now) {
                account.retry_at = None;
                self.enqueue(&AccountId::Budget(index));
            }
        }
    }

    pub(super) fn mark_unacknowledged(&mut self, accounts: Vec<AccountId>) {
        for account_id in accounts {
            self.account_or_default(&account_id).mark_unacknowledged();
            self.enqueue(&account_id);
        }
    }

    /// Queues an account for the next settlement.
    pub(super) fn enqueue(&mut self, account_id: &AccountId) {
        if self.outage.is_some() {
            return;
        }
        let account = self.account_or_default(account_id);
        if !account.queued {
            account.queued = true;
            self.request_queue.push_back(account_id.clone());
        }
    }
}
