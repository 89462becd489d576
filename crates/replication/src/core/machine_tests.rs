//! The machine by itself: scenarios, and random histories.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::conditions::Condition;
use super::continuity::ResetReason;
use super::machine::{Effect, Event, Machine, PoolNews, StackEvent, Trouble, Verdict};
use super::step::{Phase, Step, StopStep};
use crate::pools::PoolStatus;

struct Trial {
    machine: Machine,
    now: Instant,
    out: Vec<Effect>,
}

impl Trial {
    fn new(idle_after: Option<Duration>) -> Self {
        let now = Instant::now();
        Trial { machine: Machine::new(idle_after, Duration::from_secs(10), 1, now), now, out: Vec::new() }
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

    fn up_to(mut self, step: Step) -> Self {
        let events: [fn(u64) -> Event; 6] = [
            Event::Connected,
            Event::LockTaken,
            Event::Configured,
            |_| Event::Pools(ready()),
            |attempt| Event::ConsumerReady(attempt, None),
            Event::Confirmed,
        ];
        self.on(Event::Start);
        for event in events {
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

fn ready() -> PoolNews {
    PoolNews { admin: PoolStatus::Ready, snapshot: PoolStatus::Ready, why: None }
}

fn trouble(verdict: Verdict) -> Trouble {
    Trouble { verdict, reason: "test", text: "it broke".into(), panicked: false }
}

fn entered(effects: &[Effect]) -> Vec<Step> {
    let step = |effect: &Effect| match effect {
        Effect::Entered(step) => Some(*step),
        _ => None,
    };
    effects.iter().filter_map(step).collect()
}

#[test]
fn every_step_of_the_way_up_is_passed_in_order() {
    let mut trial = Trial::new(None);
    let mut passed = entered(trial.on(Event::Start));
    for event in [
        Event::Connected(1),
        Event::LockTaken(1),
        Event::Configured(1),
        Event::Pools(ready()),
        Event::ConsumerReady(1, Some(ResetReason::First)),
        Event::Confirmed(1),
    ] {
        passed.extend(entered(trial.on(event)));
    }
    assert_eq!(passed, Step::WAY_UP);
    assert!(trial.machine.conditions().all_hold());
}

#[test]
fn the_pools_are_kept_when_the_stream_is_lost() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    trial.on(Event::SourceEnded(1, Some(trouble(Verdict::Retry))));
    assert_eq!(trial.machine.step(), Step::BackingOff);
    assert!(trial.machine.conditions().holds(Condition::AdminConnectionPoolReady));
    assert!(!trial.machine.conditions().holds(Condition::ReplicationClientReady));
    let opened = trial.after(1).to_vec();
    assert!(opened.contains(&Effect::OpenSource { attempt: 2, recreate_slot: false }), "{opened:?}");
    trial.on(Event::Connected(2));
    trial.on(Event::LockTaken(2));
    let configured = trial.on(Event::Configured(2));
    assert!(!configured.contains(&Effect::StartPools) && configured.contains(&Effect::PrepareConsumer(2)));
}

#[test]
fn news_of_an_earlier_connection_changes_nothing() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    trial.on(Event::SourceEnded(1, Some(trouble(Verdict::Retry))));
    trial.after(1);
    for event in [
        Event::Connected(1),
        Event::SourceEnded(1, None),
        Event::Confirmed(1),
        Event::LockTaken(1),
        Event::Configured(1),
    ] {
        assert_eq!(trial.on(event), []);
        assert_eq!(trial.machine.step(), Step::ReplicationClientConnecting);
    }
}

#[test]
fn what_is_fatal_at_first_halts_and_a_person_can_have_it_tried_again() {
    let mut trial = Trial::new(None).up_to(Step::ReplicationClientConnecting);
    let halted = trial.on(Event::SourceEnded(1, Some(trouble(Verdict::Fatal)))).to_vec();
    assert!(halted.contains(&Effect::Tell(StackEvent::Halted { why: "it broke".into() })));
    assert_eq!(trial.machine.wake_at(), None);
    trial.on(Event::Retry);
    assert_eq!(trial.machine.step(), Step::ReplicationClientConnecting);
}

#[test]
fn what_has_given_up_closes_its_pools_and_starts_them_anew_when_it_is_tried_again() {
    let mut trial = Trial::new(None).up_to(Step::ConnectionPoolConnecting);
    let halted = trial.on(Event::PoolsFailed(trouble(Verdict::Fatal))).to_vec();
    assert!(halted.contains(&Effect::ClosePools));
    assert_eq!((trial.machine.step(), trial.machine.wake_at()), (Step::Halted, None));
    trial.on(Event::Pools(ready()));
    assert!(
        !trial.machine.conditions().holds(Condition::AdminConnectionPoolReady),
        "news of those that were closed"
    );
    trial.on(Event::Retry);
    for event in [Event::Connected, Event::LockTaken] {
        trial.on(event(2));
    }
    assert!(trial.on(Event::Configured(2)).contains(&Effect::StartPools));
    assert_eq!(trial.machine.step(), Step::ConnectionPoolConnecting);
}

#[test]
fn what_is_fatal_later_is_tried_again_since_it_worked_before() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    trial.on(Event::SourceEnded(1, Some(trouble(Verdict::Fatal))));
    assert_eq!(trial.machine.step(), Step::BackingOff);
    assert_eq!(trial.machine.trouble().map(|trouble| trouble.verdict), Some(Verdict::Fatal));
}

#[test]
fn a_slot_that_is_of_no_use_is_made_anew_until_that_worked() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    trial.on(Event::SourceEnded(1, Some(trouble(Verdict::DropSlot))));
    assert!(trial.after(1).contains(&Effect::OpenSource { attempt: 2, recreate_slot: true }));
    trial.on(Event::SourceEnded(2, Some(trouble(Verdict::Retry))));
    assert!(trial.after(2).contains(&Effect::OpenSource { attempt: 3, recreate_slot: true }));
    trial.on(Event::Connected(3));
    trial.on(Event::LockTaken(3));
    trial.on(Event::Configured(3));
    trial.on(Event::SourceEnded(3, None));
    assert!(trial.after(4).contains(&Effect::OpenSource { attempt: 4, recreate_slot: false }));
}

