//! Link state machine: the states of one connection, from the first dial to its end.
//!
//! Invariant: transitions follow the edges of [`LinkState::may_become`]. `Failed` and `Closed` have
//! no open requests: each was failed once, with the reason.
//! Enforced by: [`LinkState::step`] is the only function that creates a state. It returns the
//! required actions as [`Effect`]s.
//! Out of scope: sockets, timers and requests; see `worker.rs`.

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::backoff::ReconnectBackoff;

/// The seven states of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Created; no connection was requested yet.
    Init,
    /// The first dial and handshake are in progress; requests are queued.
    Connecting,
    /// Connected; requests are sent.
    Open,
    /// Waiting for the next attempt to connect; requests are rejected at once.
    Failed,
    /// Another dial and handshake are in progress; requests are queued.
    Reconnecting,
    /// Requests in flight may finish; new requests are rejected.
    Closing,
    /// This link has ended. Reopening the client creates a new link.
    Closed,
}

impl State {
    /// Returns the state's name in logs and metrics.
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

/// A [`State`] with its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Init,
    Connecting,
    /// `tries`: failed attempts before it opened. `since`: when it opened.
    Open {
        tries: u32,
        since: Instant,
    },
    /// `until`: start of the next attempt; `None` if there is none.
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
    /// The owner requests a connection.
    Start,
    /// The dial and the handshake succeeded.
    Connected,
    /// The dial failed, or the connection broke. One loss may be reported several times.
    Lost,
    /// The server cannot serve; the next dial may reach a server that can.
    Unfit,
    /// Time passed.
    Tick,
    /// The owner requests the end of the connection.
    Close,
    /// Every open request is completed.
    Drained,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Start a dial.
    Dial,
    /// Drop the socket or the dial in progress.
    Hangup,
    /// Fail every open request with the reason of the loss.
    FailOpen,
    /// Fail every open request because the owner closed the client.
    CancelOpen,
    /// Close the link and keep the last error: there will be no further attempt.
    GiveUp,
}

/// Maximum delay after [`Event::Unfit`]. The server is reachable, so it is checked often. The
/// default backoff gives at most 12 dials in the first second and 2 in each later second.
pub(crate) const MAX_UNFIT_DELAY: Duration = Duration::from_secs(1);
/// A connection that was open for this long before [`Event::Unfit`] resets the attempt counter.
pub(crate) const STEADY_AFTER: Duration = Duration::from_secs(10);

/// Settings of the link.
#[derive(Debug, Clone)]
pub(crate) struct LinkPolicy {
    /// Backoff between attempts; `None` disables reconnection.
    pub(crate) reconnect: Option<ReconnectBackoff>,
    /// How long `close` waits for requests in flight.
    pub(crate) close_timeout: Duration,
}

