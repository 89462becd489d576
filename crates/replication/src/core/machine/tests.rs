//! Tests of the machine without I/O: scenarios, and random histories.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::super::conditions::ReadyCondition;
use super::super::continuity::ResetReason;
use super::super::step::{ManagerPhase, ManagerStep, StopStep};
use super::{
    Effect, Event, FailureReport, ManagerEvent, ManagerMachine, PoolReport, PoolState, RecoveryAction,
};
use crate::pools::PoolStatus;

struct MachineHarness {
    machine: ManagerMachine,
    now: Instant,
    out: Vec<Effect>,
}

/// Events of a setup, by the id of the attempt.
const SETUP: [fn(u64) -> Event; 6] = [
    Event::Connected,
    Event::LockTaken,
    Event::Configured,
    |_| Event::PoolsChanged(ready()),
    |attempt| Event::ConsumerReady(attempt, None),
    Event::Confirmed,
];

impl MachineHarness {
    fn new(idle_after: Option<Duration>) -> Self {
        let now = Instant::now();
        MachineHarness {
            machine: ManagerMachine::new(idle_after, Duration::from_secs(10), 1, now),
            now,
            out: Vec::new(),
        }
    }

    fn on(&mut self, event: Event) -> &[Effect] {
        self.out.clear();
        self.machine.on(event, self.now, &mut self.out);
        &self.out
    }

    fn after(&mut self, secs: u64) -> &[Effect] {
        self.now += Duration::from_secs(secs);
        self.on(Event::Tick)
    }

    fn attempt(&self) -> u64 {
        self.machine.source().expect("a replication connection")
    }

    /// Sends the events of a setup, from the connection to the confirmed stream.
    fn set_up(&mut self) {
        for event in SETUP {
            let event = event(self.attempt());
            self.on(event);
        }
    }

    fn up_to(mut self, step: ManagerStep) -> Self {
        self.on(Event::Start);
        for event in SETUP {
            if self.machine.step() == step {
                break;
            }
            let event = event(self.attempt());
            self.on(event);
        }
        assert_eq!(self.machine.step(), step);
        self
    }
}

fn ready() -> PoolReport {
    PoolReport { admin: pool(PoolStatus::Ready), snapshot: pool(PoolStatus::Ready) }
}

fn pool(status: PoolStatus) -> PoolState {
    PoolState { status, why: None }
}

fn failure(action: RecoveryAction) -> FailureReport {
    FailureReport { action, reason: "test", text: "it broke".into(), panicked: false }
}

fn entered(effects: &[Effect]) -> Vec<ManagerStep> {
    let step = |effect: &Effect| match effect {
        Effect::Entered(step) => Some(*step),
        _ => None,
    };
    effects.iter().filter_map(step).collect()
}

#[test]
fn the_steps_up_to_streaming_are_entered_in_order() {
    let mut harness = MachineHarness::new(None);
    let mut passed = entered(harness.on(Event::Start));
    for event in [
        Event::Connected(1),
        Event::LockTaken(1),
        Event::Configured(1),
        Event::PoolsChanged(ready()),
        Event::ConsumerReady(1, Some(ResetReason::First)),
        Event::Confirmed(1),
    ] {
        passed.extend(entered(harness.on(event)));
    }
    assert_eq!(passed, ManagerStep::STARTUP_ORDER);
    assert!(harness.machine.conditions().all_hold());
}

#[test]
fn the_stream_starts_without_snapshot_connections() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::ConnectionPoolConnecting);
    harness.on(Event::PoolsChanged(PoolReport { admin: pool(PoolStatus::Starting), ..ready() }));
    assert_eq!(harness.machine.step(), ManagerStep::ConnectionPoolConnecting);
    let full = PoolReport { admin: pool(PoolStatus::Ready), ..PoolReport::default() };
    assert!(harness.on(Event::PoolsChanged(full)).contains(&Effect::PrepareConsumer(1)));
    harness.on(Event::ConsumerReady(1, None));
    harness.on(Event::Confirmed(1));
    assert_eq!(harness.machine.step(), ManagerStep::Streaming);
    assert!(!harness.machine.conditions().holds(ReadyCondition::SnapshotConnectionPoolReady));
    harness.on(Event::PoolsChanged(ready()));
    assert!(harness.machine.conditions().all_hold());
}

