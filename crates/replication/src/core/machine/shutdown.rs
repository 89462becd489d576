//! Transitions to sleep and to the end.

use std::time::{Duration, Instant};

use super::{Effect, ManagerEvent, ManagerMachine, SLEEP_TIMEOUT, State};
use crate::core::conditions::ReadyCondition;
use crate::core::step::StopStep;

impl ManagerMachine {
    pub(super) fn start_sleep(&mut self, now: Instant, out: &mut Vec<Effect>) {
        out.extend(self.source.map(Effect::CloseSource));
        out.push(Effect::ClosePools);
        self.measure_at = None;
        self.enter(
            State::FallingAsleep { deadline: now + SLEEP_TIMEOUT, pools: true, wake: false },
            now,
            out,
        );
    }

    /// Ignored unless the machine is falling asleep: these pools may have been replaced since.
    pub(super) fn on_pools_closed(&mut self, now: Instant, out: &mut Vec<Effect>) {
        if let State::FallingAsleep { pools, wake, .. } = &mut self.state {
            *pools = false;
            let wake = *wake;
            if self.source.is_none() {
                self.sleep(wake, now, out);
            }
        }
    }

    pub(super) fn sleep(&mut self, wake: bool, now: Instant, out: &mut Vec<Effect>) {
        self.mark_pools_closed(now);
        self.mark_source_lost("the connections are closed", now);
        self.enter(State::Sleeping, now, out);
        out.push(Effect::Notify(ManagerEvent::ScaledDown));
        if wake {
            self.on_use_requested(now, out);
        }
    }

    pub(super) fn on_use_requested(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.used.0 = self.used.0.max(now);
        match &mut self.state {
            State::FallingAsleep { wake, .. } => *wake = true,
            State::Sleeping => {
                out.push(Effect::Notify(ManagerEvent::WakingUp));
                self.open_source(now, out);
            }
            _ => {}
        }
    }

    pub(super) fn on_shutdown(&mut self, drop_slot: bool, now: Instant, out: &mut Vec<Effect>) {
        self.drop_slot |= drop_slot;
        if !matches!(self.state, State::Stopping { .. } | State::Stopped) {
            self.stop(StopStep::ClosingSnapshotPool, now, out);
        }
    }

    fn stop(&mut self, step: StopStep, now: Instant, out: &mut Vec<Effect>) {
        let is_needed = match step {
            // Without the lock, `DroppingSlot` drops slot and publication together once it has the
            // lock.
            StopStep::DroppingPublication => {
                self.drop_slot && self.conditions.holds(ReadyCondition::PgLockAcquired)
            }
            StopStep::DroppingSlot => self.drop_slot,
            StopStep::ClosingReplicationClient => self.source.is_some(),
            // Without the lock, another instance may be writing.
            StopStep::Checkpointing => self.source.is_some() && self.prepared == self.source,
            StopStep::ClosingSnapshotPool | StopStep::EndingBackend | StopStep::ClosingAdminPool => true,
        };
        if !is_needed {
            return self.stop_next(step, now, out);
        }
        self.measure_at = None;
        self.enter(State::Stopping { step, deadline: now + stop_timeout(step) }, now, out);
        out.push(Effect::Stop(step));
    }

    pub(super) fn stop_next(&mut self, done: StopStep, now: Instant, out: &mut Vec<Effect>) {
        match done.next() {
            Some(step) => self.stop(step, now, out),
            None => {
                self.abandon_source(out);
                self.pools_started = false;
                for condition in ReadyCondition::ALL {
                    self.clear(condition, "shut down", now);
                }
                self.enter(State::Stopped, now, out);
                out.push(Effect::Notify(ManagerEvent::Stopped));
            }
        }
    }

    /// Marks the machine as stopped because its worker was dropped.
    pub(crate) fn mark_dead(&mut self, now: Instant) {
        (self.state, self.step_since, self.source) = (State::Stopped, now, None);
        for condition in ReadyCondition::ALL {
            self.clear(condition, "the manager has ended", now);
        }
    }
}

/// Returns the time limit of a shutdown step.
fn stop_timeout(step: StopStep) -> Duration {
    match step {
        StopStep::ClosingSnapshotPool | StopStep::ClosingReplicationClient | StopStep::EndingBackend => {
            Duration::from_secs(1)
        }
        StopStep::ClosingAdminPool => Duration::from_secs(2),
        StopStep::DroppingPublication | StopStep::DroppingSlot => Duration::from_secs(5),
        StopStep::Checkpointing => Duration::from_secs(10),
    }
}
