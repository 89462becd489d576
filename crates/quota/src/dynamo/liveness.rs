//! `LivenessTracker`: how long a handle has seen each counter unchanged. Members have no other
//! common clock.
//!
//! Invariant: a counter reported as unchanged for some time was unchanged for at least that long.
//! Enforced by: the time begins with the first reply that shows the number, and grows only by the
//! time between two observations that both show it. An observation after a long gap counts for at
//! most half a TTL: during an outage no member can heartbeat, and none must expire because of it.
//! So expiry takes at least two observations.
//! Out of scope: sockets and clocks; the caller passes `now`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::items::{GenerationItem, MemberItem, PressureMark};
use super::members::RebuildReports;
use crate::store::MemberId;

/// Maximum number of accounts, and of buckets, that are tracked. Beyond it, all are tracked from
/// the start again.
const MAX_REMEMBERED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct LivenessTracker {
    observed_at: Option<Instant>,
    members: HashMap<MemberId, ObservedCounter>,
    generation: Option<ObservedCounter>,
    pressed: HashMap<Arc<str>, (String, Instant)>,
    buckets: HashMap<Arc<str>, (String, Instant)>,
}

/// A counter, and how long it was seen unchanged.
#[derive(Debug, Clone, Copy)]
struct ObservedCounter {
    number: u64,
    still: Duration,
    /// Whether the handle read nothing for half a TTL meanwhile.
    interrupted: bool,
}

impl ObservedCounter {
    fn wait(before: Option<ObservedCounter>, number: u64, gap: Duration, ttl: Duration) -> ObservedCounter {
        match before.filter(|seen| seen.number == number) {
            Some(seen) => ObservedCounter {
                number,
                still: seen.still + gap.min(ttl / 2),
                interrupted: seen.interrupted || gap >= ttl / 2,
            },
            None => ObservedCounter { number, still: Duration::ZERO, interrupted: false },
        }
    }
}

impl LivenessTracker {
    /// Records the members of a namespace, read at `now`.
    pub(super) fn observe(
        &mut self,
        generation: Option<GenerationItem>,
        members: &[MemberItem],
        now: Instant,
    ) {
        let before = self.observed_at.replace(now).unwrap_or(now);
        let gap = now.saturating_duration_since(before);
        self.generation =
            generation.map(|now| ObservedCounter::wait(self.generation, now.number, gap, now.ttl));
        let seen = |member: &MemberItem| {
            let before = self.members.get(&member.id).copied();
            (member.id.clone(), ObservedCounter::wait(before, member.heartbeats, gap, member.ttl))
        };
        self.members = members.iter().map(seen).collect();
    }

    /// Returns the time until a member expires if its heartbeats stay unchanged.
    pub(super) fn ttl_left(&self, member: &MemberItem) -> Duration {
        let seen = self.members.get(&member.id).filter(|seen| seen.number == member.heartbeats);
        member.ttl.saturating_sub(seen.map_or(Duration::ZERO, |seen| seen.still))
    }

    /// Returns how long members may still take to report what they hold: a TTL, or half a TTL if
    /// all members that are known have reported and the rebuild wasn't interrupted.
    pub(super) fn rebuild_left(&self, generation: GenerationItem, reports: RebuildReports) -> Duration {
        if !generation.rebuilding {
            return Duration::ZERO;
        }
        let seen = self.generation.filter(|seen| seen.number == generation.number);
        let interrupted = seen.is_some_and(|seen| seen.interrupted);
        let ends_early = reports.are_complete() && !interrupted;
        let lasts = if ends_early { generation.ttl / 2 } else { generation.ttl };
        lasts.saturating_sub(seen.map_or(Duration::ZERO, |seen| seen.still))
    }

    /// Returns whether a member was refused lately, measured from this handle's first sight of the
    /// mark.
    pub(super) fn is_pressed(
        &mut self,
        account: &Arc<str>,
        pressed: Option<&PressureMark>,
        now: Instant,
    ) -> bool {
        let Some(pressed) = pressed else {
            self.pressed.remove(account);
            return false;
        };
        since(&mut self.pressed, account, &pressed.stamp, now) < pressed.lasts
    }

    /// Records a bucket that this handle wrote at `now`.
    pub(super) fn wrote_bucket(&mut self, bucket: &Arc<str>, stamp: &str, now: Instant) {
        since(&mut self.buckets, bucket, stamp, now);
    }

    /// Returns how long this handle has seen a bucket unchanged.
    pub(super) fn bucket_age(&mut self, bucket: &Arc<str>, stamp: &str, now: Instant) -> Duration {
        since(&mut self.buckets, bucket, stamp, now)
    }
}

