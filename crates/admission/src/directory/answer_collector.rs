//! Answer collectors: merge the answers to a query, and record which instances are missing. Pure.
//!
//! Invariant: a list has at most `limit` streams, and they are the oldest of those that arrived. An
//! instance counts as answered only if all parts of its answer arrived, in order.
//! Bounds: twice `limit` streams and one message; [`MAX_INSTANCES`] instances.

use std::collections::{BTreeMap, BTreeSet};

use super::message::{AnswerKind, EndCounts, InstanceAnswer, StreamsPart};
use super::report::{ClusterStream, ClusterStreams, EndReport, InstanceEnds, InstanceStreams, ListScope};

/// Maximum number of instances whose answers are kept. More are ignored.
const MAX_INSTANCES: usize = 1_000;

/// Instances that must answer and haven't yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpectedInstances {
    missing: BTreeSet<String>,
    /// Why the names may be incomplete.
    uncertain: Option<String>,
}

impl ExpectedInstances {
    /// Creates a list of these instances. `uncertain` says why there may be others.
    pub(super) fn new(
        instances: impl IntoIterator<Item = String>,
        uncertain: Option<String>,
    ) -> ExpectedInstances {
        ExpectedInstances { missing: instances.into_iter().collect(), uncertain }
    }

    /// Returns whether all instances have answered and there are no others.
    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.uncertain.is_none()
    }
}

/// Takes the answers to one query.
pub(super) trait AnswerCollector {
    /// Adds an answer. Answers to other queries, duplicates and parts out of order are ignored.
    fn take(&mut self, answer: InstanceAnswer);
    /// Returns whether no further answer is expected.
    fn is_complete(&self) -> bool;
}

/// Merges the streams of all instances.
#[derive(Debug)]
pub(super) struct StreamCollector {
    expected: ExpectedInstances,
    limit: usize,
    /// Time since 1970 at which the query began.
    now_ms: u64,
    answers: BTreeMap<String, ListProgress>,
    /// Age in milliseconds, and the stream.
    streams: Vec<(u64, ClusterStream)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ListProgress {
    open: u64,
    next_part: u32,
    is_complete: bool,
}

impl StreamCollector {
    pub(super) fn new(expected: ExpectedInstances, limit: usize, now_ms: u64) -> StreamCollector {
        StreamCollector { expected, limit, now_ms, answers: BTreeMap::new(), streams: Vec::new() }
    }

    fn take_part(&mut self, instance: String, part: StreamsPart) {
        if !self.answers.contains_key(&instance) && self.answers.len() >= MAX_INSTANCES {
            return;
        }
        let progress = self.answers.entry(instance.clone()).or_default();
        if progress.is_complete || part.part != progress.next_part {
            return;
        }
        progress.open = part.open;
        progress.next_part += 1;
        progress.is_complete = part.last;
        let now_ms = self.now_ms;
        let streams = part.streams.into_iter();
        self.streams.extend(streams.map(|line| (line.age_ms, ClusterStream::new(&instance, line, now_ms))));
        if self.streams.len() > self.limit.saturating_mul(2) {
            self.keep_oldest();
        }
        if part.last {
            self.expected.missing.remove(&instance);
        }
    }

    fn keep_oldest(&mut self) {
        self.streams.sort_by(|(age, stream), (other_age, other)| {
            other_age.cmp(age).then_with(|| stream.thread_id.cmp(&other.thread_id))
        });
        self.streams.truncate(self.limit);
    }

    /// Returns the list. `why` says why instances may be missing.
    pub(super) fn finish(mut self, scope: ListScope, why: Option<String>) -> ClusterStreams {
        self.keep_oldest();
        let open = self.answers.values().map(|progress| progress.open).fold(0, u64::saturating_add);
        let complete = self.answers.into_iter().filter(|(_, progress)| progress.is_complete);
        ClusterStreams {
            scope,
            why: why.or(self.expected.uncertain),
            open,
            cut_off: open.saturating_sub(self.streams.len() as u64),
            instances: complete
                .map(|(instance, progress)| InstanceStreams { instance, open: progress.open })
                .collect(),
            silent: self.expected.missing.into_iter().collect(),
            streams: self.streams.into_iter().map(|(_, stream)| stream).collect(),
        }
    }
}

impl AnswerCollector for StreamCollector {
    fn take(&mut self, answer: InstanceAnswer) {
        match answer.kind {
            AnswerKind::Streams(part) => self.take_part(answer.instance, part),
            AnswerKind::Ended(_) => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.expected.is_complete()
    }
}

/// Counts the streams that instances were asked to end.
#[derive(Debug)]
pub(super) struct EndCollector {
    expected: ExpectedInstances,
    answers: BTreeMap<String, EndCounts>,
}

impl EndCollector {
    pub(super) fn new(expected: ExpectedInstances) -> EndCollector {
        EndCollector { expected, answers: BTreeMap::new() }
    }

    /// Returns the report. `why` says why instances may be missing.
    pub(super) fn finish(self, why: Option<String>) -> EndReport {
        let sum =
            |count: fn(&EndCounts) -> u64| self.answers.values().map(count).fold(0, u64::saturating_add);
        EndReport {
            ended: sum(|counts| counts.ended),
            ending: sum(|counts| counts.ending),
            silent: self.expected.missing.into_iter().collect(),
            why: why.or(self.expected.uncertain),
            instances: self
                .answers
                .into_iter()
                .filter(|(_, counts)| *counts != EndCounts::default())
                .map(|(instance, counts)| InstanceEnds { instance, counts })
                .collect(),
        }
    }
}

impl AnswerCollector for EndCollector {
    fn take(&mut self, answer: InstanceAnswer) {
        let AnswerKind::Ended(counts) = answer.kind else { return };
        if self.answers.contains_key(&answer.instance) || self.answers.len() >= MAX_INSTANCES {
            return;
        }
        self.expected.missing.remove(&answer.instance);
        self.answers.insert(answer.instance, counts);
    }

