//! Decides whether the stream can continue at the consumer's bookmark.
//!
//! Invariant: the stream continues only if this server, on this timeline, will still send every
//! change after the bookmark. In all other cases the consumer is reset.
//! Enforced by: [`continuity`] compares system id, timeline, slot, publication and positions.

use forebay_pgoutput::Lsn;
use serde::{Deserialize, Serialize};

/// Identity of a cluster's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Timeline {
    /// System identifier: random, chosen by `initdb`. Physical copies of the cluster share it.
    pub system_id: u64,
    /// Timeline id: increases at each promotion and each point-in-time recovery.
    pub timeline_id: u32,
}

/// The consumer's durable position, with the history that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bookmark {
    /// The history that the consumer follows.
    pub timeline: Timeline,
    /// The publication's oid. A recreated publication has another oid, and may have missed changes.
    pub publication: u32,
    /// All changes up to here are durable.
    #[serde(with = "as_number")]
    pub durable: Lsn,
}

/// Why the consumer is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResetReason {
    /// The consumer has no bookmark.
    First,
    /// The server is another cluster.
    OtherDatabase,
    /// The database was recovered to a point before the bookmark, or its history is unknown.
    TimelineChanged,
    /// The slot was just created.
    SlotCreated,
    /// The publication has another oid.
    PublicationChanged,
    /// The slot is ahead of the bookmark: the changes in between are lost.
    Behind,
}

impl ResetReason {
    /// Returns the name used in metrics and logs.
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

/// State of the server and the slot after setup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerState {
    pub(crate) timeline: Timeline,
    pub(crate) publication: u32,
    pub(crate) slot_created: bool,
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) confirmed: Lsn,
    /// End of the server's flushed WAL. It is behind the bookmark only if the server's disk was
    /// restored from an older copy.
    pub(crate) flushed: Lsn,
    /// End of each earlier timeline, from the server's history file. Empty on timeline 1.
    pub(crate) history: Vec<TimelineSwitch>,
}

/// End of a timeline: where the next one branched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimelineSwitch {
    pub(crate) timeline_id: u32,
    pub(crate) at: Lsn,
}

/// Where the stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// At the bookmark. The timeline may be a later one.
    Continues { from: Lsn },
    /// At the slot's position, after a reset of the consumer.
    Reset { reason: ResetReason, from: Lsn },
}