/// Returns the time since this stamp was first seen under this name.
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

    const TTL: Duration = Duration::from_secs(10);
    const S: fn(u64) -> Duration = Duration::from_secs;

    fn member(heartbeats: u64) -> MemberItem {
        let id = MemberId::new("a", 1);
        MemberItem {
            id,
            generation: 1,
            heartbeats,
            ttl: TTL,
            replaced: false,
            sequence: 0,
            members_before: 0,
            has_reported: false,
        }
    }

    fn observe(liveness: &mut LivenessTracker, heartbeats: u64, now: Instant) -> Duration {
        liveness.observe(None, &[member(heartbeats)], now);
        liveness.ttl_left(&member(heartbeats))
    }

    #[test]
    fn a_member_expires_when_its_heartbeats_were_seen_unchanged_for_its_ttl() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        assert_eq!(observe(&mut liveness, 5, origin), TTL, "a new tracker has no observations");
        assert_eq!(observe(&mut liveness, 5, origin + S(4)), S(6));
        assert_eq!(observe(&mut liveness, 5, origin + S(8)), S(2));
        assert_eq!(observe(&mut liveness, 6, origin + S(11)), TTL, "a heartbeat");
        for (at, left) in [(15, 6), (19, 2), (22, 0)] {
            assert_eq!(observe(&mut liveness, 6, origin + S(at)), S(left), "after {at} s");
        }
    }

    #[test]
    fn a_gap_between_observations_counts_for_half_a_ttl_at_most() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        observe(&mut liveness, 5, origin);
        observe(&mut liveness, 5, origin + S(2));
        assert_eq!(observe(&mut liveness, 5, origin + S(3600)), S(3), "an hour counts for half a TTL");
        assert_eq!(observe(&mut liveness, 5, origin + S(3603)), S(0), "but a dead member sends no heartbeat");
    }

    #[test]
    fn a_member_that_disappeared_and_returned_is_tracked_from_the_start() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        observe(&mut liveness, 5, origin);
        observe(&mut liveness, 5, origin + S(5));
        liveness.observe(None, &[], origin + S(9));
        assert_eq!(observe(&mut liveness, 5, origin + S(10)), TTL);
        assert_eq!(liveness.ttl_left(&member(4)), TTL, "an unseen number has not been unchanged");
    }

    #[test]
    fn each_handle_observes_a_rebuild_for_one_ttl() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        let generation = |number| GenerationItem { number, rebuilding: true, ttl: TTL };
        for (at, number, left) in [(0, 1, 10), (4, 1, 6), (8, 1, 2), (9, 2, 10), (14, 2, 5), (19, 2, 0)] {
            liveness.observe(Some(generation(number)), &[], origin + S(at));
            let reports = RebuildReports { expected: 2, reported: 1 };
            assert_eq!(liveness.rebuild_left(generation(number), reports), S(left), "after {at} s");
        }
        let ended = GenerationItem { rebuilding: false, ..generation(3) };
        assert_eq!(liveness.rebuild_left(ended, RebuildReports::default()), S(0));
    }

    #[test]
    fn a_rebuild_lasts_half_a_ttl_once_all_known_members_have_reported() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        let generation = GenerationItem { number: 1, rebuilding: true, ttl: TTL };
        for (at, expected, reported, left) in [(0, 2, 2, 5), (3, 2, 2, 2), (4, 3, 2, 6), (5, 3, 3, 0)] {
            liveness.observe(Some(generation), &[], origin + S(at));
            let reports = RebuildReports { expected, reported };
            assert_eq!(liveness.rebuild_left(generation, reports), S(left), "after {at} s");
        }
    }

    #[test]
    fn an_interrupted_rebuild_does_not_end_early() {
        let (mut liveness, origin) = (LivenessTracker::default(), Instant::now());
        let generation = |number| GenerationItem { number, rebuilding: true, ttl: TTL };
        for (at, number, left) in [(0, 1, 5), (60, 1, 5), (62, 1, 3), (65, 1, 0), (70, 2, 5), (74, 2, 1)] {
            liveness.observe(Some(generation(number)), &[], origin + S(at));
            let reports = RebuildReports { expected: 2, reported: 2 };
            assert_eq!(liveness.rebuild_left(generation(number), reports), S(left), "after {at} s");
        }
    }

    #[test]
    fn pressure_lasts_from_its_first_observation_and_restarts_with_another_stamp() {
        let (mut liveness, origin, account) = (LivenessTracker::default(), Instant::now(), Arc::from("b:x"));
        let pressed = |stamp: &str| Some(PressureMark { stamp: stamp.into(), lasts: S(4) });
        for (at, stamp, is) in
            [(0, "a", true), (3, "a", true), (4, "a", false), (5, "b", true), (9, "b", false)]
        {
            assert_eq!(
                liveness.is_pressed(&account, pressed(stamp).as_ref(), origin + S(at)),
                is,
                "{stamp} at {at}"
            );
        }
        assert!(!liveness.is_pressed(&account, None, origin));
        assert!(liveness.pressed.is_empty());
    }

    #[test]
    fn the_number_of_tracked_buckets_is_bounded() {
        let (mut liveness, now) = (LivenessTracker::default(), Instant::now());
        for number in 0..2 * MAX_REMEMBERED {
            liveness.bucket_age(&number.to_string().into(), "stamp", now);
        }
        assert!(liveness.buckets.len() <= MAX_REMEMBERED);
    }
}
