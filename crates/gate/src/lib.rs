//! `forebay gate`: a streaming reverse proxy with admission.
//!
//! Invariant: a stream holds a permit from before the upstream hears of it until its body is gone; nothing that takes a
//! permit reaches the upstream without one.
//! Kept by: `service.rs` is the only caller of `proxy.rs`, and sends everything on a stream's route through admission's
//! layer, whose permit travels in the response's body.
//!
//! | to find | look in |
//! |---|---|
//! | which requests are streams | `routes.rs`, pure |
//! | which headers pass, and what is refused at sight | `headers.rs`, pure |
//! | a request's way | `service.rs`, then `proxy.rs` |
//! | the client's body going up, the upstream's coming down | `upload.rs`; `download.rs`, `chunked.rs` (pure) |
//! | connections to the upstream | `upstream.rs`, `idle.rs` (pure), `connection.rs`, `head_io.rs` |
//! | what the gate itself answers | `refusal.rs`, `failure.rs` |
//! | the end | `drain.rs`, and [`Gate::run`] below |
//! | what operators see | `report.rs` |

mod body;
mod chunked;
mod connection;
mod download;
mod drain;
mod failure;
mod head_io;
mod headers;
mod idle;
mod proxy;
mod refusal;
mod report;
mod routes;
mod service;
mod start;
mod upload;
mod upstream;

pub(crate) use drain::Kind;
pub use routes::{Route, RouteError};
pub use start::Gate;
pub use upstream::{UpstreamConfig, UpstreamStats};