#[test]
fn the_lock_is_looked_after_every_ten_seconds_and_configuring_and_confirming_every_five() {
    let mut trial = Trial::new(None).up_to(Step::AcquiringLock);
    for _ in 0..3 {
        assert_eq!(trial.after(9), []);
        assert_eq!(trial.after(1), [Effect::CheckLock(1)]);
    }
    let mut trial = Trial::new(None).up_to(Step::ConfiguringConnection);
    assert_eq!(trial.after(5), [Effect::ExplainSetup(1)]);
    let mut trial = Trial::new(None).up_to(Step::WaitingForStreamingConfirmation);
    assert_eq!(trial.after(5), [Effect::CheckAlive(1)]);
    trial.on(Event::Alive(1, true));
    assert_eq!(trial.machine.step(), Step::WaitingForStreamingConfirmation);
    trial.on(Event::Alive(1, false));
    assert_eq!(trial.machine.step(), Step::BackingOff);
}

#[test]
fn the_publication_is_looked_at_as_soon_as_changes_flow_and_every_minute() {
    let mut trial = Trial::new(None).up_to(Step::WaitingForStreamingConfirmation);
    assert!(trial.on(Event::Confirmed(1)).contains(&Effect::Reconcile));
    for _ in 0..2 {
        assert!(!trial.after(59).contains(&Effect::Reconcile));
        assert!(trial.after(1).contains(&Effect::Reconcile));
    }
}

#[test]
fn nobody_using_it_lets_it_sleep_and_a_use_wakes_it() {
    let mut trial = Trial::new(Some(Duration::from_secs(30))).up_to(Step::Streaming);
    let used = trial.now + Duration::from_secs(20);
    trial.machine.set_use(used, true);
    assert!(!trial.after(40).contains(&Effect::ClosePools), "somebody uses it");
    trial.machine.set_use(used, false);
    let closing = trial.after(11).to_vec();
    assert!(
        closing.contains(&Effect::ClosePools) && closing.contains(&Effect::CloseSource(1)),
        "{closing:?}"
    );
    trial.on(Event::SourceEnded(1, None));
    assert_eq!(trial.machine.step(), Step::FallingAsleep);
    assert!(trial.on(Event::PoolsClosed).contains(&Effect::Tell(StackEvent::ScaledDown)));
    assert_eq!((trial.machine.step(), trial.machine.wake_at()), (Step::Sleeping, None));
    trial.on(Event::Used);
    assert_eq!(trial.machine.step(), Step::ReplicationClientConnecting);
}

