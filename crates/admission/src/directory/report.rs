//! What an operator gets: the streams of the cluster, or which streams were ended. Pure.

use serde::Serialize;

use super::message::{EndCounts, StreamLine};
use super::utc_time::utc_time;

/// The open streams of the cluster, for `/v1/streams`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterStreams {
    /// Whose streams these are.
    pub scope: ListScope,
    /// Why instances may be missing.
    pub why: Option<String>,
    /// Streams open at the instances that answered.
    pub open: u64,
    /// How many of them are not listed.
    pub cut_off: u64,
    /// Instances that answered.
    pub instances: Vec<InstanceStreams>,
    /// Instances that gave no complete answer.
    pub silent: Vec<String>,
    /// The oldest streams, oldest first.
    pub streams: Vec<ClusterStream>,
}

/// Whose streams a list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListScope {
    /// Those of all instances that answered.
    Cluster,
    /// Only those of the instance that was asked.
    Instance,
}

/// An instance that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceStreams {
    /// Name of the instance.
    pub instance: String,
    /// Streams that are open there.
    pub open: u64,
}

/// One open stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterStream {
    /// Id of the stream.
    pub thread_id: String,
    /// Hash of the user; `None` for anonymous clients.
    pub user: Option<String>,
    /// Name of the instance that has it.
    pub instance: String,
    /// Route of its request.
    pub route: Option<String>,
    /// When it was admitted, in UTC.
    pub since: String,
    /// Seconds since then.
    pub since_seconds: u64,
}

impl ClusterStream {
    /// Creates the stream of a line that was sent just before `now_ms`, the time since 1970.
    pub(super) fn new(instance: &str, line: StreamLine, now_ms: u64) -> ClusterStream {
        let StreamLine { thread_id, user, route, age_ms } = line;
        let since = utc_time(now_ms.saturating_sub(age_ms) / 1_000);
        ClusterStream {
            thread_id,
            user,
            instance: instance.to_owned(),
            route,
            since,
            since_seconds: age_ms / 1_000,
        }
    }
}

/// Streams that were asked to end, for `/v1/streams/end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndReport {
    /// Streams that have ended.
    pub ended: u64,
    /// Streams that end as soon as their client reads, or at the write timeout.
    pub ending: u64,
    /// Instances that had such streams.
    pub instances: Vec<InstanceEnds>,
    /// Instances that gave no answer.
    pub silent: Vec<String>,
    /// Why other instances may have such streams, too.
    pub why: Option<String>,
}

/// Streams that an instance was asked to end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InstanceEnds {
    /// Name of the instance.
    pub instance: String,
    #[serde(flatten)]
    /// How many.
    pub counts: EndCounts,
}

/// What an [`EndReport`] says of the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndOutcome {
    /// All that were found have ended.
    Ended,
    /// Some that were found haven't ended yet.
    Ending,
    /// All instances answered, and none has such a stream.
    NotFound,
    /// No instance that answered has such a stream. The text says why others may have one.
    Unknown(String),
}

impl EndReport {
    /// Returns what became of the streams.
    pub fn outcome(&self) -> EndOutcome {
        match (self.ended, self.ending) {
            (0, 0) => match (self.silent.len(), &self.why) {
                (0, None) => EndOutcome::NotFound,
                (0, Some(why)) => EndOutcome::Unknown(why.clone()),
                (count, why) => {
                    let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                    EndOutcome::Unknown(format!("{count} gave no answer{why}: {}", self.silent.join(", ")))
                }
            },
            (_, 0) => EndOutcome::Ended,
            (_, _) => EndOutcome::Ending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_not_taken_for_absence() {
        let report = |ended, ending, silent: &[&str], why: Option<&str>| EndReport {
            ended,
            ending,
            instances: Vec::new(),
            silent: silent.iter().map(|name| (*name).to_owned()).collect(),
            why: why.map(str::to_owned),
        };
        assert_eq!(report(0, 0, &[], None).outcome(), EndOutcome::NotFound);
        let unknown = report(0, 0, &["a", "b"], None).outcome();
        assert_eq!(unknown, EndOutcome::Unknown("2 gave no answer: a, b".into()));
        assert_eq!(report(0, 0, &[], Some("no Redis")).outcome(), EndOutcome::Unknown("no Redis".into()));
        assert_eq!(report(1, 0, &["a"], None).outcome(), EndOutcome::Ended);
        assert_eq!(report(1, 1, &[], None).outcome(), EndOutcome::Ending);
    }
}