#[test]
fn the_pools_are_kept_when_the_stream_is_lost() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Retry))));
    assert_eq!(harness.machine.step(), ManagerStep::BackingOff);
    assert!(harness.machine.conditions().holds(ReadyCondition::AdminConnectionPoolReady));
    assert!(!harness.machine.conditions().holds(ReadyCondition::ReplicationClientReady));
    let opened = harness.after(1).to_vec();
    assert!(opened.contains(&Effect::OpenSource { attempt: 2, recreate_slot: false }), "{opened:?}");
    harness.on(Event::Connected(2));
    harness.on(Event::LockTaken(2));
    let configured = harness.on(Event::Configured(2));
    assert!(!configured.contains(&Effect::StartPools) && configured.contains(&Effect::PrepareConsumer(2)));
}

#[test]
fn events_of_an_earlier_connection_change_nothing() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Retry))));
    harness.after(1);
    for event in [
        Event::Connected(1),
        Event::SourceEnded(1, None),
        Event::Confirmed(1),
        Event::LockTaken(1),
        Event::Configured(1),
    ] {
        assert_eq!(harness.on(event), []);
        assert_eq!(harness.machine.step(), ManagerStep::ReplicationClientConnecting);
    }
}

#[test]
fn a_halted_manager_retries_every_30_seconds_and_at_once_on_request() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::ReplicationClientConnecting);
    let halt = || Some(failure(RecoveryAction::Halt));
    for attempt in 1..=3 {
        let halted = harness.on(Event::SourceEnded(attempt, halt())).to_vec();
        let event = ManagerEvent::Halted { reason: "test", why: "it broke".into() };
        assert!(halted.contains(&Effect::Notify(event)), "{halted:?}");
        let next = harness.now + Duration::from_secs(30);
        assert_eq!((harness.machine.wake_at(), harness.machine.next_attempt()), (Some(next), Some(next)));
        assert_eq!(u64::from(harness.machine.backoff().tries()), attempt);
        assert_eq!(harness.after(29), []);
        let opened = harness.after(1);
        assert!(opened.contains(&Effect::OpenSource { attempt: attempt + 1, recreate_slot: false }));
        assert_eq!(harness.machine.halt_reason(), Some("test"), "during the next attempt, too");
    }
    harness.on(Event::SourceEnded(4, halt()));
    harness.on(Event::Retry);
    assert_eq!(harness.machine.step(), ManagerStep::ReplicationClientConnecting);
    harness.set_up();
    assert_eq!((harness.machine.step(), harness.machine.halt_reason()), (ManagerStep::Streaming, None));
}

#[test]
fn a_retry_during_an_attempt_repeats_it_at_once_if_it_fails() {
    for action in [RecoveryAction::Halt, RecoveryAction::Retry] {
        let mut harness = MachineHarness::new(None).up_to(ManagerStep::ConfiguringConnection);
        harness.on(Event::Retry);
        harness.on(Event::SourceEnded(1, Some(failure(action))));
        assert_eq!(harness.machine.wake_at(), Some(harness.now), "{action:?}");
        assert!(harness.after(0).contains(&Effect::OpenSource { attempt: 2, recreate_slot: false }));
        harness.on(Event::SourceEnded(2, Some(failure(action))));
        assert!(harness.machine.wake_at() > Some(harness.now), "only once");
    }
}

#[test]
fn a_halt_ends_with_another_failure() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::ReplicationClientConnecting);
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Halt))));
    harness.after(30);
    harness.on(Event::SourceEnded(2, Some(failure(RecoveryAction::Retry))));
    assert_eq!((harness.machine.step(), harness.machine.halt_reason()), (ManagerStep::BackingOff, None));
}