#[test]
fn while_somebody_uses_it_it_is_looked_at_again_and_again_whether_that_is_over() {
    let mut trial = Trial::new(Some(Duration::from_secs(3))).up_to(Step::Streaming);
    for _ in 0..2 {
        trial.machine.set_use(trial.now, true);
        assert_eq!(trial.machine.wake_at(), Some(trial.now + Duration::from_secs(3)));
        trial.after(3);
        assert_eq!(trial.machine.step(), Step::Streaming);
    }
    let left = trial.now - Duration::from_secs(1);
    trial.machine.set_use(left, false);
    assert_eq!(trial.machine.wake_at(), Some(left + Duration::from_secs(3)));
}

#[test]
fn a_use_while_it_falls_asleep_wakes_it_once_it_sleeps() {
    let mut trial = Trial::new(Some(Duration::from_secs(1))).up_to(Step::Streaming);
    trial.after(2);
    trial.on(Event::Used);
    trial.on(Event::PoolsClosed);
    trial.on(Event::SourceEnded(1, None));
    assert_eq!(trial.machine.step(), Step::ReplicationClientConnecting);
}

#[test]
fn five_panics_in_a_minute_halt_it_and_four_do_not() {
    let panic = || Trouble { panicked: true, ..trouble(Verdict::Retry) };
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    for round in 1..=4 {
        let attempt = trial.attempt();
        trial.on(Event::SourceEnded(attempt, Some(panic())));
        assert_eq!(trial.machine.step(), Step::BackingOff, "panic {round}");
        trial.after(10);
    }
    let attempt = trial.attempt();
    trial.on(Event::SourceEnded(attempt, Some(panic())));
    assert_eq!(trial.machine.step(), Step::Halted);
}

#[test]
fn the_way_down_has_the_seeds_order_and_drops_only_what_it_is_asked_to() {
    for drop_slot in [false, true] {
        let mut trial = Trial::new(None).up_to(Step::Streaming);
        let mut effects = trial.on(Event::Shutdown { drop_slot }).to_vec();
        let mut order = Vec::new();
        while let Step::Stopping(step) = trial.machine.step() {
            assert!(effects.contains(&Effect::Stop(step)));
            order.push(step);
            effects = trial.on(Event::StopDone(step)).to_vec();
        }
        let expected: Vec<_> = StopStep::ALL
            .into_iter()
            .filter(|step| {
                drop_slot || !matches!(step, StopStep::DroppingPublication | StopStep::DroppingSlot)
            })
            .collect();
        assert_eq!(order, expected);
        assert_eq!(trial.machine.step(), Step::Stopped);
        assert!(effects.contains(&Effect::Tell(StackEvent::Stopped)));
    }
}

#[test]
fn a_step_of_the_way_down_that_takes_too_long_is_passed_over() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    trial.on(Event::Shutdown { drop_slot: true });
    let mut abandoned = false;
    for _ in 0..40 {
        abandoned |= trial.after(1).contains(&Effect::AbandonSource(1));
    }
    assert!(abandoned);
    assert_eq!(trial.machine.step(), Step::Stopped);
}

#[test]
fn it_is_ready_when_the_server_has_confirmed_and_not_before() {
    let mut trial = Trial::new(None).up_to(Step::WaitingForStreamingConfirmation);
    assert!(!trial.machine.conditions().all_hold());
    assert!(trial.on(Event::Confirmed(1)).contains(&Effect::Tell(StackEvent::Ready)));
    assert!(trial.machine.conditions().all_hold());
}

#[test]
fn a_stream_that_fails_again_and_again_is_waited_for_longer_and_longer() {
    let mut trial = Trial::new(None);
    trial.on(Event::Start);
    for tries in 1..=3 {
        for event in [
            Event::Connected as fn(u64) -> Event,
            Event::LockTaken,
            Event::Configured,
            |_| Event::Pools(ready()),
            |attempt| Event::ConsumerReady(attempt, None),
            Event::Confirmed,
            |attempt| Event::SourceEnded(attempt, Some(trouble(Verdict::Retry))),
        ] {
            let attempt = trial.attempt();
            trial.on(event(attempt));
        }
        assert_eq!(trial.machine.backoff().tries(), tries);
        trial.after(10);
    }
}

