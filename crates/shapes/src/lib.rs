//! Shapes: filtered views of Postgres tables, each with a durable log.
//!
//! A shape is a table, a where clause and a selection of columns. A [`ShapeCreation`] fills its log
//! with a snapshot. The [`Follower`] matches every committed transaction with all shapes, and
//! appends its messages to their logs, in exactly the bytes that clients receive. An HTTP server
//! reads those bytes from a [`Shape`]. This crate has no sockets and no database connection.
//!
//! ```
//! # use std::sync::Arc;
//! # use forebay_shapes::filter::{Collation, Column, Schema};
//! # use forebay_shapes::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema};
//! use forebay_shapes::pgoutput::PgOutputDecoder;
//! use forebay_shapes::{Offset, Shapes, StoreConfig};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = std::env::temp_dir().join(format!("forebay-shapes-lib-{}", std::process::id()));
//! # let messages: [&[u8]; 4] = [
//! #     b"B\0\0\0\0\0\0\x07\xD0\0\0\0\0\0\0\0\0\0\0\x02\xBD",
//! #     b"R\0\0\x40\0public\0orders\0f\0\x01\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF",
//! #     b"I\0\0\x40\0N\0\x01t\0\0\0\x012",
//! #     b"C\0\0\0\0\0\0\0\x07\xD0\0\0\0\0\0\0\x07\xE0\0\0\0\0\0\0\0\0",
//! # ];
//! # let types = Schema {
//! #     table: Some("orders".into()),
//! #     columns: vec![Column::new("id", 23, "int4")],
//! #     database_collation: Collation::C,
//! #     server_version: 18,
//! # };
//! # let table = Arc::new(TableSchema {
//! #     oid: 0x4000,
//! #     schema: "public".into(),
//! #     name: "orders".into(),
//! #     types,
//! #     membership: 1,
//! #     stream_types: vec![(23, -1)],
//! #     key: vec![0],
//! #     numbers: Vec::new(),
//! #     lineage: String::new(),
//! #     key_is_deferrable: false,
//! #     state: None,
//! #     notes: Vec::new(),
//! # });
//! # let options = ShapeOptions {
//! #     clause: None,
//! #     columns: None,
//! #     replica: ReplicaMode::Default,
//! #     log: LogMode::Full,
//! # };
//! # let definition = ShapeDefinition { table, options };
//! let store = Shapes::open(StoreConfig::new(&dir))?;
//! store.begin_writing()?;
//! store.reset("shop".into(), 1_000).await?; // follow the database "shop" from LSN 1000 on
//!
//! let (shape, creation) = store.find_or_create(definition, 1)?;
//! let mut creation = creation.expect("a new shape");
//! creation.follow(); // before the snapshot is taken
//! let timing = creation.snapshot_taken(&"700:701:".parse()?, 1_500); // pg_current_snapshot()
//! assert!(timing.is_in_time());
//! creation.seal()?; // a snapshot without rows
//! creation.complete().await?; // durable
//!
//! let (mut decoder, mut follower) = (PgOutputDecoder::new(), store.follower());
//! for message in messages {
//!     follower.apply(&decoder.decode(message)?)?; // BEGIN, INSERT INTO orders VALUES (2), COMMIT
//! }
//! shape.wait_for_log_after(Offset::SNAPSHOT_END).await?; // durable and readable
//! let page = shape.log_after(Offset::SNAPSHOT_END)?;
//! let log = shape.read_log(&page, page.from, page.to)?.concat();
//! assert!(str::from_utf8(&log)?.contains(r#""value":{"id":"2"}"#));
//! # store.end_writing();
//! # std::fs::remove_dir_all(dir)?;
//! # Ok(())
//! # }
//! ```
//!
//! The README has a longer example, with a where clause and rows in the snapshot. Where clauses and
//! the index of all clauses are in [`filter`], the crate `forebay-filter`.
//!
//! # Picture
//!
//! ```text
//!  replication messages                                    rows of COPY
//!      │                                                       │
//!      ▼                                                       ▼
//!  Follower (follower.rs)                            ShapeCreation (creation.rs)
//!      │ FollowedShapes (follow/): filter index, encode/       │ one record: snapshot complete
//!      ▼                                                       │ rows: WAL, or a file if large
//!  WriteQueue (store/write_queue.rs) ◀─────────────────────────┘
//!      │
//!      ▼
//!  writer thread ── append, sync ──▶ write-ahead log (store/wal.rs)
//!  (engine/writer.rs)                    │ checkpoint: shapes' files, catalog
//!      │ engine/apply.rs                 │ (engine/checkpoint.rs)
//!      ▼                                 ▼
//!  Shape (shape.rs) ◀── read ─────── shapes/*.snapshot, shapes/*.log, shapes/*.past
//!      │
//!      ├──▶ readers: log_after, read_log, snapshot_chunk
//!      └──▶ LogListener: each published transaction
//! ```
//!
//! - A store has three parts, each with one owner: the registry of all shapes (`registry.rs`), the
//!   followed shapes (`follow/`), and the storage directory (`store/`). No part calls another.
//!   They share the shapes, which read their own files. The engine (`engine/`) holds the parts and
//!   has the operations that concern several of them. The public types, [`Shapes`],
//!   [`ShapeCreation`] and [`Follower`], call the engine.
//! - *Log* is the log of a shape. *WAL* is the write-ahead log of the whole store, which has the
//!   records of all shapes.
//! - A change is encoded once for all shapes with the same columns and [`ReplicaMode`]. A record of
//!   the WAL contains each encoded message once. For each shape, it lists the byte ranges of that
//!   shape's messages. Live streams and the shapes' files get the same bytes.
//! - A process that doesn't write to the store can read it while another process writes. The
//!   writer, recovery and such a reader apply the same records with the same function. A takeover
//!   reads to the end of the WAL. If the WAL has records, it then runs a checkpoint.
//! - Committed changes are synced at once. Records of shapes that are created at the same time are
//!   collected for up to 5 ms, because a sync costs more than the rest of a creation.
//! - A *chunk* is a part of a snapshot or a log. A page that is read for a client never spans two
//!   chunks. The message with which a chunk reaches `chunk_bytes` closes it.
//! - The messages of a log are sorted by offset, one in each line. So an offset is found by binary
//!   search. The only index is the list of closed chunks: the end and the last offset of each.
//! - A checkpoint merges the part of a long log that is older than its last two closed chunks: an
//!   update is combined with the next update of the same row. Offsets don't change, so readers
//!   continue. The old files are kept for one more checkpoint. Inserts and deletes are kept,
//!   because the offset of a client may be between them.
//! - A shape is followed before its snapshot is taken. Transactions are held until the snapshot's
//!   visibility is known. Then those that the snapshot sees are dropped.
//! - If only Postgres can judge a row of a transaction, the shape is *held* from this commit on.
//!   The changes of this transaction and of later ones are kept as rows. A task of the server gets
//!   the undecided rows from [`Shapes::undecided_rows`], asks Postgres, and passes the verdicts to
//!   [`Shapes::decide`]. Then the transactions are encoded, and reach the log in order, at the
//!   offsets that they would have had. Other shapes don't wait.
//!
//!   ```text
//!    Follower ── undecided row ──▶ ShapeHold (follow/shape_hold.rs) ──▶ Shapes::undecided_rows
//!       │ commit record: held from L                                          │ one query
//!       ▼                                                                     ▼
//!    WAL ◀── late commits, in order ◀── release (follow/holds.rs) ◀── Shapes::decide
//!   ```
//!
//!   While a shape is held from L, nothing states that it is up to date at L or later
//!   ([`Shapes::seen_of`]), and Postgres gets no acknowledgement beyond L. After a crash or a
//!   takeover, Postgres repeats the transactions from L on, and only the held shapes get them
//!   again.
//! - A client identifies a row by its key. Two rows may have the same key: within a transaction if
//!   the key is deferrable, and always if the table has no key. When one of two such rows is
//!   deleted or gets another key, clients would delete their only copy, so the shape is deleted.
//! - Each table with shapes has a *baseline*: the catalog state for which its shapes are correct.
//!   It has the filenode, `xmin` of the table's rows in pg_attribute, hashes of the enum labels and
//!   composite attributes in its types, and its publication. When the state changes, shapes that
//!   are incorrect for the new state are deleted. Then the new state becomes the baseline, in
//!   memory and in the WAL.
//!
//! # Invariants and their tests
//!
//! - Every committed transaction reaches every shape that it concerns exactly once, whole and in
//!   commit order, unless the snapshot of the shape sees it.
//!   `clients_see_what_the_table_was_between_two_commits`,
//!   `without_a_crash_every_guarantee_holds`,
//!   `random_filters_are_found_as_if_each_were_evaluated`
//! - A shape whose log can't represent a change exactly is deleted, and its clients start over.
//!   `an_altered_table_deletes_the_shapes_that_need_the_altered_columns`,
//!   `a_missing_old_row_deletes_the_tables_shapes`,
//!   `two_rows_with_one_deferrable_key_in_a_transaction_delete_the_shapes`,
//!   `a_row_that_leaves_while_an_equal_row_remains_deletes_the_shape`
//! - While Postgres judges rows of a shape, its log gets nothing, and no up-to-date is beyond it.
//!   Afterwards the log is as if the rows had been judged at once. Other shapes don't wait, and
//!   shapes with undecided rows take turns.
//!   `an_undecided_row_holds_its_shape_and_no_other`, `shapes_with_undecided_rows_take_turns`,
//!   `held_transactions_reach_the_log_in_order_whatever_is_decided_first`,
//!   `a_reader_beside_the_writer_shows_no_more_than_the_writer`,
//!   `a_kill_keeps_a_held_shape_and_the_stream_repeats_its_transactions`,
//!   `a_hold_that_the_stream_does_not_repeat_deletes_only_its_shape`,
//!   `a_hold_before_the_snapshot_begins_if_the_snapshot_misses_the_transaction`
//! - Postgres judges each distinct row of a shape once, unless its verdict was forgotten.
//!   `updates_of_another_column_ask_for_a_row_once`,
//!   `each_distinct_row_is_asked_once_and_the_answer_is_kept`
//! - A snapshot that misses an earlier transaction of the stream is refused.
//!   `transactions_from_before_a_shape_was_followed_must_be_in_its_snapshot`,
//!   `an_invisible_commit_is_detected_however_many_commits_follow`
//! - Once a snapshot is complete, the readable bytes of its shape survive a kill and a power cut.
//!   Positions that were acknowledged to Postgres are durable.
//!   `a_crash_at_any_disk_call_breaks_no_guarantee`, `repeated_crashes_break_no_guarantee`,
//!   `shapes_survive_a_restart_and_a_kill`
//! - A shape whose deletion is in the WAL never reappears. If the process crashes before that, the
//!   shape exists again after the restart, and its log has no gap.
//!   `a_shape_deleted_on_a_full_disk_stays_deleted`,
//!   `a_shape_stays_complete_until_its_deletion_is_in_the_log`
//! - At most one process writes. A reader sees a prefix of the writer's WAL, and can take over.
//!   `only_one_process_writes_at_a_time`,
//!   `a_reader_beside_a_busy_writer_sees_a_prefix_of_the_log`,
//!   `a_reader_sees_the_writers_records_and_can_take_over`
//! - On a full disk, nothing is acknowledged, existing bytes can be read, and nothing is lost.
//!   `on_a_full_disk_nothing_is_acknowledged_and_reads_succeed`,
//!   `a_full_disk_pauses_the_store_until_there_is_space`
//! - A client that reads the merged log from any offset has the same rows at the end.
//!   `reading_the_merged_log_from_any_offset_leads_to_the_same_rows`,
//!   `a_long_log_is_compacted_and_clients_continue_from_any_offset`
//! - Memory, shapes, open files and, with `max_bytes`, disk are bounded by the settings.
//!   `a_transaction_of_300_megabytes_that_a_hundred_shapes_match_is_never_in_memory`,
//!   `memory_for_streams_does_not_grow_with_the_number_of_shapes`,
//!   `the_least_recently_used_shape_is_deleted_for_a_new_one`,
//!   `open_files_are_bounded_and_the_least_recently_used_one_is_closed`,
//!   `shapes_beyond_max_bytes_are_deleted_at_a_checkpoint`,
//!   `shapes_beyond_max_bytes_are_deleted_when_a_snapshot_completes`
//! - A handle is used for one shape only.
//!   `a_handle_is_never_reused_even_if_the_clock_goes_back`
//! - Fingerprints, by which the WAL refers to tables, are the same in every release.
//!   `the_fingerprint_of_a_table_is_the_same_in_every_release`,
//!   `the_fingerprint_of_a_definition_is_the_same_in_every_release`
//! - Only a torn end of the WAL is truncated. Records of a newer release are refused and left
//!   unchanged, and a process that finds them never takes over.
//!   `a_server_refuses_storage_of_a_newer_version_and_does_not_change_it`,
//!   `an_instance_beside_a_newer_one_refuses_requests_and_never_takes_over`,
//!   `a_torn_end_that_was_never_durable_is_truncated`,
//!   `damage_before_the_durable_position_is_refused_and_never_truncated`,
//!   `a_segment_with_a_successor_is_never_truncated`
//!
//! # Bounds
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | shapes | `max_shapes`, 100,000 | the least recently used shape is deleted |
//! | memory of all where clauses, as estimated | `clause_bytes`, 2 GiB | the least recently used shapes are deleted for a new one, those with long clauses first |
//! | bytes on disk | `max_bytes`, checked at checkpoints and completed snapshots | the least recently used shapes are deleted |
//! | records, queued or being written | `queued_bytes`, 16 MiB, plus one batch of the stream | [`Shapes::wait_for_room`] waits |
//! | messages that are in no shape's file | `unwritten_bytes`, 64 MiB | they are written |
//! | size of the last WAL segment | `wal_bytes`, 256 MiB | a checkpoint starts, after the open transaction and the running checkpoint |
//! | a transaction in memory | parts of 1 MiB | the part is queued |
//! | one message | `message_bytes`, 256 MiB | the shapes that would get it are deleted |
//! | changes held for a shape without a snapshot | `held_bytes`, 16 MiB | the shape is deleted |
//! | changes held for a shape until Postgres has judged its rows | `held_bytes`, 16 MiB | the shape is deleted |
//! | changes held for all shapes | `total_held_bytes`, 256 MiB | the shapes with the most are deleted |
//! | earlier messages of a transaction for shapes that may still be held | `held_bytes`, 16 MiB | they are queued, and an undecided row deletes its shape |
//! | undecided rows in a batch | 1,000; 8 MiB or one row | the others are in the next batch |
//! | remembered verdicts of a shape; of all shapes | 512 KiB; 64 MiB | the oldest are forgotten, and Postgres is asked again |
//! | open files of shapes | `open_files`, 512 | the least recently used file is closed |
//! | recent transactions of one table; of all | 1,048,576 (24 MiB); 4,194,304 (96 MiB) | the oldest is forgotten, and a new shape needs a snapshot with a newer `xmin` |
//! | deferrable keys that rows enter in one transaction | 1,048,576 | the table's shapes are deleted |
//! | counted rows of a shape whose table has no primary key; of all such shapes | 2,097,152; 16,777,216 (165 MiB) | rows aren't counted, and the shape is deleted when any row leaves it |
//! | row key changes that wait for a snapshot | 262,144 | rows aren't counted |
//! | row key changes that wait for a commit | 1,048,576 | they are counted before the commit |
//! | files read to count rows when writing begins | 64 MiB of one shape, 256 MiB of all | rows aren't counted |
//! | column mappings of one table, one for each partition | 1,024 | the cache is cleared |
//!
//! Tests: `a_transaction_of_300_megabytes_that_a_hundred_shapes_match_is_never_in_memory`,
//! `the_least_recently_used_shape_is_deleted_for_a_new_one`,
//! `the_least_recently_used_shapes_are_deleted_for_one_with_a_long_clause`,
//! `shapes_beyond_max_bytes_are_deleted_at_a_checkpoint`,
//! `shapes_beyond_max_bytes_are_deleted_when_a_snapshot_completes`,
//! `what_is_queued_and_what_is_being_written_share_one_bound`,
//! `held_bytes_are_bounded_within_a_transaction_and_across_many`, `what_is_held_is_bounded`,
//! `what_is_held_for_all_shapes_is_bounded`,
//! `batches_and_answers_are_bounded`, `all_tables_share_one_bound`,
//! `an_idle_shape_takes_less_than_five_kilobytes`,
//! `the_ranges_of_messages_that_wait_for_the_commit_are_bounded`,
//! `deferrable_keys_beyond_the_bound_are_ambiguous`,
//! `key_changes_beyond_the_bound_are_counted_before_the_commit`.
//!
//! # Lock order
//!
//! A thread takes locks in this order: the role of this process (`mode`), the writer turn, the
//! followed shapes, deletions that aren't in the WAL yet, the registry, replaced files, and the
//! state of a shape. `lock_order.rs` has the list. Builds with debug assertions panic on any other
//! order, so every test checks it.
//!
//! A [`ShapeCreation`] holds a read guard of the writer turn while it writes files or follows its
//! shape. The start and the end of writing take the write guard, so they wait for such writes.
//!
//! Deletions and matched changes are queued under the lock of the followed shapes, so the WAL has
//! them in the order in which they were made. Otherwise a crash could restore a shape whose log
//! has a gap.
//!
//! # Where to look
//!
//! The life of a row, file by file: `follower.rs`, `follow/table_group.rs`,
//! `follow/open_transaction.rs`, `follow/followed_shapes.rs`, `engine/mod.rs`,
//! `store/write_queue.rs`, `engine/writer.rs`, `engine/apply.rs`, `shape.rs`,
//! `engine/checkpoint.rs`.
//!
//! | topic | file |
//! |---|---|
//! | shape definitions and their equality; their stable hash | `definition.rs`; `definition/fingerprint.rs` |
//! | encoding of rows; COPY rows | `encode/row_encoder.rs`; `encode/copy.rs` |
//! | shapes that a row change concerns; what it means for one, and its messages | `follow/table_group.rs`; `follow/row_effect.rs` |
//! | messages of the stream | `follower.rs` |
//! | held transactions; why they are held; altered tables | `follow/held_transaction.rs`; `follow/shape_hold.rs`; `follow/followed_shapes.rs` |
//! | undecided rows; release of held transactions | `undecided_rows.rs`, `follow/row_verdicts.rs`; `follow/holds.rs` |
//! | parts of a transaction | `follow/open_transaction.rs` |
//! | changes of partitions | `follower.rs`, `follow/stream_relation.rs` |
//! | commits that aren't visible yet | `follow/recent_transactions.rs` |
//! | catalog changes that the stream doesn't describe | `definition/state.rs`, `baselines.rs` |
//! | equal rows of a table without a primary key | `row_keys.rs` |
//! | a snapshot, from its start until it is durable | `creation.rs` |
//! | readers and listeners | `shape.rs`; its state, `shape/state.rs` |
//! | lookup; creation, eviction, deletion | `registry.rs`; `engine/mod.rs` |
//! | writer thread, recovery, checkpoint | `engine/writer.rs`, `engine/replay.rs`, `engine/checkpoint.rs` |
//! | application of a record | `engine/apply.rs` |
//! | format of records, WAL, catalog and files | `store/`, explained in `store/mod.rs` |
//! | whether this process writes; its position; a full disk | `store/writer_role.rs`; `store/progress.rs`; `store/health.rs` |
//! | merge of long logs | `encode/merge.rs`, `engine/compaction.rs` |
//! | crashes, readers beside a writer, ten thousand shapes | `simulation/` |

#![forbid(unsafe_code)]

mod baselines;
mod config;
mod creation;
mod definition;
pub mod encode;
mod engine;
mod follow;
mod follower;
#[cfg(test)]
mod follower_tests;
mod lock_order;
mod offset;
mod registry;
mod row_keys;
mod shape;
mod shapes;
#[cfg(test)]
mod simulation;
mod store;
mod undecided_rows;

pub use forebay_filter as filter;
pub use forebay_pgoutput as pgoutput;

pub use crate::config::StoreConfig;
pub use crate::creation::ShapeCreation;
pub use crate::definition::{
    CatalogChange, CatalogState, LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema,
};
pub use crate::engine::CreateError;
pub use crate::follow::{PartitionTree, SnapshotTiming};
pub use crate::follower::{FollowError, Follower};
pub use crate::offset::{Offset, OffsetError, StartOffset};
pub use crate::shape::{
    LogListener, LogPage, Shape, ShapeGone, ShapeStreamGuard, SnapshotChunk, SnapshotFailure,
};
pub use crate::shapes::{Shapes, StorePosition};
pub use crate::store::{OpenError, StoreFailure, StoreSummary, StoreUnusable};
pub use crate::undecided_rows::UndecidedRows;
