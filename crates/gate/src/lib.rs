//! A streaming reverse proxy with admission, before one HTTP service: a tower service for
//! [`forebay_stream::HttpServer`].
//!
//! Invariant: a stream holds a permit from before the upstream hears of it until its body is gone;
//! nothing that takes a permit reaches the upstream without one.
//! Kept by: `service.rs` is the only caller of `proxy.rs`, and sends everything on a stream's route
//! through admission's layer, whose permit travels in the response's body.
//!
//! | to find | look in |
//! |---|---|
//! | which requests are streams | `routes.rs`, pure |
//! | which headers pass, and what is refused at sight | `headers.rs`, pure |
//! | a request's way | `service.rs`, then `proxy.rs` |
//! | the client's body going up, the upstream's coming down | `upload.rs`; `download.rs`, `chunked.rs` (pure) |
//! | connections to the upstream | `upstream.rs`, `idle.rs` (pure), `connection.rs`, `head_io.rs` |
//! | what the gate itself answers | `refusal.rs`, `failure.rs` |
//! | settings; the parts put together | `config.rs`; `reverse_proxy.rs` |
//! | the end | `drain.rs` |
//! | what operators see | `metrics.rs`, and the methods of [`ReverseProxy`] |

mod body;
mod chunked;
mod config;
mod connection;
mod download;
mod drain;
mod failure;
mod head_io;
mod headers;
mod idle;
pub mod metrics;
mod proxy;
mod refusal;
mod reverse_proxy;
mod routes;
mod service;
mod upload;
mod upstream;

pub use body::GateBody;
pub use chunked::ChunkError;
pub use config::Config;
pub use download::DownloadError;
pub use drain::Drain;
pub use reverse_proxy::ReverseProxy;
pub use routes::{Route, RouteError};
pub use service::GateService;
pub use upstream::{UpstreamConfig, UpstreamStats};
