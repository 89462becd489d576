//! `forebay serve`: shapes of a Postgres database over HTTP.
//!
//! | to find | look in |
//! |---|---|
//! | who may pass, and who needs a permit | `service.rs` |
//! | parameters, headers, errors | `protocol/` |
//! | which answer a request gets | `answering.rs`, `subset.rs` |
//! | long bodies; server-sent events | `body.rs`; `events.rs`, `catch_up.rs` |
//! | how a shape is found or made | `making.rs`, with `database/` for tables and snapshots |
//! | the stream from Postgres | `consumer.rs`; tables that change in it, `fitting.rs`; tables that change beside it, `catalog_watch.rs` |
//! | start, shutdown, what operators see | `start.rs`, `report.rs`, `listing.rs`, `metrics.rs`, `failures.rs` |

mod answering;
mod body;
mod catalog_watch;
mod catch_up;
mod consumer;
mod counted;
pub mod database;
mod events;
mod failures;
mod fitting;
mod granted;
mod listing;
mod making;
pub(crate) mod metrics;
pub mod protocol;
mod recent;
mod report;
mod service;
mod start;
mod subset;
mod tokens;

pub use self::start::Serve;
