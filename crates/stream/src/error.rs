//! What can end a response early.

/// Any error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The client closed its side of a live stream; hyper is told so by the body.
#[derive(Debug, thiserror::Error)]
#[error("the client left")]
pub(crate) struct ClientLeft;

/// The client did not do its part of an HTTP/2 exchange in time; hyper is told so by the service or by the body.
#[derive(Debug, thiserror::Error)]
#[error("the client took too long")]
pub(crate) struct ClientLate;
