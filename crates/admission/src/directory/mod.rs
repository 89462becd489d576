//! Open streams of the whole cluster: lists them, and ends one by its thread id.
//!
//! Invariant: an instance does nothing for this until an operator asks. A list has at most
//! [`MAX_LIMIT`] streams, and says how many it leaves out and which instances gave no answer. No
//! message on the channels can make an instance panic or hold more than a bounded amount of memory.
//! Enforced by: streams are read from admission's registry when they are requested. Instances talk
//! over Redis pub/sub, which costs nothing without messages. `message.rs` bounds and validates what
//! it decodes. `answer_collector.rs` records which instances have answered, and keeps only the
//! oldest streams.
//!
//! ```text
//! operator ─▶ admin address of any instance ─▶ StreamDirectory
//!                │ PUBLISH {ns}:streams              query: list, or end of a thread id
//!                ▼                                          ▼
//!              Redis ─────────────────────────────▶ every other instance: its own registry
//!                ▲ PUBLISH {ns}:streams:<request>          │ answers, in parts of 32 KiB
//!                └──────────────────────────────────────────┘
//! ```
//!
//! A query ends when all members of the quota have answered, or after [`DEADLINE`]. Instances of
//! other versions ignore what they can't read, and count as silent. Without Redis, the list has the
//! streams of this instance only, and says so.
//!
//! Out of scope: who may ask. The caller authenticates operators, and instances trust what is
//! published in their namespace, as they trust the counts in it.
//!
//! | to find | look in |
//! |---|---|
//! | queries and answers as bytes | `message.rs` |
//! | which instances have answered; the merged list | `answer_collector.rs` |
//! | what an operator gets, as JSON | `report.rs` |
//! | Redis, and the answers of this instance | `stream_directory.rs` |

mod answer_collector;
mod message;
mod report;
mod stream_directory;
mod utc_time;

pub use self::message::{EndCounts, is_user_hash};
pub use self::report::{
    ClusterStream, ClusterStreams, EndOutcome, EndReport, InstanceEnds, InstanceStreams, ListScope,
};
pub use self::stream_directory::{RedisBus, StreamDirectory};

/// Streams in a list unless the operator asks for another number.
pub const DEFAULT_LIMIT: usize = 1_000;
/// Maximum number of streams in a list.
pub const MAX_LIMIT: usize = 10_000;
/// Time in which instances can answer a query.
pub const DEADLINE: std::time::Duration = std::time::Duration::from_secs(1);
