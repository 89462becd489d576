//! What can end a response early.

/// Any error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The client closed its side of a live stream; hyper is told so by the body.
#[derive(Debug, thiserror::Error)]
#[error("the client left")]
pub(crate) struct ClientLeft;
