//! HTTP/1.1 fast path: GET and HEAD requests without a body, answered without hyper.

mod body_remainder;
pub(crate) mod connection;
mod parser;
pub(crate) mod response_head;
pub(crate) mod socket_writer;
pub(crate) mod spare_headers;
pub(crate) mod write_batch;
