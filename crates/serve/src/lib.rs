//! The shape protocol: shapes of a Postgres database over HTTP, as a tower service that an axum app
//! can mount.
//!
//! | to find | look in |
//! |---|---|
//! | who may pass, and who needs a permit | `service.rs` |
//! | parameters, headers, errors | `protocol/` |
//! | which answer a request gets | `answering.rs`, `subset.rs` |
//! | long bodies; server-sent events | `body.rs`; `events.rs`, `catch_up.rs` |
//! | how a shape is found or made | `making.rs`, with `database/` for tables and snapshots |
//! | the stream from Postgres | `consumer.rs`; tables that change in it, `fitting.rs`; tables that change beside it, `catalog_watch.rs` |
//! | settings; start and shutdown | `config.rs`; `backend.rs` |
//! | what operators see | `metrics.rs`, `failures.rs` |
//! | by which name this machine was asked | `host.rs` |

mod backend;
mod body;
mod catalog_watch;
mod catch_up;
mod config;
mod consumer;
mod counted;
pub mod database;
mod events;
mod failures;
mod granted;
pub mod host;
pub mod metrics;
pub mod protocol;
mod recent;
mod schema_monitor;
mod service;
mod shape_factory;
mod shape_handler;
mod subset;
mod tokens;

pub use self::backend::ShapeBackend;
pub use self::body::ShapeBody;
pub use self::config::Config;
pub use self::service::{Marked, RequestBody, Responding, ServeService};