#[test]
fn the_total_retry_time_is_reported_when_the_server_streams_again() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::WaitingForStreamingConfirmation);
    let recovered = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Recovered { retried_for, tries } => Some((retried_for.as_secs(), *tries)),
            _ => None,
        })
    };
    assert_eq!(recovered(harness.on(Event::Confirmed(1))), None, "nothing has failed");
    for (round, tries) in [(0, 2), (1, 4)] {
        for _ in 0..2 {
            let attempt = harness.attempt();
            harness.on(Event::SourceEnded(attempt, Some(failure(RecoveryAction::Retry))));
            harness.after(10);
        }
        let attempt = harness.attempt();
        for event in [Event::Connected as fn(u64) -> Event, Event::LockTaken, Event::Configured, |attempt| {
            Event::ConsumerReady(attempt, None)
        }] {
            harness.on(event(attempt));
        }
        assert_eq!(recovered(harness.on(Event::Confirmed(attempt))), Some((20, tries)), "outage {round}");
    }
}

#[test]
fn a_halted_manager_closes_its_pools_and_starts_new_ones_on_retry() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::ConnectionPoolConnecting);
    let halted = harness.on(Event::PoolsFailed(failure(RecoveryAction::Halt))).to_vec();
    assert!(halted.contains(&Effect::ClosePools));
    assert_eq!(harness.machine.step(), ManagerStep::Halted);
    harness.on(Event::PoolsChanged(ready()));
    assert!(
        !harness.machine.conditions().holds(ReadyCondition::AdminConnectionPoolReady),
        "a report of the closed pools"
    );
    harness.on(Event::Retry);
    for event in [Event::Connected, Event::LockTaken] {
        harness.on(event(2));
    }
    assert!(harness.on(Event::Configured(2)).contains(&Effect::StartPools));
    assert_eq!(harness.machine.step(), ManagerStep::ConnectionPoolConnecting);
}

#[test]
fn a_halt_failure_after_the_first_success_is_retried() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Halt))));
    assert_eq!(harness.machine.step(), ManagerStep::BackingOff);
    assert_eq!(harness.machine.failure().map(|failure| failure.action), Some(RecoveryAction::Halt));
}

#[test]
fn an_unusable_slot_is_recreated_until_setup_succeeds() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::RecreateSlot))));
    assert!(harness.after(1).contains(&Effect::OpenSource { attempt: 2, recreate_slot: true }));
    harness.on(Event::SourceEnded(2, Some(failure(RecoveryAction::Retry))));
    assert!(harness.after(2).contains(&Effect::OpenSource { attempt: 3, recreate_slot: true }));
    harness.on(Event::Connected(3));
    harness.on(Event::LockTaken(3));
    harness.on(Event::Configured(3));
    harness.on(Event::SourceEnded(3, None));
    assert!(harness.after(4).contains(&Effect::OpenSource { attempt: 4, recreate_slot: false }));
}

#[test]
fn the_lock_is_checked_every_ten_seconds_and_setup_and_backend_every_five() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::AcquiringLock);
    for _ in 0..3 {
        assert_eq!(harness.after(9), []);
        assert_eq!(harness.after(1), [Effect::CheckLock(1)]);
    }
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::ConfiguringConnection);
    assert_eq!(harness.after(5), [Effect::DiagnoseSetup(1)]);
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::WaitingForStreamingConfirmation);
    assert_eq!(harness.after(5), [Effect::CheckBackend(1)]);
    harness.on(Event::BackendChecked(1, true));
    assert_eq!(harness.machine.step(), ManagerStep::WaitingForStreamingConfirmation);
    harness.on(Event::BackendChecked(1, false));
    assert_eq!(harness.machine.step(), ManagerStep::BackingOff);
}

#[test]
fn the_publication_is_reconciled_when_streaming_starts_and_every_minute() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::WaitingForStreamingConfirmation);
    assert!(harness.on(Event::Confirmed(1)).contains(&Effect::Reconcile));
    for _ in 0..2 {
        assert!(!harness.after(59).contains(&Effect::Reconcile));
        assert!(harness.after(1).contains(&Effect::Reconcile));
    }
}

