//! Refusals: responses that the gate itself sends. Each has one reason code for the client and the
//! metrics.

use forebay_admission::problem;
use http::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode, Version};

use super::bad_request::BadRequest;
use super::gate_body::GateBody;
use super::metrics;
use super::request_failure::{FailureStage, FailureType, RequestFailure};
use super::upstream_error::{UploadFault, UpstreamError};

/// `retry-after` while the gate drains. A client that retries at once would reach this gate again.
const DRAIN_RETRY_SECONDS: u32 = 2;
/// `retry-after` if the gate has no free connection to the upstream.
const BUSY_RETRY_SECONDS: u32 = 1;

/// Why the gate itself responds, instead of the upstream.
#[derive(Debug)]
pub(crate) enum GateRefusal {
    BadRequest(BadRequest),
    /// The gate drains.
    Draining,
    /// The request has no `ClientAddr`, so the gate can't write the forwarded headers.
    NoPeer,
    /// The upstream switched to a protocol that the client didn't offer, or before it had the whole
    /// request.
    SwitchedProtocol,
    /// The upstream's body has a transfer coding other than `chunked`.
    TransferCoding,
    Upstream(UpstreamError),
}

impl GateRefusal {
    fn status(&self) -> StatusCode {
        match self {
            GateRefusal::BadRequest(BadRequest::Connect | BadRequest::Coding) => StatusCode::NOT_IMPLEMENTED,
            GateRefusal::BadRequest(BadRequest::Host | BadRequest::Target) => StatusCode::BAD_REQUEST,
            GateRefusal::Draining => StatusCode::SERVICE_UNAVAILABLE,
            GateRefusal::NoPeer => StatusCode::INTERNAL_SERVER_ERROR,
            GateRefusal::SwitchedProtocol | GateRefusal::TransferCoding => StatusCode::BAD_GATEWAY,
            GateRefusal::Upstream(error) => error.status(),
        }
    }

    /// Returns the reason code, for clients and metrics.
    fn as_str(&self) -> &'static str {
        match self {
            GateRefusal::BadRequest(BadRequest::Connect) => "connect_refused",
            GateRefusal::BadRequest(BadRequest::Host) => "bad_host",
            GateRefusal::BadRequest(BadRequest::Target) => "bad_target",
            GateRefusal::BadRequest(BadRequest::Coding) => "coding_refused",
            GateRefusal::Draining => "draining",
            GateRefusal::NoPeer => "no_peer",
            GateRefusal::SwitchedProtocol => "upstream_switched",
            GateRefusal::TransferCoding => "upstream_bad_coding",
            GateRefusal::Upstream(error) => error.as_str(),
        }
    }

    /// Returns stage and type of the failure, for the metrics. A drain is none.
    fn failure(&self) -> Option<RequestFailure> {
        let (stage, kind) = match self {
            GateRefusal::BadRequest(_) => (FailureStage::Request, FailureType::BadRequest),
            GateRefusal::Draining => return None,
            GateRefusal::NoPeer => (FailureStage::Request, FailureType::Internal),
            GateRefusal::SwitchedProtocol | GateRefusal::TransferCoding => {
                (FailureStage::FirstByte, FailureType::BadResponse)
            }
            GateRefusal::Upstream(error) => return Some(error.failure()),
        };
        Some(RequestFailure::new(stage, kind))
    }

    fn message(&self) -> String {
        match self {
            GateRefusal::BadRequest(BadRequest::Connect) => {
                "CONNECT is not supported: this gate forwards to one service only."
            }
            GateRefusal::BadRequest(BadRequest::Host) => "A request must name its host exactly once.",
            GateRefusal::BadRequest(BadRequest::Target) => "The request-target has no path.",
            GateRefusal::BadRequest(BadRequest::Coding) => "The only supported transfer coding is `chunked`.",
            GateRefusal::Draining => "This server is shutting down. Please connect again.",
            GateRefusal::NoPeer => "The server could not determine the address of the client.",
            GateRefusal::SwitchedProtocol => {
                "The service behind this gate switched protocols too early, or to one that the client did not offer."
            }
            GateRefusal::TransferCoding => {
                "The service behind this gate used a transfer coding other than `chunked`."
            }
            GateRefusal::Upstream(error) => return error.message(),
        }
        .to_owned()
    }

    fn retry_after_seconds(&self) -> Option<u32> {
        match self {
            GateRefusal::Draining => Some(DRAIN_RETRY_SECONDS),
            GateRefusal::Upstream(UpstreamError::Busy { .. } | UpstreamError::Exhausted(_)) => {
                Some(BUSY_RETRY_SECONDS)
            }
            GateRefusal::BadRequest(_)
            | GateRefusal::NoPeer
            | GateRefusal::SwitchedProtocol
            | GateRefusal::TransferCoding
            | GateRefusal::Upstream(_) => None,
        }
    }

    /// Returns whether the response closes the client's connection. It does while the gate drains.
    /// It also does after a bad request or an incomplete body: the bytes that follow may not be the
    /// start of a request.
    fn ends_connection(&self) -> bool {
        match self {
            GateRefusal::BadRequest(_) | GateRefusal::Draining => true,
            GateRefusal::Upstream(UpstreamError::Upload(UploadFault::Stalled(_) | UploadFault::Broken)) => {
                true
            }
            GateRefusal::NoPeer
            | GateRefusal::SwitchedProtocol
            | GateRefusal::TransferCoding
            | GateRefusal::Upstream(_) => false,
        }
    }

    /// Returns the response. Admission's layer adds `X-Thread-ID` to it, as to every response.
    pub(crate) fn response(self, version: Version) -> Response<GateBody> {
        metrics::count_refusal(self.as_str());
        if let Some(failure) = self.failure() {
            metrics::count_failure(failure);
        }
        let mut response = GateBody::from_gate(problem(self.status(), self.as_str(), &self.message()));
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.ends_connection() && version < Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
