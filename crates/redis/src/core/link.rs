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
    Open,
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
                Event::Connected | Event::Lost | Event::Tick | Event::Drained => self,
            },
            Link::Connecting => match event {
                Event::Connected => Link::Open,
                Event::Lost => fail(0, now, policy, dice, out),
                Event::Close => close(out),
                Event::Start | Event::Tick | Event::Drained => self,
            },
            Link::Open => match event {
                Event::Lost => fail(0, now, policy, dice, out),
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
                Event::Lost | Event::Tick | Event::Start | Event::Connected | Event::Drained => self,
            },
            Link::Reconnecting { attempt } => match event {
                Event::Connected => Link::Open,
                Event::Lost => fail(attempt, now, policy, dice, out),
                Event::Close => close(out),
                Event::Start | Event::Tick | Event::Drained => self,
            },
            Link::Closing { until } => match event {
                Event::Drained => close(out),
                Event::Tick if now >= until => close(out),
                Event::Lost => {
                    out.extend([Effect::Hangup, Effect::FailOpen]);
                    Link::Closed
                }
                Event::Tick | Event::Start | Event::Connected | Event::Close => self,
            },
            Link::Closed => match event {
                Event::Start
                | Event::Connected
                | Event::Lost
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
            Link::Open => State::Open,
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
            Link::Init | Link::Connecting | Link::Open | Link::Closing { .. } | Link::Closed => 0,
        }
    }

    /// When `Tick` will change something.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self {
            Link::Failed { until, .. } => *until,
            Link::Closing { until } => Some(*until),
            Link::Init | Link::Connecting | Link::Open | Link::Reconnecting { .. } | Link::Closed => None,
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

fn fail(tries: u32, now: Instant, policy: &Policy, dice: &mut Dice, out: &mut Vec<Effect>) -> Link {
    out.extend([Effect::Hangup, Effect::FailOpen]);
    let attempt = tries.saturating_add(1);
    match &policy.reconnect {
        Some(backoff) => {
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

    fn step(link: Link, event: Event, now: Instant, policy: &Policy) -> (Link, Vec<Effect>) {
        let mut out = Vec::new();
        let link = link.step(event, now, policy, &mut Dice::seeded(1), &mut out);
        (link, out)
    }

    #[test]
    fn losing_an_open_link_fails_what_is_open_and_waits() {
        let now = Instant::now();
        let (link, out) = step(Link::Open, Event::Lost, now, &policy());
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen]);
        let Link::Failed { attempt: 1, until: Some(until) } = link else { panic!("{link:?}") };
        assert!(until > now && until <= now + Duration::from_millis(50));
    }

    #[test]
    fn a_second_report_of_one_loss_starts_nothing() {
        let now = Instant::now();
        let (failed, _) = step(Link::Open, Event::Lost, now, &policy());
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
        assert_eq!(step(dialing, Event::Connected, until, &policy()), (Link::Open, vec![]));
        assert_eq!(Link::Open.attempt(), 0);
    }

    #[test]
    fn without_reconnection_a_loss_gives_up() {
        let now = Instant::now();
        let policy = Policy { reconnect: None, ..policy() };
        let (link, out) = step(Link::Open, Event::Lost, now, &policy);
        assert_eq!(link, Link::Failed { attempt: 1, until: None });
        assert_eq!(out, [Effect::Hangup, Effect::FailOpen, Effect::GiveUp]);
        assert_eq!(step(link, Event::Close, now, &policy).0, Link::Closed);
    }

    #[test]
    fn closing_waits_for_what_is_in_flight_up_to_its_deadline() {
        let now = Instant::now();
        let (closing, out) = step(Link::Open, Event::Close, now, &policy());
        assert_eq!((closing, out), (Link::Closing { until: now + Duration::from_secs(5) }, vec![]));
        assert_eq!(step(closing, Event::Tick, now, &policy()).0, closing);
        assert_eq!(step(closing, Event::Drained, now, &policy()).0, Link::Closed);
        let (closed, out) = step(closing, Event::Tick, now + Duration::from_secs(5), &policy());
        assert_eq!((closed, out), (Link::Closed, vec![Effect::Hangup, Effect::CancelOpen]));
    }
}
