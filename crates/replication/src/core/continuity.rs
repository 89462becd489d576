//! Whether what the consumer has goes on where this Postgres is.
//!
//! Invariant: the stream continues only if every change after the consumer's durable position is still to come from this
//! very history; in every doubt, the consumer starts over.

use forebay_pgoutput::Lsn;
use serde::{Deserialize, Serialize};

/// Which history of which Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Timeline {
    /// Drawn when the cluster was made; copies of it have the same.
    pub system_id: u64,
    /// Counts up at each promotion and each recovery to a point in time.
    pub timeline_id: u32,
}

/// What the consumer keeps, durably, of what it follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// The history that it follows.
    pub timeline: Timeline,
    /// The publication's oid: one that was dropped and made again left changes out.
    pub publication: u32,
    /// Everything up to here is durable.
    #[serde(with = "as_number")]
    pub durable: Lsn,
}

/// Why the consumer has to start over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetReason {
    /// It has followed nothing so far.
    First,
    /// Another cluster stands where the old one was.
    OtherDatabase,
    /// The database was recovered to a point before what the consumer has, or nobody can tell.
    TimelineChanged,
    /// The slot is a new one.
    SlotCreated,
    /// The publication is another one.
    PublicationChanged,
    /// The slot is ahead of the consumer: changes in between are gone.
    Behind,
}

impl ResetReason {
    /// In metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            ResetReason::First => "first",
            ResetReason::OtherDatabase => "other_database",
            ResetReason::TimelineChanged => "timeline_changed",
            ResetReason::SlotCreated => "slot_created",
            ResetReason::PublicationChanged => "publication_changed",
            ResetReason::Behind => "behind",
        }
    }
}

/// What set-up found on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) timeline: Timeline,
    pub(crate) publication: u32,
    pub(crate) slot_created: bool,
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) confirmed: Lsn,
    /// Up to where the server has written its log. It was never behind what it has sent, unless a snapshot of its disk was put back.
    pub(crate) written: Lsn,
    /// Where each earlier timeline ended, from the server's history file. Empty on timeline 1.
    pub(crate) history: Vec<Switch>,
}

/// A timeline, and where the next one branched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switch {
    pub(crate) timeline_id: u32,
    pub(crate) at: Lsn,
}

/// How the stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// From the bookmark on. The timeline may be a later one.
    Continues { from: Lsn },
    /// Anew, from the slot's position on.
    Reset { reason: ResetReason, from: Lsn },
}

/// Compares what the consumer has with what was found.
pub(crate) fn continuity(bookmark: Option<&Bookmark>, found: &Found) -> Continuity {
    let reset = |reason| Continuity::Reset { reason, from: found.confirmed };
    let Some(bookmark) = bookmark else { return reset(ResetReason::First) };
    if bookmark.timeline.system_id != found.timeline.system_id {
        return reset(ResetReason::OtherDatabase);
    }
    // Before the slot: a recovery leaves none, and isn't told by that.
    let is_same = bookmark.timeline.timeline_id == found.timeline.timeline_id;
    if (!is_same && !is_promotion(bookmark, found)) || bookmark.durable > found.written {
        return reset(ResetReason::TimelineChanged);
    }
    if found.slot_created {
        return reset(ResetReason::SlotCreated);
    }
    if bookmark.publication != found.publication {
        return reset(ResetReason::PublicationChanged);
    }
    if bookmark.durable < found.confirmed {
        return reset(ResetReason::Behind);
    }
    Continuity::Continues { from: bookmark.durable }
}

/// Whether all that the consumer has happened before its timeline was left.
fn is_promotion(bookmark: &Bookmark, found: &Found) -> bool {
    found.timeline.timeline_id > bookmark.timeline.timeline_id
        && found
            .history
            .iter()
            .find(|switch| switch.timeline_id == bookmark.timeline.timeline_id)
            .is_some_and(|switch| switch.at >= bookmark.durable)
}

/// Reads a timeline history file: a timeline, where it was left, and a remark on each line.
pub(crate) fn parse_history(text: &str) -> Option<Vec<Switch>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let switch = |line: &str| {
        let mut words = line.split_whitespace();
        Some(Switch { timeline_id: words.next()?.parse().ok()?, at: words.next()?.parse().ok()? })
    };
    lines.map(switch).collect()
}

