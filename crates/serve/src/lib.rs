//! Serves shapes of one Postgres database over HTTP, as a tower service that an axum app can mount.
//!
//! A *shape* is the rows of a table that match a clause, with some or all of its columns. A client
//! loads the shape's snapshot, then reads its log, then waits for changes: by long-polling or by
//! server-sent events. The protocol is that of `@electric-sql/client`.
//!
//! ```no_run
//! use axum::Router;
//! use forebay_admission::{Admission, Identifier};
//! use forebay_quota::Quota;
//! use forebay_replication::{ManagerConfig, reservoir::PostgresConnect};
//! use forebay_serve::{Config, ShapeBackend, protocol::Access};
//! use forebay_shapes::{Shapes, StoreConfig};
//!
//! # async fn app() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Shapes::open(StoreConfig::new("/var/lib/app"))?;
//! let database = ManagerConfig::new(PostgresConnect::new("postgres://app@db.internal/shop")?);
//! let backend = ShapeBackend::start(store, database, Config::default())?;
//! backend.manager().ready().await?;
//! let admission = Admission::builder().total(10_000).build(Quota::local()); // live requests
//! let access = Access::default(); // no secret, no tokens
//! let service = backend.service(admission, Identifier::new(), access);
//! let app = Router::<()>::new().route_service("/v1/shape", service);
//! # drop(app);
//! backend.shutdown().await; // after the HTTP server has ended
//! # Ok(())
//! # }
//! ```
//!
//! # Picture
//!
//! ```text
//! client ─▶ ServeService ─▶ AdmissionLayer ─▶ ShapeHandler ─▶ bodies, event streams ─▶ Shape
//!           host, secret,   a permit for      │ no such shape                          ▲ files,
//!           token, grants   live requests     ▼                                        │ topics
//!                  ┌─ connections ─▶ ShapeFactory ─▶ database/ ─▶ snapshot ────────────┤
//!                  │                 publishes the table, waits for earlier writers,   │
//!                  │                 scans the catalog every 2 s (CatalogWatch)        │
//! Postgres ─▶ Manager ─▶ ShapesConsumer ─▶ SchemaMonitor ─▶ Follower ─▶ log ───────────┘
//! ```
//!
//! - **A new shape.** The table is described and added to the publication. The snapshot runner
//!   waits until transactions that wrote to the table earlier have ended. From then on, the store
//!   holds the stream's changes for the shape in memory. Then the snapshot is taken, and the store
//!   drops the held changes that the snapshot sees. A small snapshot needs two round trips and no
//!   disk. The first locks the table, takes the snapshot, reads the table's edition (the versions
//!   of its catalog rows) and prepares the COPY. The second runs the COPY and the COMMIT.
//! - **An event stream.** It subscribes to the shape's topic first and reads the log second, so it
//!   misses no transaction in between. A stream that falls behind, or receives a transaction too
//!   large for the topic, reads the log again. It delays no other stream.
//! - **Resuming an event stream.** `@electric-sql/client` drops messages that no up-to-date
//!   followed. If its stream breaks before the first up-to-date, it resumes at the offset in the
//!   response headers. So these have the offset that the client sent, a stream ends only after an
//!   up-to-date, and a slow client gets one about every second. None is sent within the merged
//!   (compacted) part of a log: before the end of that part, the client may have rows that the
//!   table never had at the same time.
//! - **An altered table.** The stream has no primary keys and no collations. But Postgres sends a
//!   Relation message before a table's first change after any alteration. At that message, the
//!   stream waits until the catalog was read with a snapshot that sees the altering transaction. If
//!   the catalog can't be read for 15 s, the stream ends and later resumes. Otherwise a Postgres
//!   server that shuts down would wait for the stream, and the stream for a connection that the
//!   server no longer accepts.
//! - **An alteration without changes of rows** isn't in the stream. For each table the store keeps
//!   a baseline (`CatalogState`): the table's file, the versions of its columns' catalog rows,
//!   labels of enums, attributes of composite types, and the catalog rows that publish the table.
//!   Every 2 s the writing instance compares the catalog with the baselines of up to 500 tables,
//!   with one query. If the log can't show a difference, the table's shapes are deleted. The new
//!   state becomes the baseline.
//! - **Partitions.** At first, changes of a partition carry the name of its topmost published
//!   ancestor. From the first request for a shape of a partition on, they carry the partition's own
//!   name (`publish_via_partition_root = false`). Either way, they reach the shapes of both. A
//!   table's lineage (see `database/describe.rs`) contains its list of partitions, so an attach or
//!   detach replaces its shapes. COPY reads the partitions that exist when it begins. The list is
//!   read before and after it, and a difference fails the snapshot.
//! - **Several instances** share the store. The instance that holds the manager's lock writes. The
//!   others read the store every 50 ms, serve it, live requests included, and create no shapes.
//! - **Each time replication starts**, the tables of all shapes are published again. Shapes whose
//!   table was removed from the publication meanwhile are deleted.
//!
//! # Invariants and their tests
//!
//! - Restarts, kills and lost connections lose nothing and deliver nothing twice.
//!   `kills_restarts_and_cuts_change_nothing_for_clients`, `shapes_survive_a_restart_and_a_kill`,
//!   `no_change_is_lost_or_printed_twice_across_server_restarts`
//! - In a rolling deploy clients miss nothing. After a kill, another instance takes over.
//!   `a_rolling_restart_under_a_thousand_streams_loses_no_change_and_keeps_the_limit`,
//!   `a_waiting_instance_serves_existing_shapes_and_takes_over`
//! - At each up-to-date, the client's rows are those that the table had at one moment between two
//!   commits, never a mixture of two states.
//!   `clients_see_what_the_table_was_between_two_commits`,
//!   `a_slow_client_is_up_to_date_only_between_commits_while_its_log_is_compacted`
//! - An event stream that ends after messages without an up-to-date is aborted: it never looks
//!   complete. `a_stream_breaks_when_its_token_expires_inside_a_transaction`,
//!   `a_stream_past_its_timeout_continues_to_the_next_up_to_date`
//! - Every change is in the snapshot or in the log, and never in both.
//!   `a_writer_that_is_open_across_the_table_s_publication_is_in_the_snapshot`,
//!   `a_commit_that_waits_for_its_standby_is_in_a_new_shape`
//! - Snapshot and log write a value as the same text.
//!   `values_are_the_same_text_in_snapshot_and_log`,
//!   `every_value_is_the_text_that_postgres_writes`
//! - A change reaches a shape only if the shape fitted the table when the row changed.
//!   `ddl_that_waits_for_its_standby_ends_the_shape_before_the_next_row`,
//!   `a_shape_created_between_attach_and_detach_is_replaced`
//! - An alteration that the stream doesn't show replaces the shapes within 5 s, if at most 500
//!   tables have shapes.
//!   `a_new_column_is_soon_served_although_no_row_changed`,
//!   `renaming_an_enum_label_replaces_every_shape_with_the_enum`
//! - A client with a token sees no row and no column outside its grant, and no error reveals one.
//!   `no_clause_of_a_client_matches_a_row_outside_the_grant`,
//!   `a_clause_that_fails_on_a_row_fails_only_where_the_grant_is_true`
//! - No request waits, no event stream lasts, and nothing is read for a response, after the token's
//!   expiry. Rows that were read before it are sent: one piece of a snapshot or log, or a subset.
//!   `no_wait_outlasts_the_token`,
//!   `a_busy_stream_ends_when_its_token_expires`,
//!   `a_large_response_breaks_when_its_token_expires`
//! - A token is verified once per request. Admission gets the verified token, which no client can
//!   create.
//!   `a_token_is_verified_once_per_request`
//! - A live request takes a permit, whether its parameters are in the query string or in the body.
//!   `only_live_requests_need_a_permit`, `a_live_body_takes_a_permit`
//! - A subset's clause can read only the row that it is evaluated for.
//!   `only_functions_that_read_nothing_but_their_arguments_are_allowed`,
//!   `no_clause_does_more_than_evaluate_a_row`
//! - A clause that Postgres evaluates on changed rows has the value that it has in a snapshot.
//!   `texts_are_judged_as_in_the_table_under_every_kind_of_collation`,
//!   `values_of_all_types_are_judged_as_in_the_table`,
//!   `text_is_ordered_and_compared_by_icu_in_snapshots_and_live`
//! - A clause that is slow, or fails on a row, affects no other shape.
//!   `a_clause_that_is_too_slow_rotates_only_its_own_shape`,
//!   `a_statement_that_is_too_slow_once_keeps_the_shape`,
//!   `a_shape_whose_rows_fail_does_not_keep_others_waiting`,
//!   `rows_on_which_the_clause_fails_do_not_change_the_outcome_of_others`
//! - A live response without changes is never revalidated with 304: each one has a new ETag.
//!   `head_requests_etags_and_compression_follow_http`
//!
//! # Bounds
//!
//! | resource | limit | beyond it |
//! |---|---|---|
//! | snapshots at once | [`Config::snapshots`] | shapes wait |
//! | shapes and subsets that wait for a snapshot, or have one running | 1,000 | 503 with Retry-After |
//! | wait for earlier writers of a table | 30 s | 503 with Retry-After |
//! | transactions of a topic | 64, and 1 MiB | the stream reads the log |
//! | one transaction in a topic | 256 KiB | streams read the log |
//! | bytes in topics and bytes being sent, of all shapes | 256 MiB | topics keep nothing, streams read the log; from 128 MiB on, reads are 16 KiB instead of 256 KiB |
//! | cached long-poll responses | 64 of 16 KiB | the response in the same slot is replaced |
//! | one request body; all in progress | 8 MiB; 64 MiB | 413; 503 with Retry-After |
//! | parses of clauses above 32 KiB at once | one for each two CPUs | the next ones wait |
//! | one subset | 64 MiB | 400 |
//! | all subsets | 256 MiB | 503 with Retry-After |
//! | a subset's clause that only Postgres can evaluate, or that calls functions | 5 s | 400 |
//! | a statement that evaluates a shape's clause on changed rows | 1,000 rows, 5 s; two at once, and one less than the connections for metadata; one per shape; [`Config::postgres_clause_statements_per_s`] | the shape waits; a clause that is too slow twice ends its shape |
//! | statements of one turn of such a shape | 16; 15 s | other shapes get as many turns, or as much time, before the next one |
//! | shapes with such clauses | [`Config::postgres_clause_shapes`] | 503 with Retry-After |
//! | tables in one periodic scan of the catalog | 500 | the next scan reads the next 500 |
//! | connections that the consumer requests | 1 | the stream waits |
//! | lines of failed requests in the log | 10 per second | counted in the next line |
//!
//! # Lock order
//!
//! - No two locks of this crate are held together. Mutexes of `parking_lot` are never held across
//!   an await.
//! - A shape's lock (`forebay_shapes`) comes before its topic's: the store calls `ShapeTopic` while
//!   it publishes.
//! - Permits and connections are taken in this order: queue permit, snapshot permit, `AwakeGuard`,
//!   admin connection, snapshot connection. The admin connection is returned before the snapshot
//!   connection is taken.
//! - The replication stream never waits for a task that changes the publication: the schema monitor
//!   takes an admin connection, and if none is free within 5 s, a snapshot connection.
//!
//! # Shutdown
//!
//! [`ShapeBackend::shutdown`] ends the background tasks, then the manager, which acknowledges the
//! durable position, then the store's writer. Call it after the HTTP server has ended. The
//! connection lender ends with the manager.
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | access, tokens, permits, CORS, request ids | `service.rs`, `access_control.rs`, `token_verifier.rs` |
//! | rows and columns of a grant | `grant_scope.rs` |
//! | parameters, headers, cache rules, refusals; all pure | `protocol/` |
//! | request bodies; long clauses | `request_body.rs`; `clause_turns.rs` |
//! | from a request to a response | `shape_handler.rs`, `request_context.rs`, `subset.rs` |
//! | one response for all long-polls that wait for the same change | `response_cache.rs` |
//! | response bodies | `body.rs` |
//! | server-sent events; catching up from the log | `shape_event_stream.rs`; `catch_up.rs` |
//! | memory of responses | `buffered_bytes.rs` |
//! | finding and creating shapes | `shape_factory/` |
//! | tables, clauses and snapshots in Postgres | `database/` |
//! | from the stream to the store | `consumer.rs` |
//! | connections for the consumer | `connection_lender.rs` |
//! | altered tables: in the stream; outside of it | `schema_monitor.rs`; `catalog_watch.rs` |
//! | catalog entries, and our own changes of the publication | `catalog_scanner.rs` |
//! | clauses that Postgres evaluates on changed rows | `clause_judge.rs`, `statement_rate.rs` |
//! | settings; start and shutdown | `config.rs`; `backend.rs` |
//! | metrics; failed requests | `metrics.rs`; `failure_log.rs` |
//! | DNS rebinding | `host.rs` |

mod access_control;
mod backend;
mod body;
mod buffered_bytes;
mod catalog_scanner;
mod catalog_watch;
mod catch_up;
mod clause_judge;
mod clause_parser;
mod clause_turns;
mod config;
mod connection_lender;
mod consumer;
pub mod database;
mod failure_log;
mod grant_scope;
pub mod host;
pub mod metrics;
pub mod protocol;
mod request_body;
mod request_context;
mod response_cache;
mod schema_monitor;
mod service;
mod shape_event_stream;
mod shape_factory;
mod shape_handler;
mod shape_label;
mod statement_rate;
mod subset;
mod token_verifier;

pub use self::access_control::AccessControl;
pub use self::backend::ShapeBackend;
pub use self::body::ShapeBody;
pub use self::config::Config;
pub use self::service::{BoxResponseFuture, RequestBody, ServeResponseFuture, ServeService};