#[test]
fn an_unused_database_sleeps_and_a_use_wakes_it() {
    let mut harness = MachineHarness::new(Some(Duration::from_secs(30))).up_to(ManagerStep::Streaming);
    let used = harness.now + Duration::from_secs(20);
    harness.machine.set_use(used, true);
    assert!(!harness.after(40).contains(&Effect::ClosePools), "the database is in use");
    harness.machine.set_use(used, false);
    let closing = harness.after(11).to_vec();
    assert!(
        closing.contains(&Effect::ClosePools) && closing.contains(&Effect::CloseSource(1)),
        "{closing:?}"
    );
    harness.on(Event::SourceEnded(1, None));
    assert_eq!(harness.machine.step(), ManagerStep::FallingAsleep);
    assert!(harness.on(Event::PoolsClosed).contains(&Effect::Notify(ManagerEvent::ScaledDown)));
    assert_eq!((harness.machine.step(), harness.machine.wake_at()), (ManagerStep::Sleeping, None));
    harness.on(Event::UseRequested);
    assert_eq!(harness.machine.step(), ManagerStep::ReplicationClientConnecting);
}

#[test]
fn a_database_in_use_is_checked_for_idleness_at_every_interval() {
    let mut harness = MachineHarness::new(Some(Duration::from_secs(3))).up_to(ManagerStep::Streaming);
    for _ in 0..2 {
        harness.machine.set_use(harness.now, true);
        assert_eq!(harness.machine.wake_at(), Some(harness.now + Duration::from_secs(3)));
        harness.after(3);
        assert_eq!(harness.machine.step(), ManagerStep::Streaming);
    }
    let last_use = harness.now - Duration::from_secs(1);
    harness.machine.set_use(last_use, false);
    assert_eq!(harness.machine.wake_at(), Some(last_use + Duration::from_secs(3)));
}

#[test]
fn a_use_while_falling_asleep_wakes_it_once_it_sleeps() {
    let mut harness = MachineHarness::new(Some(Duration::from_secs(1))).up_to(ManagerStep::Streaming);
    harness.after(2);
    harness.on(Event::UseRequested);
    harness.on(Event::PoolsClosed);
    harness.on(Event::SourceEnded(1, None));
    assert_eq!(harness.machine.step(), ManagerStep::ReplicationClientConnecting);
}

#[test]
fn five_panics_in_a_minute_halt_it_and_four_do_not() {
    let panic = || FailureReport { panicked: true, ..failure(RecoveryAction::Retry) };
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    for round in 1..=4 {
        let attempt = harness.attempt();
        harness.on(Event::SourceEnded(attempt, Some(panic())));
        assert_eq!(harness.machine.step(), ManagerStep::BackingOff, "panic {round}");
        harness.after(10);
    }
    let attempt = harness.attempt();
    harness.on(Event::SourceEnded(attempt, Some(panic())));
    assert_eq!(harness.machine.step(), ManagerStep::Halted);
    assert_eq!(harness.machine.halt_reason(), None, "the database isn't the cause");
}

#[test]
fn shutdown_steps_run_in_order_and_drop_slot_and_publication_only_on_request() {
    for drop_slot in [false, true] {
        let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
        let mut effects = harness.on(Event::Shutdown { drop_slot }).to_vec();
        let mut order = Vec::new();
        while let ManagerStep::Stopping(step) = harness.machine.step() {
            assert!(effects.contains(&Effect::Stop(step)));
            order.push(step);
            effects = harness.on(Event::StopDone(step)).to_vec();
        }
        let expected: Vec<_> = StopStep::ALL
            .into_iter()
            .filter(|step| {
                drop_slot || !matches!(step, StopStep::DroppingPublication | StopStep::DroppingSlot)
            })
            .collect();
        assert_eq!(order, expected);
        assert_eq!(harness.machine.step(), ManagerStep::Stopped);
        assert!(effects.contains(&Effect::Notify(ManagerEvent::Stopped)));
    }
}

#[test]
fn a_shutdown_step_that_exceeds_its_deadline_is_skipped() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    harness.on(Event::Shutdown { drop_slot: true });
    let mut abandoned = false;
    for _ in 0..40 {
        abandoned |= harness.after(1).contains(&Effect::AbandonSource(1));
    }
    assert!(abandoned);
    assert_eq!(harness.machine.step(), ManagerStep::Stopped);
}

