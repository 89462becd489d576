//! What a handle has seen change, and what it hasn't: the only clock that members share.
//!
//! Invariant: what this says to have stood still for a while has stood still for at least that long.
//! Kept by: a span begins after the answer that first showed the number, and grows only by the time between two looks that
//! both showed it. A look after a long silence counts for half a life at most: while the store couldn't be asked, nobody
//! could beat, and nobody shall die of that alone. So death takes two looks at least.
//! Not here: sockets, and clocks; `now` is handed in.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::items::{Generation, Member, Pressed};
use crate::store::MemberId;

/// So many accounts or buckets are remembered; past that, all are seen as for the first time.
const MAX_REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Watch {
    looked_at: Option<Instant>,
    members: HashMap<MemberId, Seen>,
    generation: Option<Seen>,
    pressed: HashMap<Arc<str>, (String, Instant)>,
    buckets: HashMap<Arc<str>, (String, Instant)>,
}

/// A number, and for how long it was seen to stand still.
#[derive(Debug, Clone, Copy)]
struct Seen {
    number: u64,
    still: Duration,
}

impl Seen {
    fn again(before: Option<Seen>, number: u64, gap: Duration, life: Duration) -> Seen {
        let before = before.filter(|seen| seen.number == number);
        Seen { number, still: before.map_or(Duration::ZERO, |seen| seen.still + gap.min(life / 2)) }
    }
}

impl Watch {
    /// What was read of a namespace, at the time at which the answer was here.
    pub(super) fn look(&mut self, generation: Option<Generation>, members: &[Member], now: Instant) {
        let before = self.looked_at.replace(now).unwrap_or(now);
        let gap = now.saturating_duration_since(before);
        self.generation = generation.map(|now| Seen::again(self.generation, now.number, gap, now.life));
        let seen = |member: &Member| {
            let before = self.members.get(&member.id).copied();
            (member.id.clone(), Seen::again(before, member.beats, gap, member.life))
        };
        self.members = members.iter().map(seen).collect();
    }

    /// How long a member is believed if no further beat is seen.
    pub(super) fn life_left(&self, member: &Member) -> Duration {
        let seen = self.members.get(&member.id).filter(|seen| seen.number == member.beats);
        member.life.saturating_sub(seen.map_or(Duration::ZERO, |seen| seen.still))
    }

    /// How long members may still take to tell what they hold.
    pub(super) fn rebuild_left(&self, generation: Generation) -> Duration {
        if !generation.rebuilding {
            return Duration::ZERO;
        }
        let seen = self.generation.filter(|seen| seen.number == generation.number);
        generation.life.saturating_sub(seen.map_or(Duration::ZERO, |seen| seen.still))
    }

    /// Whether somebody was refused lately: within the time that they gave, from when this handle first saw it.
    pub(super) fn is_pressed(&mut self, account: &Arc<str>, pressed: Option<&Pressed>, now: Instant) -> bool {
        let Some(pressed) = pressed else {
            self.pressed.remove(account);
            return false;
        };
        since(&mut self.pressed, account, &pressed.stamp, now) < pressed.lasts
    }

    /// We wrote this bucket ourselves, with the time that it was for us at `now`.
    pub(super) fn wrote_bucket(&mut self, bucket: &Arc<str>, stamp: &str, now: Instant) {
        since(&mut self.buckets, bucket, stamp, now);
    }

    /// For how long a bucket has been as it is, as far as this handle knows.
    pub(super) fn bucket_age(&mut self, bucket: &Arc<str>, stamp: &str, now: Instant) -> Duration {
        since(&mut self.buckets, bucket, stamp, now)
    }
}

