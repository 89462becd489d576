//! The state of one connection, from the first dial to the end.
//!
//! Invariant: the seven states move only along the edges of [`Link::may_become`]. `Failed` and `Closed` hold no request;
//! whoever was open when they were entered has been told why, once.
//! Kept by: [`Link::step`] is the only function that makes a state, and it returns what must be done as [`Effect`]s.
//! Not here: sockets, timers, requests; see `worker.rs`.

use std::time::{Duration, Instant};

use super::backoff::{Backoff, Dice};

/// The seven states of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Made, not yet told to connect.
    Init,
    /// The first dial and handshake; requests queue.
    Connecting,
    /// Connected; requests are written.
    Open,
    /// The wait before the next try; requests are rejected at once.
    Failed,
    /// A further dial and handshake; requests queue.
    Reconnecting,
    /// What is in flight may finish, nothing new comes in.
    Closing,
    /// The end of this link. Connecting again makes a new one.
    Closed,
}

impl State {
    /// The state's name in logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Init => "init",
            State::Connecting => "connecting",
            State::Open => "open",
            State::Failed => "failed",
            State::Reconnecting => "reconnecting",
            State::Closing => "closing",
            State::Closed => "closed",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A state with what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Init,
    Connecting,
    /// `tries`: dials before it opened. `since`: the time at which it opened.
    Open {
        tries: u32,
        since: Instant,
    },
    /// `until` is when the next try starts; `None` when there won't be one.
    Failed {
        attempt: u32,
        until: Option<Instant>,
    },
    Reconnecting {
        attempt: u32,
    },
    Closing {
        until: Instant,
    },
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The owner wants a connection.
    Start,
    /// Dial and handshake succeeded.
    Connected,
    /// The dial failed, or the connection broke. Comes once or more for one loss.
    Lost,
    /// The server can't serve now, and the next dial may find one that can.
    Unfit,
    /// Time passed.
    Tick,
    /// The owner wants no connection any more.
    Close,
    /// Every open request is answered.
    Drained,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Start to dial.
    Dial,
    /// Let go of the socket or the dial under way.
    Hangup,
    /// Fail every open request with the reason of this loss.
    FailOpen,
    /// Fail every open request because the owner closed.
    CancelOpen,
    /// No try will follow: close, keeping the last error.
    GiveUp,
}

/// Longest wait after an [`Event::Unfit`]: a server is there, and is asked whether it can serve again. With the default
/// backoff this makes at most 12 dials in the first second and 2 in each second after that.
pub(crate) const MAX_UNFIT_DELAY: Duration = Duration::from_secs(1);
/// A connection that was open for so long before an [`Event::Unfit`] had found a server that could serve.
pub(crate) const STEADY: Duration = Duration::from_secs(10);

/// What the owner configured.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// `None`: a lost connection is not made again.
    pub(crate) reconnect: Option<Backoff>,
    /// How long `close` lets what is in flight finish.
    pub(crate) close_timeout: Duration,
}

