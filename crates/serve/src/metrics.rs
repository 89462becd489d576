//! Metrics of shapes, their snapshots and the responses to clients.

use std::sync::OnceLock;
use std::time::Duration;

use forebay_shapes::Shapes;
use http::StatusCode;
use metrics::{
    Counter, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::database::RowOutcome;
use super::protocol::Route;

const RESPONSES: &str = "forebay_serve_answers_total";
const SNAPSHOTS: &str = "forebay_serve_snapshots_total";
/// Histogram of the duration of snapshots.
pub const SNAPSHOT_SECONDS: &str = "forebay_serve_snapshot_seconds";
const SNAPSHOTS_RUNNING: &str = "forebay_serve_snapshots_running";
const SNAPSHOTS_WAITING: &str = "forebay_serve_snapshots_waiting";
const SHAPES: &str = "forebay_shapes";
const SHAPE_BYTES: &str = "forebay_shape_bytes";
const WRITING: &str = "forebay_store_writing";
const FULL: &str = "forebay_store_disk_full";
const UNWRITTEN: &str = "forebay_store_unwritten_bytes";
const JUDGED_ROWS: &str = "forebay_serve_judged_rows_total";
/// Histogram of the duration of judgements.
pub const JUDGEMENT_SECONDS: &str = "forebay_serve_judgement_seconds";
const GIVEN_UP: &str = "forebay_serve_clauses_given_up_total";
const HELD: &str = "forebay_shapes_held";
const HELD_BYTES: &str = "forebay_shapes_held_bytes";
const OVERFULL: &str = "forebay_shapes_overfull_total";
const CACHED_VERDICTS: &str = "forebay_serve_cached_verdicts_total";

/// Upper bounds of the histogram's buckets, in seconds: from a few rows to a large table.
pub const SNAPSHOT_BUCKETS: [f64; 9] = [0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0];

/// Upper bounds of the histogram's buckets, in seconds: from one row to several slow statements.
pub const JUDGEMENT_BUCKETS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 5.0, 15.0];

/// Describes all metrics to the recorder.
pub fn describe() {
    describe_counter!(
        RESPONSES,
        "Responses to clients, including refusals by admission, by route and status."
    );
    describe_counter!(SNAPSHOTS, "Snapshots of shapes, by outcome.");
    describe_histogram!(
        SNAPSHOT_SECONDS,
        Unit::Seconds,
        "Time from the request for a shape to its durable snapshot, including the wait for a permit."
    );
    describe_gauge!(SNAPSHOTS_RUNNING, "Snapshots that are running.");
    describe_gauge!(SNAPSHOTS_WAITING, "Snapshots that wait for a permit.");
    describe_gauge!(SHAPES, "Shapes in the store.");
    describe_gauge!(SHAPE_BYTES, Unit::Bytes, "Size of all shapes on disk: snapshots and logs.");
    describe_gauge!(WRITING, "1 if this instance writes to the store; 0 if it only reads.");
    describe_gauge!(FULL, "1 while the disk is full and nothing is read from the database.");
    describe_gauge!(
        UNWRITTEN,
        Unit::Bytes,
        "Bytes of shapes that are only in memory and in the write-ahead log."
    );
    describe_gauge!(HELD, "Shapes whose changes are held until Postgres has evaluated their clauses.");
    describe_gauge!(
        HELD_BYTES,
        Unit::Bytes,
        "Size of the changes that are held: for shapes whose clauses Postgres evaluates, and for shapes \
         without a snapshot."
    );
    describe_counter!(
        OVERFULL,
        "Shapes that were deleted because more changes would be held than storage.held_bytes or \
         storage.total_held_bytes."
    );
    describe_counter!(JUDGED_ROWS, "Changed rows on which Postgres evaluated a shape's clause, by outcome.");
    describe_histogram!(
        JUDGEMENT_SECONDS,
        Unit::Seconds,
        "Time for which Postgres evaluated a clause on a batch of rows, including the wait for a connection."
    );
    describe_counter!(
        CACHED_VERDICTS,
        "Changed rows for which a cached verdict of Postgres was used: it wasn't asked again."
    );
    describe_counter!(
        GIVEN_UP,
        "Shapes that were deleted because Postgres evaluates their clause too slowly or rejects it."
    );
}