#[test]
fn it_is_ready_only_after_the_server_confirmed_the_stream() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::WaitingForStreamingConfirmation);
    assert!(!harness.machine.conditions().all_hold());
    assert!(harness.on(Event::Confirmed(1)).contains(&Effect::Notify(ManagerEvent::Ready)));
    assert!(harness.machine.conditions().all_hold());
}

#[test]
fn repeated_failures_of_a_stream_increase_the_backoff() {
    let mut harness = MachineHarness::new(None);
    harness.on(Event::Start);
    for tries in 1..=3 {
        harness.set_up();
        let attempt = harness.attempt();
        harness.on(Event::SourceEnded(attempt, Some(failure(RecoveryAction::Retry))));
        assert_eq!(harness.machine.backoff().tries(), tries);
        harness.after(10);
    }
}

#[test]
fn a_stream_that_makes_progress_or_lasts_resets_the_backoff() {
    let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
    for is_flowing in [true, false] {
        let attempt = harness.attempt();
        harness.on(Event::SourceEnded(attempt, Some(failure(RecoveryAction::Retry))));
        harness.after(10);
        for event in [
            Event::Connected as fn(u64) -> Event,
            Event::LockTaken,
            Event::Configured,
            |attempt| Event::ConsumerReady(attempt, None),
            Event::Confirmed,
        ] {
            let attempt = harness.attempt();
            harness.on(event(attempt));
        }
        assert_eq!((harness.machine.step(), harness.machine.backoff().tries()), (ManagerStep::Streaming, 1));
        match is_flowing {
            true => _ = harness.on(Event::DurableAdvanced(2)),
            false => _ = harness.after(30),
        }
        assert_eq!(harness.machine.backoff().tries(), 0);
    }
}

#[test]
fn without_the_lock_no_checkpoint_is_saved_and_no_publication_is_dropped() {
    for step in [ManagerStep::AcquiringLock, ManagerStep::BackingOff] {
        let mut harness = match step {
            ManagerStep::BackingOff => {
                let mut harness = MachineHarness::new(None).up_to(ManagerStep::Streaming);
                harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Retry))));
                harness
            }
            step => MachineHarness::new(None).up_to(step),
        };
        let mut performed = harness.on(Event::Shutdown { drop_slot: true }).to_vec();
        for _ in 0..40 {
            performed.extend_from_slice(harness.after(1));
        }
        for stop in [StopStep::Checkpointing, StopStep::DroppingPublication] {
            assert!(!performed.contains(&Effect::Stop(stop)), "{step}: {stop:?}");
        }
        assert!(performed.contains(&Effect::Stop(StopStep::DroppingSlot)));
    }
}

#[test]
fn connection_and_shape_status_follow_the_conditions() {
    use crate::status::{ConnectionStatus as Connection, ManagerStatus, ShapeStatus as Shapes};
    let status = |harness: &MachineHarness| {
        let status = ManagerStatus::of(&harness.machine);
        (status.connection, status.shapes)
    };
    for (step, expected) in [
        (ManagerStep::ReplicationClientConnecting, (Connection::Starting, Shapes::Starting)),
        (ManagerStep::AcquiringLock, (Connection::WaitingOnLock, Shapes::Starting)),
        (ManagerStep::ConfiguringConnection, (Connection::Starting, Shapes::Starting)),
        (ManagerStep::ConnectionPoolConnecting, (Connection::Starting, Shapes::Starting)),
        (ManagerStep::StartShapes, (Connection::Starting, Shapes::Starting)),
        (ManagerStep::WaitingForStreamingConfirmation, (Connection::Up, Shapes::Starting)),
        (ManagerStep::Streaming, (Connection::Up, Shapes::Up)),
    ] {
        assert_eq!(status(&MachineHarness::new(None).up_to(step)), expected, "{step}");
    }
    let mut harness = MachineHarness::new(Some(Duration::from_secs(60))).up_to(ManagerStep::Streaming);
    let lacks_snapshots = PoolReport { snapshot: pool(PoolStatus::Repopulating), ..ready() };
    harness.on(Event::PoolsChanged(lacks_snapshots));
    assert_eq!(status(&harness), (Connection::Starting, Shapes::Up), "a pool lacks connections");
    let conditions = harness.machine.conditions();
    assert!(conditions.holds(ReadyCondition::AdminConnectionPoolReady));
    assert!(!conditions.holds(ReadyCondition::SnapshotConnectionPoolReady));
    harness.on(Event::PoolsChanged(ready()));
    assert_eq!(status(&harness), (Connection::Up, Shapes::Up));
    harness.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Retry))));
    assert_eq!(status(&harness), (Connection::Starting, Shapes::Up), "shapes survive a lost connection");
    harness.after(1);
    for event in [Event::Connected, Event::LockTaken, Event::Configured] {
        harness.on(event(2));
    }
    assert_eq!(harness.machine.step(), ManagerStep::StartShapes);
    assert_eq!(status(&harness), (Connection::Starting, Shapes::Up), "the checks are repeated");
    harness.on(Event::ConsumerReady(2, None));
    harness.on(Event::Confirmed(2));
    assert_eq!(status(&harness), (Connection::Up, Shapes::Up));
    harness.after(61);
    assert_eq!(status(&harness).0, Connection::Sleeping);
    let mut halted = MachineHarness::new(None).up_to(ManagerStep::ReplicationClientConnecting);
    halted.on(Event::SourceEnded(1, Some(failure(RecoveryAction::Halt))));
    assert_eq!(status(&halted).0, Connection::Down);
}

