//! Errors that end a response early.

/// Error of a response body.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The client closed its side of a live stream. The response body returns this to hyper.
#[derive(Debug, thiserror::Error)]
#[error("client closed the connection")]
pub(crate) struct ClientClosed;

/// The client of an HTTP/2 exchange missed a deadline. The service or body returns this to hyper.
#[derive(Debug, thiserror::Error)]
#[error("client timed out")]
pub(crate) struct ClientTimeout;