#[test]
fn what_flows_or_lasts_is_well_again() {
    let mut trial = Trial::new(None).up_to(Step::Streaming);
    for is_flowing in [true, false] {
        let attempt = trial.attempt();
        trial.on(Event::SourceEnded(attempt, Some(trouble(Verdict::Retry))));
        trial.after(10);
        for event in [
            Event::Connected as fn(u64) -> Event,
            Event::LockTaken,
            Event::Configured,
            |attempt| Event::ConsumerReady(attempt, None),
            Event::Confirmed,
        ] {
            let attempt = trial.attempt();
            trial.on(event(attempt));
        }
        assert_eq!((trial.machine.step(), trial.machine.backoff().tries()), (Step::Streaming, 1));
        match is_flowing {
            true => _ = trial.on(Event::Flowing(2)),
            false => _ = trial.after(30),
        }
        assert_eq!(trial.machine.backoff().tries(), 0);
    }
}

#[test]
fn without_the_lock_nothing_is_saved_and_no_publication_dropped() {
    for step in [Step::AcquiringLock, Step::BackingOff] {
        let mut trial = match step {
            Step::BackingOff => {
                let mut trial = Trial::new(None).up_to(Step::Streaming);
                trial.on(Event::SourceEnded(1, Some(trouble(Verdict::Retry))));
                trial
            }
            step => Trial::new(None).up_to(step),
        };
        let mut performed = trial.on(Event::Shutdown { drop_slot: true }).to_vec();
        for _ in 0..40 {
            performed.extend_from_slice(trial.after(1));
        }
        for stop in [StopStep::Checkpointing, StopStep::DroppingPublication] {
            assert!(!performed.contains(&Effect::Stop(stop)), "{step}: {stop:?}");
        }
        assert!(performed.contains(&Effect::Stop(StopStep::DroppingSlot)));
    }
}

fn any_event() -> impl Strategy<Value = (u8, u8, u8)> {
    (0..23_u8, any::<u8>(), 0..15_u8)
}

fn event_of(kind: u8, detail: u8, attempt: u64) -> Event {
    let verdict = match detail % 3 {
        0 => Verdict::Fatal,
        1 => Verdict::DropSlot,
        _ => Verdict::Retry,
    };
    let trouble =
        Trouble { verdict, reason: "test", text: "it broke".into(), panicked: detail.is_multiple_of(7) };
    let status = |bits: u8| match bits % 4 {
        0 => PoolStatus::Starting,
        1 => PoolStatus::Repopulating,
        _ => PoolStatus::Ready,
    };
    let news = PoolNews { admin: status(detail), snapshot: status(detail >> 2), why: None };
    let stop = StopStep::ALL[usize::from(detail) % StopStep::ALL.len()];
    match kind {
        0 => Event::Start,
        1 | 2 => Event::Connected(attempt),
        3 => Event::LockBusy(attempt, "busy".into()),
        4 | 5 => Event::LockTaken(attempt),
        6 | 7 => Event::Configured(attempt),
        8 => Event::Confirmed(attempt),
        9 => Event::Alive(attempt, detail.is_multiple_of(2)),
        10 => Event::SourceEnded(attempt, (!detail.is_multiple_of(4)).then_some(trouble)),
        11 | 12 => Event::Pools(news),
        13 => Event::PoolsFailed(trouble),
        14 => Event::PoolsClosed,
        15 | 16 => Event::ConsumerReady(attempt, None),
        17 => Event::ConsumerFailed(attempt, trouble),
        18 => Event::PublicationLost(trouble),
        19 => Event::Used,
        20 => Event::Retry,
        21 if detail.is_multiple_of(2) => Event::Flowing(attempt),
        21 => Event::SetupWaits(attempt, "somebody".into()),
        _ if detail < 8 => Event::Shutdown { drop_slot: detail.is_multiple_of(2) },
        _ => Event::StopDone(stop),
    }
}

/// What the shell would have open.
#[derive(Default)]
struct World {
    sources: BTreeSet<u64>,
    stopped: bool,
}

