//! What is counted of shapes and those who read them.

use std::sync::OnceLock;
use std::time::Duration;

use forebay_shapes::Shapes;
use http::StatusCode;
use metrics::{
    Counter, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::protocol::Route;

const ANSWERS: &str = "forebay_serve_answers_total";
const SNAPSHOTS: &str = "forebay_serve_snapshots_total";
/// The histogram of a snapshot's time.
pub const SNAPSHOT_SECONDS: &str = "forebay_serve_snapshot_seconds";
const SNAPSHOTS_RUNNING: &str = "forebay_serve_snapshots_running";
const SNAPSHOTS_WAITING: &str = "forebay_serve_snapshots_waiting";
const SHAPES: &str = "forebay_shapes";
const SHAPE_BYTES: &str = "forebay_shape_bytes";
const WRITING: &str = "forebay_store_writing";
const FULL: &str = "forebay_store_disk_full";
const UNWRITTEN: &str = "forebay_store_unwritten_bytes";

/// From a few rows to a large table.
pub const SNAPSHOT_BUCKETS: [f64; 9] = [0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0];

/// Describes all of them to the recorder.
pub fn describe() {
    describe_counter!(ANSWERS, "Answers to clients, admission's refusals included, by route and status.");
    describe_counter!(SNAPSHOTS, "Snapshots of shapes, by how they ended.");
    describe_histogram!(
        SNAPSHOT_SECONDS,
        Unit::Seconds,
        "From the request for a shape to its durable snapshot, the wait for a turn included."
    );
    describe_gauge!(SNAPSHOTS_RUNNING, "Snapshots that are being taken.");
    describe_gauge!(SNAPSHOTS_WAITING, "Snapshots that wait for their turn.");
    describe_gauge!(SHAPES, "Shapes that there are.");
    describe_gauge!(SHAPE_BYTES, Unit::Bytes, "What they take on disk, snapshots and logs.");
    describe_gauge!(WRITING, "1 if this instance writes the store; 0 if it reads along.");
    describe_gauge!(FULL, "1 while the disk is full and nothing is taken from the database.");
    describe_gauge!(
        UNWRITTEN,
        Unit::Bytes,
        "What of the shapes is only in memory and in the write-ahead log."
    );
}

/// Answers by route and status. Each counter is looked up when it is first needed: every answer is counted, and a lookup costs more than that.
#[derive(Default)]
pub(crate) struct Answers {
    counters: [[OnceLock<Counter>; STATUSES.len()]; ROUTES],
}

const ROUTES: usize = Route::NotFound as usize + 1;

/// What a counter's label says; the last stands for all others.
const STATUSES: [(u16, &str); 16] = [
    (200, "200"),
    (202, "202"),
    (204, "204"),
    (304, "304"),
    (400, "400"),
    (401, "401"),
    (403, "403"),
    (404, "404"),
    (405, "405"),
    (409, "409"),
    (413, "413"),
    (414, "414"),
    (429, "429"),
    (500, "500"),
    (503, "503"),
    (0, "other"),
];

impl Answers {
    pub(crate) fn count(&self, route: Route, status: StatusCode) {
        let place = STATUSES.iter().position(|(code, _)| *code == status.as_u16());
        let place = place.unwrap_or(STATUSES.len() - 1);
        let label = STATUSES[place].1;
        let look_up = || counter!(ANSWERS, "route" => route.as_str(), "status" => label);
        self.counters[route as usize][place].get_or_init(look_up).increment(1);
    }
}

/// How a snapshot ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ended {
    Complete,
    /// The shape went before it was made.
    Gone,
    Failed,
}

pub(crate) fn snapshot_ended(ended: Ended, after: Duration) {
    let outcome = match ended {
        Ended::Complete => "complete",
        Ended::Gone => "gone",
        Ended::Failed => "failed",
    };
    counter!(SNAPSHOTS, "outcome" => outcome).increment(1);
    if let Ended::Complete = ended {
        histogram!(SNAPSHOT_SECONDS).record(after.as_secs_f64());
    }
}

/// Sets the gauges whose values are read on request.
pub(crate) fn measure(shapes: &Shapes, running: usize, waiting: usize) {
    let all = shapes.all();
    gauge!(SHAPES).set(all.len() as f64);
    gauge!(SHAPE_BYTES).set(all.iter().map(|shape| shape.bytes()).sum::<u64>() as f64);
    gauge!(WRITING).set(f64::from(u8::from(shapes.is_writing())));
    gauge!(FULL).set(f64::from(u8::from(shapes.is_full())));
    gauge!(UNWRITTEN).set(shapes.unwritten_bytes() as f64);
    gauge!(SNAPSHOTS_RUNNING).set(running as f64);
    gauge!(SNAPSHOTS_WAITING).set(waiting as f64);
}
