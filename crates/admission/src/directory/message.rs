//! Queries and answers of instances, as JSON. Pure.
//!
//! Invariant: decoding returns `None` for anything that isn't a valid message of this version. A
//! decoded message takes at most about [`MAX_MESSAGE_BYTES`], and each of its texts has a bound of
//! its own.
//! Enforced by: longer payloads aren't parsed. [`StreamQuery::decode`] and
//! [`InstanceAnswer::decode`] check every text.

use crate::{OpenStream, ThreadId};
use serde::{Deserialize, Serialize};

/// Version of the messages. Instances ignore other versions.
const VERSION: u32 = 1;
/// Maximum length of a message. Longer ones are ignored.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Bytes of streams after which an answer continues in another message. One stream has less than
/// 2 KiB, so that a message stays below [`MAX_MESSAGE_BYTES`].
const PART_BYTES: usize = 32 * 1024;
/// Maximum length of an instance's name: that of the quota's members, and room for later changes.
const MAX_NAME_BYTES: usize = 128;
/// Maximum length of a stream's route, as in admission.
const MAX_ROUTE_BYTES: usize = 256;
/// Length of a user's hash.
const USER_BYTES: usize = 16;
/// Length of a request's id, a UUID.
const REQUEST_BYTES: usize = 36;

/// A question of one instance to all others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamQuery {
    v: u32,
    /// Name of the instance that asks. It doesn't answer itself.
    pub(super) from: String,
    /// Random id. Answers go to the channel of this id.
    pub(super) request: String,
    pub(super) kind: QueryKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum QueryKind {
    /// Requests the oldest streams.
    List { limit: usize },
    /// Ends the streams of a thread id and, if set, of the user with this hash.
    End { thread_id: String, user: Option<String> },
}

/// An answer of one instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstanceAnswer {
    v: u32,
    pub(super) instance: String,
    pub(super) kind: AnswerKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerKind {
    Streams(StreamsPart),
    Ended(EndCounts),
}

/// One part of a list of streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamsPart {
    /// Number of the part, from 0.
    pub(super) part: u32,
    /// Whether this is the last part.
    pub(super) last: bool,
    /// Streams that are open at the instance, whether listed or not.
    pub(super) open: u64,
    pub(super) streams: Vec<StreamLine>,
}

/// Streams of a thread id that an instance was asked to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndCounts {
    /// Streams that have ended.
    pub ended: u64,
    /// Streams that end as soon as their client reads, or at the write timeout.
    pub ending: u64,
}

/// One open stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamLine {
    pub(super) thread_id: String,
    /// Hash of the user; `None` for anonymous clients.
    pub(super) user: Option<String>,
    pub(super) route: Option<String>,
    pub(super) age_ms: u64,
}

impl StreamQuery {
    pub(super) fn new(from: &str, kind: QueryKind) -> StreamQuery {
        StreamQuery { v: VERSION, from: from.to_owned(), request: ThreadId::random().to_string(), kind }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a query is text and numbers")
    }

    pub(super) fn decode(payload: &[u8]) -> Option<StreamQuery> {
        let query: StreamQuery = parse(payload)?;
        let is_id = |text: &str| {
            text.len() == REQUEST_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        };
        let is_valid = match &query.kind {
            QueryKind::List { .. } => true,
            QueryKind::End { thread_id, user } => {
                ThreadId::parse(thread_id).is_some() && user.as_deref().is_none_or(is_user_hash)
            }
        };
        (query.v == VERSION && is_name(&query.from) && is_id(&query.request) && is_valid).then_some(query)
    }
}

impl InstanceAnswer {
    /// Returns the answer to a query that ends streams.
    pub(super) fn ended(instance: &str, counts: EndCounts) -> InstanceAnswer {
        InstanceAnswer { v: VERSION, instance: instance.to_owned(), kind: AnswerKind::Ended(counts) }
    }

    /// Returns the answer to a query for streams, in parts. There is at least one.
    pub(super) fn streams(instance: &str, open: u64, streams: Vec<StreamLine>) -> Vec<InstanceAnswer> {
        let (mut parts, mut bytes) = (vec![Vec::new()], 0);
        for stream in streams {
            bytes += stream.encoded_bytes();
            if bytes > PART_BYTES {
                bytes = stream.encoded_bytes();
                parts.push(Vec::new());
            }
            parts.last_mut().expect("there is at least one part").push(stream);
        }
        let count = parts.len();
        let part = |(number, streams): (usize, Vec<StreamLine>)| {
            let part = u32::try_from(number).expect("a list has at most 10,000 streams");
            StreamsPart { part, last: number + 1 == count, open, streams }
        };
        let answer = |part| InstanceAnswer {
            v: VERSION,
            instance: instance.to_owned(),
            kind: AnswerKind::Streams(part),
        };
        parts.into_iter().enumerate().map(part).map(answer).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an answer is text and numbers")
    }

    pub(super) fn decode(payload: &[u8]) -> Option<InstanceAnswer> {
        let answer: InstanceAnswer = parse(payload)?;
        let is_valid = match &answer.kind {
            AnswerKind::Streams(part) => part.streams.iter().all(StreamLine::is_valid),
            AnswerKind::Ended(_) => true,
        };
        (answer.v == VERSION && is_name(&answer.instance) && is_valid).then_some(answer)
    }
}

impl StreamLine {
    fn is_valid(&self) -> bool {
        ThreadId::parse(&self.thread_id).is_some()
            && self.user.as_deref().is_none_or(is_user_hash)
            && self.route.as_ref().is_none_or(|route| route.len() <= MAX_ROUTE_BYTES)
    }

    fn encoded_bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |text| text.len() + 1)
    }
}