impl Link {
    pub(crate) fn step(
        self,
        event: Event,
        now: Instant,
        policy: &Policy,
        dice: &mut Dice,
        out: &mut Vec<Effect>,
    ) -> Link {
        match self {
            Link::Init => match event {
                Event::Start => {
                    out.push(Effect::Dial);
                    Link::Connecting
                }
                Event::Close => Link::Closed,
                Event::Connected | Event::Lost | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            Link::Connecting => match event {
                Event::Connected => Link::Open { tries: 0, since: now },
                Event::Lost => fail(0, None, now, policy, dice, out),
                Event::Close => close(out),
                Event::Start | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            Link::Open { tries, since } => match event {
                Event::Lost => fail(0, None, now, policy, dice, out),
                Event::Unfit => {
                    // A handshake says nothing about whether the server can serve, and neither does another's reply.
                    let steady = now.saturating_duration_since(since) >= STEADY;
                    fail(if steady { 0 } else { tries }, Some(MAX_UNFIT_DELAY), now, policy, dice, out)
                }
                Event::Close => Link::Closing { until: later(now, policy.close_timeout) },
                Event::Start | Event::Connected | Event::Tick | Event::Drained => self,
            },
            Link::Failed { attempt, until } => match event {
                Event::Tick if until.is_some_and(|until| now >= until) => {
                    out.push(Effect::Dial);
                    Link::Reconnecting { attempt }
                }
                Event::Close => close(out),
                // The second report of the same loss changes nothing.
                Event::Lost
                | Event::Unfit
                | Event::Tick
                | Event::Start
                | Event::Connected
                | Event::Drained => self,
            },
            Link::Reconnecting { attempt } => match event {
                Event::Connected => Link::Open { tries: attempt, since: now },
                Event::Lost => fail(attempt, None, now, policy, dice, out),
                Event::Close => close(out),
                Event::Start | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            Link::Closing { until } => match event {
                Event::Drained => close(out),
                Event::Tick if now >= until => close(out),
                Event::Lost => {
                    out.extend([Effect::Hangup, Effect::FailOpen]);
                    Link::Closed
                }
                Event::Tick | Event::Unfit | Event::Start | Event::Connected | Event::Close => self,
            },
            Link::Closed => match event {
                Event::Start
                | Event::Connected
                | Event::Lost
                | Event::Unfit
                | Event::Tick
                | Event::Close
                | Event::Drained => self,
            },
        }
    }

    pub(crate) fn state(&self) -> State {
        match self {
            Link::Init => State::Init,
            Link::Connecting => State::Connecting,
            Link::Open { .. } => State::Open,
            Link::Failed { .. } => State::Failed,
            Link::Reconnecting { .. } => State::Reconnecting,
            Link::Closing { .. } => State::Closing,
            Link::Closed => State::Closed,
        }
    }

    /// Tries since the connection was last open.
    pub(crate) fn attempt(&self) -> u32 {
        match self {
            Link::Failed { attempt, .. } | Link::Reconnecting { attempt } => *attempt,
            Link::Init | Link::Connecting | Link::Open { .. } | Link::Closing { .. } | Link::Closed => 0,
        }
    }

    /// When `Tick` will change something.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self {
            Link::Failed { until, .. } => *until,
            Link::Closing { until } => Some(*until),
            Link::Init | Link::Connecting | Link::Open { .. } | Link::Reconnecting { .. } | Link::Closed => {
                None
            }
        }
    }

    /// The edges of the picture in ARCHITECTURE.md. A worker that is cancelled goes to `Closed` from everywhere.
    #[cfg(test)]
    pub(crate) fn may_become(from: State, to: State) -> bool {
        use State::*;
        match from {
            Init => matches!(to, Connecting | Closed),
            Connecting => matches!(to, Open | Failed | Closed),
            Open => matches!(to, Failed | Closing | Closed),
            Failed => matches!(to, Reconnecting | Closed),
            Reconnecting => matches!(to, Open | Failed | Closed),
            Closing => matches!(to, Closed),
            Closed => false,
        }
    }
}

fn fail(
    tries: u32,
    longest: Option<Duration>,
    now: Instant,
    policy: &Policy,
    dice: &mut Dice,
    out: &mut Vec<Effect>,
) -> Link {
    out.extend([Effect::Hangup, Effect::FailOpen]);
    let attempt = tries.saturating_add(1);
    match &policy.reconnect {
        Some(backoff) => {
            let backoff = longest.map_or_else(|| backoff.clone(), |longest| backoff.capped(longest));
            Link::Failed { attempt, until: Some(later(now, backoff.delay(attempt, dice.roll()))) }
        }
        None => {
            out.push(Effect::GiveUp);
            Link::Failed { attempt, until: None }
        }
    }
}

/// `now + wait`, or so late that nobody will notice, where the clock ends before that.
fn later(now: Instant, wait: Duration) -> Instant {
    const AN_AGE: Duration = Duration::from_secs(1 << 30);
    now + wait.min(AN_AGE)
}

fn close(out: &mut Vec<Effect>) -> Link {
    out.extend([Effect::Hangup, Effect::CancelOpen]);
    Link::Closed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy { reconnect: Some(Backoff::default()), close_timeout: Duration::from_secs(5) }
    }

    fn open(since: Instant) -> Link {
        Link::Open { tries: 0, since }
    }

    fn step(link: Link, event: Event, now: Instant, policy: &Policy) -> (Link, Vec<Effect>) {
        let mut out = Vec::new();
        let link = link.step(event, now, policy, &mut Dice::seeded(1), &mut out);
        (link, out)
    }

