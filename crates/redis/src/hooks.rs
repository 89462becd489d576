//! Hooks: the caller's own observation of requests and of the connection.

use std::time::Duration;

use crate::error::RequestError;
use crate::status::Status;

/// Callbacks for every request and every state change of the connection.
///
/// No callback runs in the worker. Requests are reported in their caller's task, state changes on a
/// blocking thread.
pub trait Hooks: Send + Sync + 'static {
    /// Called when a request has ended.
    fn request(&self, report: &RequestReport<'_>) {
        let _ = report;
    }

    /// Called after the connection changed its state.
    fn connection(&self, status: &Status) {
        let _ = status;
    }
}

/// A request that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct RequestReport<'a> {
    /// Name of the first command, as the caller wrote it.
    pub command: &'a str,
    /// Number of commands in the request.
    pub commands: usize,
    /// Time from the submission until the caller got the result.
    pub took: Duration,
    /// How the request ended. Error replies count as replies.
    pub outcome: RequestOutcome<'a>,
}

/// How a request ended.
#[derive(Debug)]
pub enum RequestOutcome<'a> {
    /// The replies arrived.
    Replied,
    /// The request failed.
    Failed(&'a RequestError),
    /// The caller dropped the future first.
    Dropped,
}

impl RequestOutcome<'_> {
    /// Returns the outcome's name in logs and metrics: `replied`, `dropped`, or the name of the
    /// error.
    pub fn as_str(&self) -> &'static str {
        match self {
            RequestOutcome::Replied => "replied",
            RequestOutcome::Failed(error) => error.as_str(),
            RequestOutcome::Dropped => "dropped",
        }
    }
}