mod as_number {
    use forebay_pgoutput::Lsn;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
    pub(super) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(lsn.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        u64::deserialize(deserializer).map(Lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Timeline = Timeline { system_id: 42, timeline_id: 2 };

    fn bookmark() -> Bookmark {
        Bookmark { timeline: HERE, publication: 9, durable: Lsn(500) }
    }

    fn found() -> Found {
        let history = vec![Switch { timeline_id: 1, at: Lsn(100) }];
        Found {
            timeline: HERE,
            publication: 9,
            slot_created: false,
            confirmed: Lsn(400),
            written: Lsn(600),
            history,
        }
    }

    fn reset(reason: ResetReason) -> Continuity {
        Continuity::Reset { reason, from: Lsn(400) }
    }

    #[test]
    fn the_same_history_goes_on_where_the_consumer_is() {
        assert_eq!(continuity(Some(&bookmark()), &found()), Continuity::Continues { from: Lsn(500) });
    }

    #[test]
    fn a_consumer_with_nothing_begins_where_the_slot_is() {
        assert_eq!(continuity(None, &found()), reset(ResetReason::First));
    }

    #[test]
    fn a_consumer_behind_the_slot_starts_over() {
        let found = Found { confirmed: Lsn(501), ..found() };
        let expected = Continuity::Reset { reason: ResetReason::Behind, from: Lsn(501) };
        assert_eq!(continuity(Some(&bookmark()), &found), expected);
    }

    #[test]
    fn another_cluster_slot_or_publication_starts_over() {
        let other = Timeline { system_id: 43, ..HERE };
        let other = Found { timeline: other, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &other), reset(ResetReason::OtherDatabase));
        let created = Found { slot_created: true, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &created), reset(ResetReason::SlotCreated));
        let publication = Found { publication: 10, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &publication), reset(ResetReason::PublicationChanged));
    }

    #[test]
    fn a_promotion_goes_on_if_the_branch_is_at_or_after_what_is_durable() {
        let promoted = |at| Found {
            timeline: Timeline { timeline_id: 3, ..HERE },
            history: vec![Switch { timeline_id: 1, at: Lsn(100) }, Switch { timeline_id: 2, at: Lsn(at) }],
            ..found()
        };
        let goes_on = Continuity::Continues { from: Lsn(500) };
        assert_eq!(continuity(Some(&bookmark()), &promoted(500)), goes_on);
        assert_eq!(continuity(Some(&bookmark()), &promoted(499)), reset(ResetReason::TimelineChanged));
    }

    #[test]
    fn a_timeline_that_is_earlier_or_of_another_branch_starts_over() {
        let earlier = Found { timeline: Timeline { timeline_id: 1, ..HERE }, history: vec![], ..found() };
        assert_eq!(continuity(Some(&bookmark()), &earlier), reset(ResetReason::TimelineChanged));
        let branch = Found { timeline: Timeline { timeline_id: 3, ..HERE }, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &branch), reset(ResetReason::TimelineChanged));
    }

    #[test]
    fn a_server_whose_log_ends_before_what_the_consumer_has_starts_it_over() {
        let put_back = Found { written: Lsn(499), ..found() };
        assert_eq!(continuity(Some(&bookmark()), &put_back), reset(ResetReason::TimelineChanged));
        let idle = Found { written: Lsn(500), ..found() };
        assert_eq!(continuity(Some(&bookmark()), &idle), Continuity::Continues { from: Lsn(500) });
    }

    #[test]
    fn a_recovery_is_told_from_a_slot_that_was_lost_in_a_promotion() {
        let timeline = Timeline { timeline_id: 3, ..HERE };
        let left_at = |at| Found {
            timeline,
            slot_created: true,
            history: vec![Switch { timeline_id: 2, at: Lsn(at) }],
            ..found()
        };
        assert_eq!(continuity(Some(&bookmark()), &left_at(450)), reset(ResetReason::TimelineChanged));
        assert_eq!(continuity(Some(&bookmark()), &left_at(550)), reset(ResetReason::SlotCreated));
    }

    #[test]
    fn a_history_file_is_read_and_nonsense_is_not() {
        let text = "1\t0/3000148\tno recovery target specified\n\n# remark\n2\t1/0\tbefore 2000-01-01\n";
        let switches =
            [Switch { timeline_id: 1, at: Lsn(0x300_0148) }, Switch { timeline_id: 2, at: Lsn(1 << 32) }];
        assert_eq!(parse_history(text), Some(switches.to_vec()));
        assert_eq!(parse_history("one\t0/1\n"), None);
        assert_eq!(parse_history("1\n"), None);
    }
}