/// How long ago this stamp was first seen under this name.
fn since(
    seen: &mut HashMap<Arc<str>, (String, Instant)>,
    name: &Arc<str>,
    stamp: &str,
    now: Instant,
) -> Duration {
    if let Some((known, first)) = seen.get(name)
        && known == stamp
    {
        return now.saturating_duration_since(*first);
    }
    if seen.len() >= MAX_REMEMBERED {
        seen.clear();
    }
    seen.insert(name.clone(), (stamp.into(), now));
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(10);
    const S: fn(u64) -> Duration = Duration::from_secs;

    fn member(beats: u64) -> Member {
        let id = MemberId::new("a", 1);
        Member { id, generation: 1, beats, life: LIFE, replaced: false, sequence: 0 }
    }

    fn look(watch: &mut Watch, beats: u64, now: Instant) -> Duration {
        watch.look(None, &[member(beats)], now);
        watch.life_left(&member(beats))
    }

    #[test]
    fn a_member_dies_when_its_beats_stood_still_for_its_life_before_our_eyes() {
        let (mut watch, origin) = (Watch::default(), Instant::now());
        assert_eq!(look(&mut watch, 5, origin), LIFE, "who just began to watch knows nothing");
        assert_eq!(look(&mut watch, 5, origin + S(4)), S(6));
        assert_eq!(look(&mut watch, 5, origin + S(8)), S(2));
        assert_eq!(look(&mut watch, 6, origin + S(11)), LIFE, "a beat");
        for (at, left) in [(15, 6), (19, 2), (22, 0)] {
            assert_eq!(look(&mut watch, 6, origin + S(at)), S(left), "after {at} s");
        }
    }

    #[test]
    fn nobody_dies_of_a_silence_in_which_nobody_could_be_heard() {
        let (mut watch, origin) = (Watch::default(), Instant::now());
        look(&mut watch, 5, origin);
        look(&mut watch, 5, origin + S(2));
        assert_eq!(look(&mut watch, 5, origin + S(3600)), S(3), "an hour counts for half a life");
        assert_eq!(look(&mut watch, 5, origin + S(3603)), S(0), "but the dead stay silent");
    }

    #[test]
    fn a_member_that_was_gone_in_between_is_watched_anew() {
        let (mut watch, origin) = (Watch::default(), Instant::now());
        look(&mut watch, 5, origin);
        look(&mut watch, 5, origin + S(5));
        watch.look(None, &[], origin + S(9));
        assert_eq!(look(&mut watch, 5, origin + S(10)), LIFE);
        assert_eq!(watch.life_left(&member(4)), LIFE, "a number that wasn't seen has not stood still");
    }

    #[test]
    fn each_handle_waits_for_one_life_of_a_generation_that_is_rebuilt() {
        let (mut watch, origin) = (Watch::default(), Instant::now());
        let generation = |number| Generation { number, rebuilding: true, life: LIFE };
        for (at, number, left) in [(0, 1, 10), (4, 1, 6), (8, 1, 2), (9, 2, 10), (14, 2, 5), (19, 2, 0)] {
            watch.look(Some(generation(number)), &[], origin + S(at));
            assert_eq!(watch.rebuild_left(generation(number)), S(left), "after {at} s");
        }
        assert_eq!(watch.rebuild_left(Generation { rebuilding: false, ..generation(3) }), S(0));
    }

    #[test]
    fn pressure_lasts_from_when_it_was_seen_and_is_raised_anew_by_another_stamp() {
        let (mut watch, origin, account) = (Watch::default(), Instant::now(), Arc::from("b:x"));
        let pressed = |stamp: &str| Some(Pressed { stamp: stamp.into(), lasts: S(4) });
        for (at, stamp, is) in
            [(0, "a", true), (3, "a", true), (4, "a", false), (5, "b", true), (9, "b", false)]
        {
            assert_eq!(
                watch.is_pressed(&account, pressed(stamp).as_ref(), origin + S(at)),
                is,
                "{stamp} at {at}"
            );
        }
        assert!(!watch.is_pressed(&account, None, origin));
        assert!(watch.pressed.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        for number in 0..2 * MAX_REMEMBERED {
            watch.bucket_age(&number.to_string().into(), "stamp", now);
        }
        assert!(watch.buckets.len() <= MAX_REMEMBERED);
    }
}