/// Counts responses by route and status. Each counter is looked up once, because a lookup costs
/// more than an increment.
#[derive(Default)]
pub(crate) struct ResponseCounters {
    counters: [[OnceLock<Counter>; STATUSES.len()]; ROUTES],
}

const ROUTES: usize = Route::NotFound as usize + 1;

/// Values of the label `status`; the last denotes all other codes.
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

impl ResponseCounters {
    pub(crate) fn count(&self, route: Route, status: StatusCode) {
        let index = STATUSES.iter().position(|(code, _)| *code == status.as_u16());
        let index = index.unwrap_or(STATUSES.len() - 1);
        let label = STATUSES[index].1;
        let look_up = || counter!(RESPONSES, "route" => route.as_str(), "status" => label);
        self.counters[route as usize][index].get_or_init(look_up).increment(1);
    }
}

/// How a snapshot ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SnapshotOutcome {
    Complete,
    /// The shape was deleted before the end of its snapshot.
    Gone,
    Failed,
}

/// Counts a snapshot, and records the duration of a complete one.
pub(crate) fn snapshot_ended(outcome: SnapshotOutcome, after: Duration) {
    let label = match outcome {
        SnapshotOutcome::Complete => "complete",
        SnapshotOutcome::Gone => "gone",
        SnapshotOutcome::Failed => "failed",
    };
    counter!(SNAPSHOTS, "outcome" => label).increment(1);
    if let SnapshotOutcome::Complete = outcome {
        histogram!(SNAPSHOT_SECONDS).record(after.as_secs_f64());
    }
}

/// Counts the rows of a judgement, and records its duration. `None`: it failed.
pub(crate) fn judgement_ended(outcomes: Option<&[Option<RowOutcome>]>, after: Duration) {
    histogram!(JUDGEMENT_SECONDS).record(after.as_secs_f64());
    let outcomes = outcomes.unwrap_or_default();
    for (outcome, label) in
        [(RowOutcome::True, "true"), (RowOutcome::NotTrue, "not_true"), (RowOutcome::Failed, "failed")]
    {
        let rows = outcomes.iter().filter(|other| **other == Some(outcome)).count();
        counter!(JUDGED_ROWS, "outcome" => label).increment(rows as u64);
    }
}

/// Counts a shape that the clause judge deletes.
pub(crate) fn shape_given_up() {
    counter!(GIVEN_UP).increment(1);
}

/// Sets the gauges whose values are read on request.
pub(crate) fn measure(shapes: &Shapes, running: usize, waiting: usize) {
    let all = shapes.all();
    gauge!(SHAPES).set(all.len() as f64);
    gauge!(SHAPE_BYTES).set(all.iter().map(|shape| shape.bytes()).sum::<u64>() as f64);
    gauge!(WRITING).set(f64::from(u8::from(shapes.is_writing())));
    gauge!(FULL).set(f64::from(u8::from(shapes.is_full())));
    gauge!(UNWRITTEN).set(shapes.unwritten_bytes() as f64);
    gauge!(HELD).set(shapes.held_shapes() as f64);
    gauge!(HELD_BYTES).set(shapes.held_bytes() as f64);
    counter!(OVERFULL).absolute(shapes.overfull_shapes());
    counter!(CACHED_VERDICTS).absolute(shapes.cached_verdicts());
    // An alert sees the first increase only if the counter was 0 before.
    counter!(GIVEN_UP).increment(0);
    gauge!(SNAPSHOTS_RUNNING).set(running as f64);
    gauge!(SNAPSHOTS_WAITING).set(waiting as f64);
}