impl LinkState {
    pub(crate) fn step(
        self,
        event: Event,
        now: Instant,
        policy: &LinkPolicy,
        rng: &mut Rng,
        out: &mut Vec<Effect>,
    ) -> LinkState {
        match self {
            LinkState::Init => match event {
                Event::Start => {
                    out.push(Effect::Dial);
                    LinkState::Connecting
                }
                Event::Close => LinkState::Closed,
                Event::Connected | Event::Lost | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            LinkState::Connecting => match event {
                Event::Connected => LinkState::Open { tries: 0, since: now },
                Event::Lost => fail(0, None, now, policy, rng, out),
                Event::Close => close(out),
                Event::Start | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            LinkState::Open { tries, since } => match event {
                Event::Lost => fail(0, None, now, policy, rng, out),
                Event::Unfit => {
                    // Neither a handshake nor a reply to another request shows that the server can
                    // serve.
                    let steady = now.saturating_duration_since(since) >= STEADY_AFTER;
                    fail(if steady { 0 } else { tries }, Some(MAX_UNFIT_DELAY), now, policy, rng, out)
                }
                Event::Close => LinkState::Closing { until: later(now, policy.close_timeout) },
                Event::Start | Event::Connected | Event::Tick | Event::Drained => self,
            },
            LinkState::Failed { attempt, until } => match event {
                Event::Tick if until.is_some_and(|until| now >= until) => {
                    out.push(Effect::Dial);
                    LinkState::Reconnecting { attempt }
                }
                Event::Close => close(out),
                // A second report of the same loss changes nothing.
                Event::Lost
                | Event::Unfit
                | Event::Tick
                | Event::Start
                | Event::Connected
                | Event::Drained => self,
            },
            LinkState::Reconnecting { attempt } => match event {
                Event::Connected => LinkState::Open { tries: attempt, since: now },
                Event::Lost => fail(attempt, None, now, policy, rng, out),
                Event::Close => close(out),
                Event::Start | Event::Unfit | Event::Tick | Event::Drained => self,
            },
            LinkState::Closing { until } => match event {
                Event::Drained => close(out),
                Event::Tick if now >= until => close(out),
                Event::Lost => {
                    out.extend([Effect::Hangup, Effect::FailOpen]);
                    LinkState::Closed
                }
                Event::Tick | Event::Unfit | Event::Start | Event::Connected | Event::Close => self,
            },
            LinkState::Closed => match event {
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
            LinkState::Init => State::Init,
            LinkState::Connecting => State::Connecting,
            LinkState::Open { .. } => State::Open,
            LinkState::Failed { .. } => State::Failed,
            LinkState::Reconnecting { .. } => State::Reconnecting,
            LinkState::Closing { .. } => State::Closing,
            LinkState::Closed => State::Closed,
        }
    }

    /// Returns the number of attempts since the connection was last open.
    pub(crate) fn attempt(&self) -> u32 {
        match self {
            LinkState::Failed { attempt, .. } | LinkState::Reconnecting { attempt } => *attempt,
            LinkState::Init
            | LinkState::Connecting
            | LinkState::Open { .. }
            | LinkState::Closing { .. }
            | LinkState::Closed => 0,
        }
    }

    /// Returns the time at which `Tick` causes a transition.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self {
            LinkState::Failed { until, .. } => *until,
            LinkState::Closing { until } => Some(*until),
            LinkState::Init
            | LinkState::Connecting
            | LinkState::Open { .. }
            | LinkState::Reconnecting { .. }
            | LinkState::Closed => None,
        }
    }

    /// Returns true for the transitions in the diagram of `lib.rs`. A cancelled worker enters
    /// `Closed` from every state.
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
    policy: &LinkPolicy,
    rng: &mut Rng,
    out: &mut Vec<Effect>,
) -> LinkState {
    out.extend([Effect::Hangup, Effect::FailOpen]);
    let attempt = tries.saturating_add(1);
    match &policy.reconnect {
        Some(backoff) => {
            let backoff = longest.map_or_else(|| backoff.clone(), |longest| backoff.capped(longest));
            LinkState::Failed { attempt, until: Some(later(now, backoff.delay(attempt, rng.u64(..)))) }
        }
        None => {
            out.push(Effect::GiveUp);
            LinkState::Failed { attempt, until: None }
        }
    }
}

/// Returns `now + wait`, capped so that the addition cannot overflow.
fn later(now: Instant, wait: Duration) -> Instant {
    const MAX_WAIT: Duration = Duration::from_secs(1 << 30);
    now + wait.min(MAX_WAIT)
}

fn close(out: &mut Vec<Effect>) -> LinkState {
    out.extend([Effect::Hangup, Effect::CancelOpen]);
    LinkState::Closed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> LinkPolicy {
        LinkPolicy { reconnect: Some(ReconnectBackoff::default()), close_timeout: Duration::from_secs(5) }
    }

    fn open(since: Instant) -> LinkState {
        LinkState::Open { tries: 0, since }
    }

    fn step(link: LinkState, event: Event, now: Instant, policy: &LinkPolicy) -> (LinkState, Vec<Effect>) {
        let mut out = Vec::new();
        let link = link.step(event, now, policy, &mut Rng::with_seed(1), &mut out);
        (link, out)
    }

    #[test]
    fn losing_an_open_link_fails_open_requests_and_waits() {
        let now = Instant::now();
        let (link, out) = step(open(now), Event::Lost, now, &policy());
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen]);
        let LinkState::Failed { attempt: 1, until: Some(until) } = link else { panic!("{link:?}") };
        assert!(until > now && until <= now + Duration::from_millis(50));
    }

    #[test]
    fn a_second_report_of_one_loss_changes_nothing() {
        let now = Instant::now();
        let (failed, _) = step(open(now), Event::Lost, now, &policy());
        assert_eq!(step(failed, Event::Lost, now, &policy()), (failed, vec![]));
    }

    #[test]
    fn each_wait_ends_in_one_dial_and_each_failure_counts() {
        let now = Instant::now();
        let (mut link, _) = step(LinkState::Connecting, Event::Lost, now, &policy());
        for expected in 1..=20 {
            let until = link.wakes_at().expect("a failed link waits");
            assert_eq!(step(link, Event::Tick, until - Duration::from_nanos(1), &policy()), (link, vec![]));
            let (dialing, out) = step(link, Event::Tick, until, &policy());
            assert_eq!((dialing, out), (LinkState::Reconnecting { attempt: expected }, vec![Effect::Dial]));
            (link, _) = step(dialing, Event::Lost, until, &policy());
        }
        let until = link.wakes_at().expect("a failed link waits");
        let (dialing, _) = step(link, Event::Tick, until, &policy());
        assert_eq!(
            step(dialing, Event::Connected, until, &policy()),
            (LinkState::Open { tries: 21, since: until }, vec![])
        );
        assert_eq!(open(now).attempt(), 0);
    }

    #[test]
    fn without_reconnection_a_loss_gives_up() {
        let now = Instant::now();
        let policy = LinkPolicy { reconnect: None, ..policy() };
        let (link, out) = step(open(now), Event::Lost, now, &policy);
        assert_eq!(link, LinkState::Failed { attempt: 1, until: None });
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen, Effect::GiveUp]);
        assert_eq!(step(link, Event::Close, now, &policy).0, LinkState::Closed);
    }

    #[test]
    fn closing_waits_for_requests_in_flight_up_to_its_deadline() {
        let now = Instant::now();
        let (closing, out) = step(open(now), Event::Close, now, &policy());
        assert_eq!((closing, out), (LinkState::Closing { until: now + Duration::from_secs(5) }, vec![]));
        assert_eq!(step(closing, Event::Tick, now, &policy()).0, closing);
        assert_eq!(step(closing, Event::Drained, now, &policy()).0, LinkState::Closed);
        let (closed, out) = step(closing, Event::Tick, now + Duration::from_secs(5), &policy());
        assert_eq!((closed, out), (LinkState::Closed, vec![Effect::Hangup, Effect::CancelOpen]));
    }

    /// Returns the times of all dials to a server that is unfit after every handshake.
    fn dials_of_an_unfit_server(policy: &LinkPolicy, seed: u64, lifetime: Duration) -> Vec<Duration> {
        let (begun, mut rng, mut out) = (Instant::now(), Rng::with_seed(seed), Vec::new());
        let (mut now, mut link, mut dials) = (begun, open(begun), Vec::new());
        while now < begun + Duration::from_secs(60) {
            now += lifetime;
            link = link.step(Event::Unfit, now, policy, &mut rng, &mut out);
            now = link.wakes_at().expect("a failed link waits");
            for event in [Event::Tick, Event::Connected] {
                link = link.step(event, now, policy, &mut rng, &mut out);
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
                dials.iter().filter(|at| range.contains(*at)).count()
            };
            assert!(between(0, 1) <= 12, "{}", between(0, 1));
            for second in 1..59 {
                assert!((1..=3).contains(&between(second, second + 2).div_ceil(2)), "second {second}");
                assert!(between(second, second + 1) <= 2, "second {second}: {}", between(second, second + 1));
            }
        }
    }

    #[test]
    fn only_a_server_that_was_fit_for_a_while_is_dialed_quickly_again() {
        let now = Instant::now();
        let link = LinkState::Open { tries: 15, since: now };
        let almost = now + STEADY_AFTER - Duration::from_nanos(1);
        assert!(matches!(
            step(link, Event::Unfit, almost, &policy()).0,
            LinkState::Failed { attempt: 16, .. }
        ));
        assert!(matches!(
            step(link, Event::Unfit, now + STEADY_AFTER, &policy()).0,
            LinkState::Failed { attempt: 1, .. }
        ));
        assert!(matches!(step(link, Event::Lost, now, &policy()).0, LinkState::Failed { attempt: 1, .. }));
        // A longer configured delay is respected.
        let slow = ReconnectBackoff {
            quick_tries: 0,
            first_delay: Duration::from_secs(8),
            ..ReconnectBackoff::default()
        };
        let slow = LinkPolicy { reconnect: Some(slow), ..policy() };
        let (link, _) = step(link, Event::Unfit, now, &slow);
        assert!(link.wakes_at().is_some_and(|at| at >= now + Duration::from_secs(4)), "{link:?}");
    }
}
