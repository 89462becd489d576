//! What the program `forebay` is made of.
//!
//! Invariant: what is not about the gate is outside `gate/`, so that the program's other commands can use it.
//!
//! | to find | look in |
//! |---|---|
//! | flags | `cli.rs` |
//! | settings: file, environment, flags | `config/` |
//! | a terminal client of shapes | `tail/`, by `client/` |
//! | the state of a running instance | `status/`, by `client/` |
//! | is everything fit | `check/` |
//! | colours, and text that others wrote | `terminal.rs` |
//! | the reverse proxy | `gate/` |
//! | shapes over HTTP | `serve/` |
//! | both with a throwaway database, to try it | `dev/` |
//! | addresses, Redis, upkeep: what both need | `starting.rs` |
//! | `/healthz`, `/readyz`, `/metrics`, `/v1/status`; their secret; by which names they are asked | `admin.rs`, `guard.rs`, `host.rs` |
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
mod gate;
pub mod guard;
mod host;
pub mod logging;
pub mod memory;
pub mod metrics;
mod numbers;
mod otel;
mod page;
mod problem;
mod reload;
pub mod serve;
pub mod signals;
mod starting;
pub mod status;
pub mod tail;
pub mod terminal;
pub mod tls;

pub use gate::{Gate, Route, RouteError, UpstreamConfig, UpstreamStats};
pub use serve::Serve;
pub use starting::StartError;
