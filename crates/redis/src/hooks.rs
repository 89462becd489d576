//! What tracing and metrics hang on.

use std::time::Duration;

use crate::error::RequestError;
use crate::status::Status;

/// Told about every request and every change of the connection. Nothing here runs in the connection's worker: requests are
/// reported from their caller's task, changes from a thread that may block.
pub trait Hooks: Send + Sync + 'static {
    /// A request is over.
    fn request(&self, report: &RequestReport<'_>) {
        let _ = report;
    }

    /// The connection changed its state.
    fn connection(&self, status: &Status) {
        let _ = status;
    }
}

/// One request, when it is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct RequestReport<'a> {
    /// The first command's name, as it was written.
    pub command: &'a str,
    /// How many commands the request had.
    pub commands: usize,
    /// From the submission until the caller got the answer.
    pub took: Duration,
    /// How it ended. Errors of single replies are not looked at here.
    pub outcome: Outcome<'a>,
}

/// How a request ended.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The replies came.
    Replied,
    /// They did not.
    Failed(&'a RequestError),
    /// The caller dropped the future first.
    Dropped,
}