impl From<OpenStream> for StreamLine {
    fn from(stream: OpenStream) -> StreamLine {
        StreamLine {
            thread_id: stream.thread_id.to_string(),
            user: stream.user(),
            route: stream.route.as_deref().map(str::to_owned),
            age_ms: u64::try_from(stream.age.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Returns whether a text can be the name of an instance.
fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
}

/// Returns whether a text is the hash of a user.
pub fn is_user_hash(text: &str) -> bool {
    text.len() == USER_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn parse<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Option<T> {
    if payload.len() > MAX_MESSAGE_BYTES {
        return None;
    }
    serde_json::from_slice(payload).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(thread_id: &str, route: &str) -> StreamLine {
        let user = Some("0123456789abcdef".to_owned());
        StreamLine { thread_id: thread_id.to_owned(), user, route: Some(route.to_owned()), age_ms: 7 }
    }

    #[test]
    fn messages_have_the_documented_form() {
        let kind = QueryKind::End { thread_id: "t".into(), user: None };
        let query = StreamQuery::new("one", kind);
        let text: serde_json::Value = serde_json::from_slice(&query.encode()).unwrap();
        let expected = json!({"v": 1, "from": "one", "request": query.request,
            "kind": {"end": {"thread_id": "t", "user": null}}});
        assert_eq!(text, expected);
        assert_eq!(StreamQuery::decode(&query.encode()), Some(query));
        let answers = InstanceAnswer::streams("two", 9, vec![line("t", "GET /")]);
        let text: serde_json::Value = serde_json::from_slice(&answers[0].encode()).unwrap();
        let stream = json!({"thread_id": "t", "user": "0123456789abcdef", "route": "GET /", "age_ms": 7});
        let part = json!({"part": 0, "last": true, "open": 9, "streams": [stream]});
        assert_eq!(text, json!({"v": 1, "instance": "two", "kind": {"streams": part}}));
    }

    #[test]
    fn a_long_list_is_sent_in_parts_that_every_instance_accepts() {
        // The longest line: every character of both texts is escaped.
        let longest = line(&"\"".repeat(128), &"\u{1}".repeat(MAX_ROUTE_BYTES));
        assert!(longest.encoded_bytes() < 2 * 1024, "{}", longest.encoded_bytes());
        let answers = InstanceAnswer::streams("one", 500, vec![longest.clone(); 500]);
        assert!(answers.len() > 1);
        let mut streams = Vec::new();
        for (number, answer) in answers.iter().enumerate() {
            let bytes = answer.encode();
            assert!(bytes.len() <= MAX_MESSAGE_BYTES, "{}", bytes.len());
            let decoded = InstanceAnswer::decode(&bytes).unwrap();
            let AnswerKind::Streams(part) = decoded.kind else { panic!("a list") };
            assert_eq!((part.part as usize, part.last), (number, number + 1 == answers.len()));
            streams.extend(part.streams);
        }
        assert_eq!(streams, vec![longest; 500]);
        assert_eq!(InstanceAnswer::streams("one", 0, Vec::new()).len(), 1, "an empty list is an answer");
    }

    #[test]
    fn other_versions_and_unknown_kinds_are_ignored_and_new_fields_are_not() {
        let query = |v: u32, kind: serde_json::Value| {
            let request = ThreadId::random().to_string();
            let query = json!({"v": v, "from": "one", "request": request, "kind": kind, "new": [1]});
            StreamQuery::decode(&serde_json::to_vec(&query).unwrap())
        };
        assert!(query(1, json!({"list": {"limit": 3, "sorted": true}})).is_some());
        assert!(query(2, json!({"list": {"limit": 3}})).is_none());
        assert!(query(1, json!({"pause": {}})).is_none());
    }

    #[test]
    fn garbage_is_no_message() {
        let long_id = line(&"x".repeat(129), "r");
        let long_route = line("t", &"r".repeat(257));
        let bad_user = StreamLine { user: Some("ada".into()), ..line("t", "r") };
        for bad in [long_id, long_route, bad_user] {
            assert_eq!(
                InstanceAnswer::decode(&InstanceAnswer::streams("one", 1, vec![bad])[0].encode()),
                None
            );
        }
        let nameless = InstanceAnswer::ended("", EndCounts::default());
        assert_eq!(InstanceAnswer::decode(&nameless.encode()), None);
        let mut foreign = StreamQuery::new("one", QueryKind::List { limit: 1 });
        foreign.request = "*".repeat(REQUEST_BYTES);
        assert_eq!(StreamQuery::decode(&foreign.encode()), None);
        let end = |thread_id: &str, user: Option<&str>| {
            let kind = QueryKind::End { thread_id: thread_id.into(), user: user.map(str::to_owned) };
            StreamQuery::decode(&StreamQuery::new("one", kind).encode())
        };
        assert!(end("t", Some("0123456789abcdef")).is_some());
        for (thread_id, user) in [("", None), (&*"x".repeat(129), None), ("t", Some("ada")), ("t", Some(""))]
        {
            assert_eq!(end(thread_id, user), None, "{thread_id:?} {user:?}");
        }
        let nameless = StreamQuery::new("", QueryKind::List { limit: 1 });
        assert_eq!(StreamQuery::decode(&nameless.encode()), None);
        let long = vec![b' '; MAX_MESSAGE_BYTES + 1];
        let deep = "[".repeat(60_000).into_bytes();
        for bytes in [&b""[..], b"null", b"{}", b"[1]", b"\xff\xfe", br#"{"v":1}"#, &long, &deep] {
            assert_eq!(StreamQuery::decode(bytes), None);
            assert_eq!(InstanceAnswer::decode(bytes), None);
        }
    }
}