/// Compares the bookmark with the server's state.
pub(crate) fn continuity(bookmark: Option<&Bookmark>, found: &ServerState) -> Continuity {
    let reset = |reason| Continuity::Reset { reason, from: found.confirmed };
    let Some(bookmark) = bookmark else { return reset(ResetReason::First) };
    if bookmark.timeline.system_id != found.timeline.system_id {
        return reset(ResetReason::OtherDatabase);
    }
    // Checked before the slot: a recovery also loses the slot, and needs its own reason.
    let is_same = bookmark.timeline.timeline_id == found.timeline.timeline_id;
    if (!is_same && !is_promotion(bookmark, found)) || bookmark.durable > found.flushed {
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

/// Returns whether the server left the bookmark's timeline at or after the bookmark.
fn is_promotion(bookmark: &Bookmark, found: &ServerState) -> bool {
    found.timeline.timeline_id > bookmark.timeline.timeline_id
        && found
            .history
            .iter()
            .find(|switch| switch.timeline_id == bookmark.timeline.timeline_id)
            .is_some_and(|switch| switch.at >= bookmark.durable)
}

/// Parses a timeline history file: each line has a timeline id, its end, and a remark.
pub(crate) fn parse_history(text: &str) -> Option<Vec<TimelineSwitch>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let switch = |line: &str| {
        let mut fields = line.split_whitespace();
        Some(TimelineSwitch { timeline_id: fields.next()?.parse().ok()?, at: fields.next()?.parse().ok()? })
    };
    lines.map(switch).collect()
}

mod as_number {
    use forebay_pgoutput::Lsn;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
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

    fn found() -> ServerState {
        let history = vec![TimelineSwitch { timeline_id: 1, at: Lsn(100) }];
        ServerState {
            timeline: HERE,
            publication: 9,
            slot_created: false,
            confirmed: Lsn(400),
            flushed: Lsn(600),
            history,
        }
    }

    fn reset(reason: ResetReason) -> Continuity {
        Continuity::Reset { reason, from: Lsn(400) }
    }

    #[test]
    fn the_same_history_continues_at_the_bookmark() {
        assert_eq!(continuity(Some(&bookmark()), &found()), Continuity::Continues { from: Lsn(500) });
    }

    #[test]
    fn a_consumer_without_a_bookmark_starts_at_the_slots_position() {
        assert_eq!(continuity(None, &found()), reset(ResetReason::First));
    }

    #[test]
    fn a_consumer_behind_the_slot_is_reset() {
        let found = ServerState { confirmed: Lsn(501), ..found() };
        let expected = Continuity::Reset { reason: ResetReason::Behind, from: Lsn(501) };
        assert_eq!(continuity(Some(&bookmark()), &found), expected);
    }

    #[test]
    fn another_cluster_slot_or_publication_resets_the_consumer() {
        let other = Timeline { system_id: 43, ..HERE };
        let other = ServerState { timeline: other, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &other), reset(ResetReason::OtherDatabase));
        let created = ServerState { slot_created: true, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &created), reset(ResetReason::SlotCreated));
        let publication = ServerState { publication: 10, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &publication), reset(ResetReason::PublicationChanged));
    }

    #[test]
    fn a_promotion_continues_if_the_branch_is_at_or_after_the_bookmark() {
        let promoted = |at| ServerState {
            timeline: Timeline { timeline_id: 3, ..HERE },
            history: vec![
                TimelineSwitch { timeline_id: 1, at: Lsn(100) },
                TimelineSwitch { timeline_id: 2, at: Lsn(at) },
            ],
            ..found()
        };
        let continues = Continuity::Continues { from: Lsn(500) };
        assert_eq!(continuity(Some(&bookmark()), &promoted(500)), continues);
        assert_eq!(continuity(Some(&bookmark()), &promoted(499)), reset(ResetReason::TimelineChanged));
    }

    #[test]
    fn an_earlier_timeline_or_another_branch_resets_the_consumer() {
        let earlier =
            ServerState { timeline: Timeline { timeline_id: 1, ..HERE }, history: vec![], ..found() };
        assert_eq!(continuity(Some(&bookmark()), &earlier), reset(ResetReason::TimelineChanged));
        let branch = ServerState { timeline: Timeline { timeline_id: 3, ..HERE }, ..found() };
        assert_eq!(continuity(Some(&bookmark()), &branch), reset(ResetReason::TimelineChanged));
    }

    #[test]
    fn a_server_whose_wal_ends_before_the_bookmark_resets_the_consumer() {
        let restored = ServerState { flushed: Lsn(499), ..found() };
        assert_eq!(continuity(Some(&bookmark()), &restored), reset(ResetReason::TimelineChanged));
        let idle = ServerState { flushed: Lsn(500), ..found() };
        assert_eq!(continuity(Some(&bookmark()), &idle), Continuity::Continues { from: Lsn(500) });
    }

    #[test]
    fn a_recovery_is_distinguished_from_a_slot_lost_in_a_promotion() {
        let timeline = Timeline { timeline_id: 3, ..HERE };
        let left_at = |at| ServerState {
            timeline,
            slot_created: true,
            history: vec![TimelineSwitch { timeline_id: 2, at: Lsn(at) }],
            ..found()
        };
        assert_eq!(continuity(Some(&bookmark()), &left_at(450)), reset(ResetReason::TimelineChanged));
        assert_eq!(continuity(Some(&bookmark()), &left_at(550)), reset(ResetReason::SlotCreated));
    }

    #[test]
    fn a_history_file_is_parsed_and_malformed_lines_are_refused() {
        let text = "1\t0/3000148\tno recovery target specified\n\n# remark\n2\t1/0\tbefore 2000-01-01\n";
        let switches = [
            TimelineSwitch { timeline_id: 1, at: Lsn(0x300_0148) },
            TimelineSwitch { timeline_id: 2, at: Lsn(1 << 32) },
        ];
        assert_eq!(parse_history(text), Some(switches.to_vec()));
        assert_eq!(parse_history("one\t0/1\n"), None);
        assert_eq!(parse_history("1\n"), None);
    }
}