    fn is_complete(&self) -> bool {
        self.expected.is_complete()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::StreamLine;
    use super::*;

    const NOW_MS: u64 = 1_000_000_000_000;

    fn expected(names: &[&str]) -> ExpectedInstances {
        ExpectedInstances::new(names.iter().map(|name| (*name).to_owned()), None)
    }

    /// Streams of these ages in seconds, named by instance and age.
    fn lines(instance: &str, ages: impl IntoIterator<Item = u64>) -> Vec<StreamLine> {
        let line = |age: u64| StreamLine {
            thread_id: format!("{instance}-{age}"),
            user: None,
            route: None,
            age_ms: age * 1_000,
        };
        ages.into_iter().map(line).collect()
    }

    fn finish(collector: StreamCollector) -> ClusterStreams {
        collector.finish(ListScope::Cluster, None)
    }

    fn ids(list: &ClusterStreams) -> Vec<&str> {
        list.streams.iter().map(|stream| stream.thread_id.as_str()).collect()
    }

    #[test]
    fn a_list_is_complete_once_every_member_has_answered() {
        let mut collector = StreamCollector::new(expected(&["a", "b"]), 10, NOW_MS);
        for answer in InstanceAnswer::streams("a", 2, lines("a", [1, 5])) {
            collector.take(answer);
        }
        assert!(!collector.is_complete());
        for answer in InstanceAnswer::streams("b", 1, lines("b", [3])) {
            collector.take(answer);
        }
        assert!(collector.is_complete());
        let list = finish(collector);
        assert_eq!(ids(&list), ["a-5", "b-3", "a-1"]);
        assert_eq!((list.open, list.cut_off, list.silent.len()), (3, 0, 0));
        assert_eq!(list.streams[0].since, "2001-09-09T01:46:35Z");
        assert_eq!((list.streams[1].instance.as_str(), list.streams[1].since_seconds), ("b", 3));
    }

    #[test]
    fn the_oldest_streams_are_kept_and_the_others_are_counted() {
        let mut collector = StreamCollector::new(expected(&[]), 3, NOW_MS);
        for (instance, ages) in [("a", 0..50), ("b", 100..102), ("c", 50..100)] {
            let streams = lines(instance, ages);
            let open = streams.len() as u64 + 1_000;
            for answer in InstanceAnswer::streams(instance, open, streams) {
                collector.take(answer);
                assert!(collector.streams.len() <= 6);
            }
        }
        let list = finish(collector);
        assert_eq!(ids(&list), ["b-101", "b-100", "c-99"]);
        assert_eq!((list.open, list.cut_off), (3_102, 3_099));
        assert_eq!(list.instances.len(), 3, "instances that aren't members yet are listed, too");
    }

    #[test]
    fn an_instance_with_a_lost_or_repeated_part_is_silent() {
        let many = lines("a", 0..2_000);
        let parts = InstanceAnswer::streams("a", 2_000, many);
        assert!(parts.len() >= 3);
        let mut collector = StreamCollector::new(expected(&["a", "b"]), 10_000, NOW_MS);
        for part in parts.iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, part)| part) {
            collector.take(part.clone());
            collector.take(part.clone());
        }
        let first = collector.streams.len();
        assert!(first > 0 && first < 2_000);
        let list = finish(collector);
        assert_eq!((list.silent, list.instances), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        assert_eq!(list.cut_off, 2_000 - first as u64);
    }

    #[test]
    fn answers_of_made_up_instances_are_bounded() {
        let mut collector = StreamCollector::new(expected(&["z"]), 10, NOW_MS);
        let mut ends = EndCollector::new(expected(&["z"]));
        for number in 0..2 * MAX_INSTANCES {
            let name = format!("fake-{number}");
            InstanceAnswer::streams(&name, 1, Vec::new())
                .into_iter()
                .for_each(|answer| collector.take(answer));
            ends.take(InstanceAnswer::ended(&name, EndCounts { ended: 1, ending: 0 }));
        }
        assert_eq!((collector.answers.len(), ends.answers.len()), (MAX_INSTANCES, MAX_INSTANCES));
        assert!(!collector.is_complete() && !ends.is_complete());
    }

    #[test]
    fn while_the_members_are_uncertain_no_query_is_complete() {
        let uncertain = ExpectedInstances::new(["a".to_owned()], Some("rebuilding".to_owned()));
        let mut ends = EndCollector::new(uncertain);
        ends.take(InstanceAnswer::ended("a", EndCounts::default()));
        assert!(!ends.is_complete());
        let report = ends.finish(None);
        assert_eq!((report.silent.len(), report.why.as_deref()), (0, Some("rebuilding")));
    }

    #[test]
    fn the_ends_of_all_instances_are_counted_once() {
        let mut ends = EndCollector::new(expected(&["a", "b", "c"]));
        for (name, ended, ending) in [("a", 1, 0), ("a", 1, 0), ("b", 0, 2), ("c", 0, 0)] {
            ends.take(InstanceAnswer::ended(name, EndCounts { ended, ending }));
        }
        assert!(ends.is_complete());
        let report = ends.finish(None);
        let named: Vec<_> = report.instances.iter().map(|instance| instance.instance.as_str()).collect();
        assert_eq!((report.ended, report.ending, named), (1, 2, vec!["a", "b"]));
    }
}