fn any_event() -> impl Strategy<Value = (u8, u8, u8)> {
    (0..23_u8, any::<u8>(), 0..15_u8)
}

fn event_of(kind: u8, detail: u8, attempt: u64) -> Event {
    let action = match detail % 3 {
        0 => RecoveryAction::Halt,
        1 => RecoveryAction::RecreateSlot,
        _ => RecoveryAction::Retry,
    };
    let failure =
        FailureReport { action, reason: "test", text: "it broke".into(), panicked: detail.is_multiple_of(7) };
    let status = |bits: u8| match bits % 4 {
        0 => PoolStatus::Starting,
        1 => PoolStatus::Repopulating,
        _ => PoolStatus::Ready,
    };
    let report = PoolReport { admin: pool(status(detail)), snapshot: pool(status(detail >> 2)) };
    let stop = StopStep::ALL[usize::from(detail) % StopStep::ALL.len()];
    match kind {
        0 => Event::Start,
        1 | 2 => Event::Connected(attempt),
        3 => Event::LockBusy(attempt, "busy".into()),
        4 | 5 => Event::LockTaken(attempt),
        6 | 7 => Event::Configured(attempt),
        8 => Event::Confirmed(attempt),
        9 => Event::BackendChecked(attempt, detail.is_multiple_of(2)),
        10 => Event::SourceEnded(attempt, (!detail.is_multiple_of(4)).then_some(failure)),
        11 | 12 => Event::PoolsChanged(report),
        13 => Event::PoolsFailed(failure),
        14 => Event::PoolsClosed,
        15 | 16 => Event::ConsumerReady(attempt, None),
        17 => Event::ConsumerFailed(attempt, failure),
        18 => Event::PublicationLost(failure),
        19 => Event::UseRequested,
        20 => Event::Retry,
        21 if detail.is_multiple_of(2) => Event::DurableAdvanced(attempt),
        21 => Event::SetupBlocked(attempt, "blocked".into()),
        _ if detail < 8 => Event::Shutdown { drop_slot: detail.is_multiple_of(2) },
        _ => Event::StopDone(stop),
    }
}

/// The connections that a worker would have open.
#[derive(Default)]
struct OpenConnections {
    sources: BTreeSet<u64>,
    stopped: bool,
}

