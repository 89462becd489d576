//! The program `forebay`: command line, settings, admin address, dashboard, and the start and end
//! of its servers.
//!
//! The parts that answer clients are libraries: `forebay-serve` has the shape protocol,
//! `forebay-gate` the reverse proxy. This crate fills their settings, listens, and ends them in
//! order.
//!
//! | to find | look in |
//! |---|---|
//! | flags | `cli.rs` |
//! | settings: file, environment, flags | `config/` |
//! | a terminal client of shapes | `tail/`, by `client/` |
//! | the state of a running instance | `status/`, by `client/` |
//! | is everything fit | `check/` |
//! | colours, and text that others wrote | `terminal.rs` |
//! | start and shutdown of `forebay serve` and `forebay gate` | `run/` |
//! | what `/v1/status`, the dashboard and `/readyz` show of them | `report/` |
//! | both with a throwaway database, to try it | `dev/` |
//! | addresses, Redis, upkeep: what both need | `run/mod.rs` |
//! | `/healthz`, `/readyz`, `/metrics`, `/v1/status`; their secret | `admin.rs`, `guard.rs` |
//! | memory that goes back to the system, and what the allocator is told | `memory.rs` |
//! | traces and metrics by OTLP, if built with the feature `otel` | `otel/` |
//! | TLS for clients | `tls.rs` |
//! | settings that change while we run | `reload.rs` |
//! | the page at `/`, and what it is told at `/v1/events` | `dashboard/` |
//! | pages in one document, and their policy | `page.rs` |

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
pub mod tail;
pub mod terminal;
pub mod tls;

pub use run::{GateServer, ShapeServer, StartError};
