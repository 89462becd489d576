//! Connections served by hyper: HTTP/2, TLS, HTTP/1.0, and HTTP/1.1 requests with a body.

pub(crate) mod activity;
pub(crate) mod client_deadline;
mod copy_head;
pub(crate) mod h2_exchange;
pub(crate) mod http1;
mod http1_drain;
pub(crate) mod http2;
pub(crate) mod hyper_socket;
mod oversized_head;
pub(crate) mod service_adapter;
pub(crate) mod transport;
pub(crate) mod transport_connection;