impl OpenConnections {
    fn perform(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::OpenSource { attempt, .. } => {
                    assert!(!self.stopped, "opened after the end");
                    assert!(self.sources.is_empty(), "a second replication connection");
                    self.sources.insert(*attempt);
                }
                Effect::AbandonSource(attempt) => {
                    assert!(self.sources.remove(attempt), "abandoned a connection that isn't open");
                }
                Effect::CheckLock(attempt)
                | Effect::DiagnoseSetup(attempt)
                | Effect::PrepareConsumer(attempt)
                | Effect::StartStreaming(attempt)
                | Effect::CheckBackend(attempt)
                | Effect::CloseSource(attempt) => {
                    assert!(self.sources.contains(attempt), "a command for a connection that isn't open");
                }
                Effect::Notify(ManagerEvent::Stopped) => self.stopped = true,
                Effect::Entered(_)
                | Effect::StartPools
                | Effect::Reconcile
                | Effect::MeasureSlot
                | Effect::ClosePools
                | Effect::Stop(_)
                | Effect::Recovered { .. }
                | Effect::Notify(_) => {}
            }
        }
    }
}

/// Returns whether the state can be left: by a timer, by an effect in progress, or by a caller.
fn can_leave_state(machine: &ManagerMachine) -> bool {
    match machine.step() {
        ManagerStep::ReplicationClientConnecting
        | ManagerStep::ConnectionPoolConnecting
        | ManagerStep::StartShapes => machine.source().is_some(),
        // A caller's event leaves the state.
        ManagerStep::Sleeping | ManagerStep::Stopped | ManagerStep::StartReplicationClient => true,
        ManagerStep::BackingOff
        | ManagerStep::Halted
        | ManagerStep::AcquiringLock
        | ManagerStep::ConfiguringConnection
        | ManagerStep::StartConnectionPool
        | ManagerStep::StartStreaming
        | ManagerStep::WaitingForStreamingConfirmation
        | ManagerStep::Streaming
        | ManagerStep::FallingAsleep
        | ManagerStep::Stopping(_) => machine.wake_at().is_some(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_histories_keep_one_connection_and_every_state_can_be_left(
        events in prop::collection::vec(any_event(), 0..120),
        sleeps in any::<bool>(),
    ) {
        let mut harness = MachineHarness::new(sleeps.then_some(Duration::from_secs(20)));
        let mut open = OpenConnections::default();
        for (kind, detail, secs) in events {
            // Some events belong to an earlier connection.
            let current = harness.machine.source().unwrap_or(0);
            let attempt = if detail % 16 == 15 { current.wrapping_sub(1) } else { current };
            let event = event_of(kind, detail, attempt);
            if matches!(event, Event::SourceEnded(..)) {
                open.sources.remove(&attempt);
            }
            open.perform(harness.on(event));
            open.perform(harness.after(secs.into()));
            let machine = &harness.machine;
            prop_assert_eq!(machine.source(), open.sources.iter().next().copied());
            prop_assert!(can_leave_state(machine), "{:?}", machine);
            let asleep = matches!(machine.step(), ManagerStep::Sleeping | ManagerStep::Halted | ManagerStep::Stopped);
            prop_assert!(!asleep || open.sources.is_empty(), "{:?}", machine);
            if machine.step() == ManagerStep::Streaming {
                let wanted = [ReadyCondition::PgLockAcquired, ReadyCondition::ReplicationClientReady, ReadyCondition::IntegrityChecksPassed];
                prop_assert!(wanted.iter().all(|condition| machine.conditions().holds(*condition)));
            }
        }
        // In any state, shutdown ends.
        open.perform(harness.on(Event::Shutdown { drop_slot: false }));
        for _ in 0..60 {
            open.perform(harness.after(1));
        }
        prop_assert_eq!(harness.machine.step(), ManagerStep::Stopped);
        prop_assert!(open.stopped && open.sources.is_empty());
    }

    #[test]
    fn from_every_history_streaming_can_be_reached(events in prop::collection::vec(any_event(), 0..60)) {
        let mut harness = MachineHarness::new(None);
        harness.on(Event::Start);
        for (kind, detail, secs) in events {
            let event = event_of(kind, detail, harness.machine.source().unwrap_or(0));
            if !matches!(event, Event::Shutdown { .. }) {
                harness.on(event);
            }
            harness.after(secs.into());
        }
        for _ in 0..3 {
            harness.on(Event::Retry);
            harness.on(Event::UseRequested);
            harness.after(10);
        }
        harness.set_up();
        prop_assert_eq!(harness.machine.step().phase(), ManagerPhase::Running);
    }
}