    #[test]
    fn losing_an_open_link_fails_what_is_open_and_waits() {
        let now = Instant::now();
        let (link, out) = step(open(now), Event::Lost, now, &policy());
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen]);
        let Link::Failed { attempt: 1, until: Some(until) } = link else { panic!("{link:?}") };
        assert!(until > now && until <= now + Duration::from_millis(50));
    }

    #[test]
    fn a_second_report_of_one_loss_starts_nothing() {
        let now = Instant::now();
        let (failed, _) = step(open(now), Event::Lost, now, &policy());
        assert_eq!(step(failed, Event::Lost, now, &policy()), (failed, vec![]));
    }

    #[test]
    fn the_wait_ends_in_one_dial_and_each_failure_counts() {
        let now = Instant::now();
        let (mut link, _) = step(Link::Connecting, Event::Lost, now, &policy());
        for expected in 1..=20 {
            let until = link.wakes_at().expect("a failed link waits");
            assert_eq!(step(link, Event::Tick, until - Duration::from_nanos(1), &policy()), (link, vec![]));
            let (dialing, out) = step(link, Event::Tick, until, &policy());
            assert_eq!((dialing, out), (Link::Reconnecting { attempt: expected }, vec![Effect::Dial]));
            (link, _) = step(dialing, Event::Lost, until, &policy());
        }
        let until = link.wakes_at().expect("a failed link waits");
        let (dialing, _) = step(link, Event::Tick, until, &policy());
        assert_eq!(
            step(dialing, Event::Connected, until, &policy()),
            (Link::Open { tries: 21, since: until }, vec![])
        );
        assert_eq!(open(now).attempt(), 0);
    }

    #[test]
    fn without_reconnection_a_loss_gives_up() {
        let now = Instant::now();
        let policy = Policy { reconnect: None, ..policy() };
        let (link, out) = step(open(now), Event::Lost, now, &policy);
        assert_eq!(link, Link::Failed { attempt: 1, until: None });
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen, Effect::GiveUp]);
        assert_eq!(step(link, Event::Close, now, &policy).0, Link::Closed);
    }

    #[test]
    fn closing_waits_for_what_is_in_flight_up_to_its_deadline() {
        let now = Instant::now();
        let (closing, out) = step(open(now), Event::Close, now, &policy());
        assert_eq!((closing, out), (Link::Closing { until: now + Duration::from_secs(5) }, vec![]));
        assert_eq!(step(closing, Event::Tick, now, &policy()).0, closing);
        assert_eq!(step(closing, Event::Drained, now, &policy()).0, Link::Closed);
        let (closed, out) = step(closing, Event::Tick, now + Duration::from_secs(5), &policy());
        assert_eq!((closed, out), (Link::Closed, vec![Effect::Hangup, Effect::CancelOpen]));
    }

    /// Dials at once whenever it may, and finds a server that can't serve each time.
    fn dials_of_an_unfit_server(policy: &Policy, seed: u64, lives: Duration) -> Vec<Duration> {
        let (begun, mut dice, mut out) = (Instant::now(), Dice::seeded(seed), Vec::new());
        let (mut now, mut link, mut dials) = (begun, open(begun), Vec::new());
        while now < begun + Duration::from_secs(60) {
            now += lives;
            link = link.step(Event::Unfit, now, policy, &mut dice, &mut out);
            now = link.wakes_at().expect("a failed link waits");
            for event in [Event::Tick, Event::Connected] {
                link = link.step(event, now, policy, &mut dice, &mut out);
            }
            dials.push(now - begun);
        }
        dials
    }

    #[test]
    fn an_unfit_server_is_dialed_at_most_12_times_in_the_first_second_and_twice_in_each_later_one() {
        for seed in 0..100 {
            let dials = dials_of_an_unfit_server(&policy(), seed, Duration::ZERO);
            let between = |from: u64, to: u64| {
                let range = Duration::from_secs(from)..Duration::from_secs(to);
                dials.iter().filter(|at| range.contains(at)).count()
            };
            assert!(between(0, 1) <= 12, "{}", between(0, 1));
            for second in 1..59 {
                assert!((1..=3).contains(&between(second, second + 2).div_ceil(2)), "second {second}");
                assert!(between(second, second + 1) <= 2, "second {second}: {}", between(second, second + 1));
            }
        }
    }

    #[test]
    fn only_a_server_that_served_for_a_while_is_tried_quickly_again() {
        let now = Instant::now();
        let link = Link::Open { tries: 15, since: now };
        let almost = now + STEADY - Duration::from_nanos(1);
        assert!(matches!(step(link, Event::Unfit, almost, &policy()).0, Link::Failed { attempt: 16, .. }));
        assert!(matches!(
            step(link, Event::Unfit, now + STEADY, &policy()).0,
            Link::Failed { attempt: 1, .. }
        ));
        assert!(matches!(step(link, Event::Lost, now, &policy()).0, Link::Failed { attempt: 1, .. }));
        // An owner who wants to wait for longer does.
        let slow = Backoff { quick_tries: 0, first_delay: Duration::from_secs(8), ..Backoff::default() };
        let slow = Policy { reconnect: Some(slow), ..policy() };
        let (link, _) = step(link, Event::Unfit, now, &slow);
        assert!(link.wakes_at().is_some_and(|at| at >= now + Duration::from_secs(4)), "{link:?}");
    }
}
