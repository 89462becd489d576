//! What the gate itself answers, and why; one reason for the client, the log and the metrics.

use forebay_admission::problem;
use http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode, Version};

use super::body::GateBody;
use super::failure::{UploadFault, UpstreamError};
use super::headers::BadRequest;
use super::metrics;

/// Another gate takes over soon; a client that comes back at once would meet this one again.
const DRAIN_RETRY_SECONDS: u32 = 2;
const BUSY_RETRY_SECONDS: u32 = 1;

#[derive(Debug)]
pub(crate) enum Refusal {
    Bad(BadRequest),
    /// The gate is on its way out.
    Draining,
    /// The server did not say who the peer is: nothing could be told about it.
    NoPeer,
    /// The upstream changed the protocol, which nobody had asked it to.
    Switched,
    /// The upstream's body has a coding beside `chunked`.
    Coding,
    Upstream(UpstreamError),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Bad(BadRequest::Connect | BadRequest::Upgrade | BadRequest::Coding) => {
                StatusCode::NOT_IMPLEMENTED
            }
            Refusal::Bad(BadRequest::Host | BadRequest::Target) => StatusCode::BAD_REQUEST,
            Refusal::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::NoPeer => StatusCode::INTERNAL_SERVER_ERROR,
            Refusal::Switched | Refusal::Coding => StatusCode::BAD_GATEWAY,
            Refusal::Upstream(error) => error.status(),
        }
    }

    /// For programs: the client's, and those that read metrics.
    fn as_str(&self) -> &'static str {
        match self {
            Refusal::Bad(BadRequest::Connect) => "connect_refused",
            Refusal::Bad(BadRequest::Upgrade) => "upgrade_refused",
            Refusal::Bad(BadRequest::Host) => "bad_host",
            Refusal::Bad(BadRequest::Target) => "bad_target",
            Refusal::Bad(BadRequest::Coding) => "coding_refused",
            Refusal::Draining => "draining",
            Refusal::NoPeer => "no_peer",
            Refusal::Switched => "upstream_switched",
            Refusal::Coding => "upstream_bad_coding",
            Refusal::Upstream(error) => error.as_str(),
        }
    }

    fn message(&self) -> String {
        match self {
            Refusal::Bad(BadRequest::Connect) => {
                "This gate stands before one service; it connects to no other."
            }
            Refusal::Bad(BadRequest::Upgrade) => {
                "This gate passes on requests and streams, not upgraded connections such as WebSocket."
            }
            Refusal::Bad(BadRequest::Host) => "A request must say for which host it is, once.",
            Refusal::Bad(BadRequest::Target) => "The request-target has no path.",
            Refusal::Bad(BadRequest::Coding) => "Of the transfer codings, this gate knows `chunked` only.",
            Refusal::Draining => "This server is about to end. Please connect again.",
            Refusal::NoPeer => "The server does not know from where this request came.",
            Refusal::Switched => "The service behind this gate changed the protocol.",
            Refusal::Coding => {
                "The service behind this gate used a transfer coding that nobody had asked for."
            }
            Refusal::Upstream(error) => return error.message(),
        }
        .to_owned()
    }

    fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            Refusal::Draining => Some(DRAIN_RETRY_SECONDS),
            Refusal::Upstream(UpstreamError::Busy { .. } | UpstreamError::Exhausted(_)) => {
                Some(BUSY_RETRY_SECONDS)
            }
            Refusal::Bad(_)
            | Refusal::NoPeer
            | Refusal::Switched
            | Refusal::Coding
            | Refusal::Upstream(_) => None,
        }
    }

    /// Whether the client's connection is of no more use: what follows on it could be anything.
    fn ends_connection(&self) -> bool {
        match self {
            Refusal::Bad(_) | Refusal::Draining => true,
            Refusal::Upstream(UpstreamError::Upload(UploadFault::Stalled(_) | UploadFault::Broken)) => true,
            Refusal::NoPeer | Refusal::Switched | Refusal::Coding | Refusal::Upstream(_) => false,
        }
    }

    /// The answer. Admission's layer puts the request's thread id on it, as on every other.
    pub(crate) fn response(self, version: Version) -> Response<GateBody> {
        metrics::refused(self.as_str());
        let mut response = GateBody::own(problem(self.status(), self.as_str(), &self.message()));
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.ends_connection() && version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
