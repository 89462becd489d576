//! The program `forebay`: serves live tables of a Postgres database over HTTP, and runs a
//! streaming reverse proxy with admission control.
//!
//! The protocols are in libraries: `forebay-serve` has the shape protocol, `forebay-gate` the
//! reverse proxy. This crate declares the settings, opens the listeners, starts the servers, shows
//! their state to operators, and shuts them down in order.
//!
//! | command | what it does |
//! |---|---|
//! | `forebay serve` | serves shapes of one database |
//! | `forebay gate` | proxies requests to one upstream, with a permit for each stream |
//! | `forebay dev` | `forebay serve` with a temporary Postgres; Linux only |
//! | `forebay check` | verifies database, Redis, storage and machine before a start |
//! | `forebay config` | prints the effective settings and their origins |
//! | `forebay status` | prints the state of a running instance |
//! | `forebay tail` | prints the rows of a shape, then its changes |
//!
//! # Picture
//!
//! ```text
//!  main.rs ─▶ cli.rs ─▶ config/ ─▶ run/gate.rs or run/serve.rs ◀── signals.rs
//!                                   │ starts, in this order            first signal: shutdown
//!                                   ▼                                  second: exit at once
//!        listeners ▶ store (serve) ▶ quota ▶ database (serve) ▶ admission
//!                                   │
//!              ┌────────────────────┴─────────────────────┐
//!              ▼                                          ▼
//!  HTTP server for clients (tls.rs)          HTTP server for operators: admin.rs
//!    otel/ ▶ forebay-gate, forebay-serve        secret_guard.rs ▶ /metrics /v1/status
//!              │              Redis ◀▶ directory ▶ /v1/streams
//!              │                                dashboard/      ▶ / and /v1/events
//!              └──── counts ──▶ report/ ──▶     probes          ▶ /healthz /readyz
//!
//!  SIGHUP ▶ settings_reloader.rs ▶ admission, identity, secrets, log filter, certificate
//!  check/ queries the database and Redis; status/ and tail/ query an instance through client/
//! ```
//!
//! Shutdown of a gate: new streams are refused, and open ones continue. The listener closes when no
//! stream is open, or after half of the drain timeout. From then on, open requests may continue for
//! the other half, and are then cut. Last, the quota is returned.
//!
//! Shutdown of a shape server: new streams are refused. Received changes are made durable and
//! acknowledged. Open streams end at their own timeout or at the drain timeout. Last, the quota is
//! returned and the store is closed.
//!
//! # Invariants and their tests
//!
//! - An invalid setting is an error that names its key, its origin, and what to write.
//!   `an_error_names_the_key_and_the_origin_of_an_invalid_value`,
//!   `an_error_names_the_invalid_value_and_its_origin`,
//!   `invalid_settings_are_reported_with_the_expected_form`
//! - The probes need no secret; every other admin endpoint does, if one is set.
//!   `with_an_admin_secret_only_probes_need_no_credentials`,
//!   `the_secret_is_accepted_as_a_password_or_alone_and_nothing_else_is`
//! - On a loopback address, a request whose `Host` header names another host is refused.
//!   `the_admin_address_refuses_foreign_host_headers`
//! - Admin endpoints change nothing, except the one that ends a stream. It needs the secret as a
//!   Bearer token, and refuses every request with an `Origin`.
//!   `unknown_admin_paths_and_methods_are_refused`,
//!   `a_stream_is_ended_only_with_the_secret_as_bearer_and_without_an_origin`,
//!   `only_requests_with_the_secret_and_without_an_origin_end_a_stream`
//! - A list of streams says how many it leaves out and which instances gave no answer. Silence is
//!   not taken for absence.
//!   `every_instance_lists_the_streams_of_all_and_ends_them`,
//!   `a_killed_instance_is_reported_as_silent`,
//!   `status_metrics_and_dashboard_count_a_killed_instance_until_it_expires`,
//!   `a_list_has_at_most_the_requested_number_of_streams_and_the_oldest_first`,
//!   `silence_is_not_taken_for_absence`
//! - Messages in Redis can't crash an instance or fill its memory, and without a query instances
//!   send none.
//!   `forged_queries_change_nothing`, `forged_answers_are_ignored_while_an_instance_is_silent`,
//!   `garbage_is_no_message`,
//!   `instances_send_nothing_until_an_operator_asks`
//! - Logs contain no value of a row, no secret and no token. User ids are hashed.
//!   `serve_exports_request_spans_without_data_or_secrets`, `credentials_are_never_logged`,
//!   `messages_that_quote_values_are_replaced`,
//!   `a_span_is_the_child_of_the_callers_and_the_parent_of_the_upstreams`,
//!   `a_stream_is_logged_stage_by_stage`
//! - Traces contain no path, query, header, user or address. Requests never wait for the collector.
//!   `a_span_is_the_child_of_the_callers_and_the_parent_of_the_upstreams`,
//!   `an_unavailable_collector_costs_a_bounded_buffer_and_fails_no_request`
//! - Telemetry is sent only to a configured collector.
//!   `telemetry_is_off_without_an_endpoint`
//! - The dashboard loads nothing from other hosts, and runs only its own script.
//!   `the_page_is_one_document_that_names_no_other_host`,
//!   `the_policy_allows_only_the_pages_own_script_and_style`
//! - The status shows no literal of a where clause.
//!   `a_listed_clause_has_no_literals`
//! - `check` changes nothing in the database or in Redis; `config` and `status` change nothing at
//!   all. `tail` is a client: if the shape is new, the server creates it and adds its table to the
//!   publication.
//!   `check_passes_on_a_suitable_server_and_changes_nothing`
//! - Text from rows and servers can't control the terminal.
//!   `control_characters_are_escaped`, `control_characters_of_a_row_are_escaped`
//! - `tail` prints every message once, across restarts and lost connections.
//!   `no_change_is_lost_or_printed_twice_across_server_restarts`,
//!   `a_truncated_response_is_requested_again_and_printed_once`
//! - Invalid settings change nothing on SIGHUP, and no reload removes a secret.
//!   `limits_secrets_and_keys_are_reloaded_and_other_changes_are_logged`
//! - An invalid certificate never replaces a valid one.
//!   `a_new_pair_replaces_the_old_one_once_both_files_are_written`,
//!   `sighup_loads_a_new_certificate_and_keeps_the_old_one_if_it_is_invalid`
//! - After SIGTERM, open streams of a gate continue until the deadline, and no request in transit
//!   is lost.
//!   `after_sigterm_open_streams_continue_new_ones_are_refused_and_the_process_ends_with_the_last`,
//!   `every_client_connected_at_sigterm_gets_a_complete_response`
//! - Documentation lists exactly the endpoints, errors and settings of the code.
//!   `exactly_the_endpoints_of_the_code_are_documented_with_their_methods`,
//!   `the_reference_of_settings_and_flags_is_up_to_date`
//!
//! Bounds: 128 admin connections, 32 open dashboards, 20 listed shapes, 10,000 listed streams, 64
//! MiB for a status that `forebay status` reads, 1 GiB for a reply that `forebay tail` reads.
//!
//! Out of scope: the shape protocol (`forebay-serve`), proxying (`forebay-gate`), permits
//! (`forebay-admission`), following Postgres (`forebay-replication`).
//!
//! # Where to look
//!
//! | to find | look in |
//! |---|---|
//! | commands and help texts | `cli.rs` |
//! | every setting: key, flag, default, bounds, description | `config/sections/` |
//! | how settings fit together | `config/` |
//! | how the file, the environment and the flags are read | the crate `forebay-settings` |
//! | start and shutdown order | `run/gate.rs`, `run/serve.rs` |
//! | for both servers: listeners, quota, upkeep of metrics and heap | `run/mod.rs` |
//! | DynamoDB instead of Redis, with the feature `aws` | `dynamo_table.rs` |
//! | IAM tokens instead of a password, with the feature `aws` | `config/iam_auth.rs` |
//! | readiness, `/v1/status`, dashboard samples, gauges | `report/` |
//! | routes of the admin address; its secret | `admin.rs`, `secret_guard.rs` |
//! | open streams of all instances; ending one | `stream_endpoints.rs`, `forebay_admission::directory` |
//! | the dashboard and its events | `dashboard/` |
//! | self-contained pages and their security headers | `html_page.rs` |
//! | how SIGHUP changes settings | `settings_reloader.rs` |
//! | TLS for clients; certificate reload | `tls.rs` |
//! | metrics of process and connections | `metrics.rs` |
//! | traces and metrics by OTLP, with the feature `otel` | `otel/` |
//! | log output and its filter | `logging.rs` |
//! | allocator settings and heap trimming | `memory.rs` |
//! | limit of open files | `descriptors.rs` |
//! | checks before a start | `check/` |
//! | HTTP client of `status`, `tail` and telemetry | `client/` |
//! | where `tail` continues after a reply | `tail/reader.rs` |
//! | text of `forebay status` | `status/renderer.rs` |
//! | colours and escaping | `terminal.rs` |
//! | format of numbers, sizes and durations | `numbers.rs` |
//! | temporary database and its sample data | `dev/` |
//! | comparison of docs and code | `documented.rs`, `config/reference.rs` |

pub mod admin;
pub mod check;
pub mod cli;
pub mod client;
pub mod config;
pub mod dashboard;
pub mod descriptors;
#[cfg(target_os = "linux")]
pub mod dev;
#[cfg(test)]
mod documented;
#[cfg(feature = "aws")]
mod dynamo_table;
mod html_page;
pub mod logging;
pub mod memory;
pub mod metrics;
mod numbers;
mod otel;
mod report;
mod run;
pub mod secret_guard;
mod settings_reloader;
pub mod signals;
pub mod status;
mod stream_endpoints;
pub mod tail;
pub mod terminal;
pub mod tls;

pub use run::{GateServer, ServerEnd, ShapeServer, StartError};