impl World {
    fn perform(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::OpenSource { attempt, .. } => {
                    assert!(!self.stopped, "opened after the end");
                    assert!(self.sources.is_empty(), "a second replication connection");
                    self.sources.insert(*attempt);
                }
                Effect::AbandonSource(attempt) => {
                    assert!(self.sources.remove(attempt), "abandoned what isn't there");
                }
                Effect::CheckLock(attempt)
                | Effect::ExplainSetup(attempt)
                | Effect::PrepareConsumer(attempt)
                | Effect::StartStreaming(attempt)
                | Effect::CheckAlive(attempt)
                | Effect::CloseSource(attempt) => {
                    assert!(self.sources.contains(attempt), "an order for a connection that isn't there");
                }
                Effect::Tell(StackEvent::Stopped) => self.stopped = true,
                Effect::Entered(_)
                | Effect::StartPools
                | Effect::Reconcile
                | Effect::Observe
                | Effect::ClosePools
                | Effect::Stop(_)
                | Effect::Tell(_) => {}
            }
        }
    }
}

/// Whether something will happen by itself: a timer, or an effect that is under way.
fn has_a_way_out(machine: &Machine) -> bool {
    match machine.step() {
        Step::ReplicationClientConnecting | Step::ConnectionPoolConnecting | Step::StartShapes => {
            machine.source().is_some()
        }
        // A caller's word is the way out.
        Step::Sleeping | Step::Halted | Step::Stopped | Step::StartReplicationClient => true,
        Step::BackingOff
        | Step::AcquiringLock
        | Step::ConfiguringConnection
        | Step::StartConnectionPool
        | Step::StartStreaming
        | Step::WaitingForStreamingConfirmation
        | Step::Streaming
        | Step::FallingAsleep
        | Step::Stopping(_) => machine.wake_at().is_some(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_histories_keep_one_connection_and_always_have_a_way_out(
        events in prop::collection::vec(any_event(), 0..120),
        sleeps in any::<bool>(),
    ) {
        let mut trial = Trial::new(sleeps.then_some(Duration::from_secs(20)));
        let mut world = World::default();
        for (kind, detail, secs) in events {
            // Now and then, news of a connection that is gone.
            let current = trial.machine.source().unwrap_or(0);
            let attempt = if detail % 16 == 15 { current.wrapping_sub(1) } else { current };
            let event = event_of(kind, detail, attempt);
            if matches!(event, Event::SourceEnded(..)) {
                world.sources.remove(&attempt);
            }
            world.perform(trial.on(event));
            world.perform(trial.after(secs.into()));
            let machine = &trial.machine;
            prop_assert_eq!(machine.source(), world.sources.iter().next().copied());
            prop_assert!(has_a_way_out(machine), "{:?}", machine);
            let asleep = matches!(machine.step(), Step::Sleeping | Step::Halted | Step::Stopped);
            prop_assert!(!asleep || world.sources.is_empty(), "{:?}", machine);
            if machine.step() == Step::Streaming {
                let wanted = [Condition::PgLockAcquired, Condition::ReplicationClientReady, Condition::IntegrityChecksPassed];
                prop_assert!(wanted.iter().all(|condition| machine.conditions().holds(*condition)));
            }
        }
        // However it stands, it can be shut down, and that ends.
        world.perform(trial.on(Event::Shutdown { drop_slot: false }));
        for _ in 0..60 {
            world.perform(trial.after(1));
        }
        prop_assert_eq!(trial.machine.step(), Step::Stopped);
        prop_assert!(world.stopped && world.sources.is_empty());
    }

    #[test]
    fn from_every_history_the_way_up_is_open(events in prop::collection::vec(any_event(), 0..60)) {
        let mut trial = Trial::new(None);
        trial.on(Event::Start);
        for (kind, detail, secs) in events {
            let event = event_of(kind, detail, trial.machine.source().unwrap_or(0));
            if !matches!(event, Event::Shutdown { .. }) {
                trial.on(event);
            }
            trial.after(secs.into());
        }
        for _ in 0..3 {
            trial.on(Event::Retry);
            trial.on(Event::Used);
            trial.after(10);
        }
        for event in [
            Event::Connected as fn(u64) -> Event,
            Event::LockTaken,
            Event::Configured,
            |_| Event::Pools(ready()),
            |attempt| Event::ConsumerReady(attempt, None),
            Event::Confirmed,
        ] {
            let attempt = trial.attempt();
            trial.on(event(attempt));
        }
        prop_assert_eq!(trial.machine.step().phase(), Phase::Running);
    }
}
