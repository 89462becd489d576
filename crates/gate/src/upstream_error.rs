//! Upstream errors: why a request got no response. Each has one reason code for the client, the log
//! and the metrics.

use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use super::request_failure::{FailureStage, FailureType, RequestFailure, io_source};
use super::upload::UploadError;
use super::upstream_connection::ExchangeError;

/// Why a request got no response. The client receives [`UpstreamError::message`]; `Display` is for
/// the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the upstream's name can't be resolved: {0}")]
    Resolve(#[source] io::Error),
    #[error("the upstream can't be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("the upstream did not accept a connection in time")]
    ConnectTimeout,
    #[error("all {max} connections to the upstream are in use")]
    Busy { max: usize },
    #[error("the gate has run out of descriptors, ports or memory for a connection to the upstream: {0}")]
    Exhausted(#[source] io::Error),
    #[error("the upstream closed the connection before it responded")]
    Closed,
    #[error("the connection to the upstream broke before it responded: {0}")]
    Broken(io::ErrorKind),
    #[error("the upstream sent no response head in time")]
    ResponseTimeout,
    #[error("the upstream's response is not valid HTTP: {0}")]
    Response(#[source] hyper::Error),
    #[error("{0}")]
    Upload(UploadFault),
}

/// Why a request body from the client failed. [`UploadError`] without its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadFault {
    Stalled(Duration),
    Broken,
}

impl fmt::Display for UploadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UploadFault::Stalled(idle) => write!(f, "the client sent no body bytes for {idle:?}"),
            UploadFault::Broken => f.write_str("the client's request body failed before its end"),
        }
    }
}

impl UpstreamError {
    /// Converts an error of name resolution.
    pub(crate) fn from_resolve(error: io::Error) -> UpstreamError {
        if is_exhaustion(&error) { UpstreamError::Exhausted(error) } else { UpstreamError::Resolve(error) }
    }

    /// Converts an error of dialing.
    pub(crate) fn from_dial(error: io::Error) -> UpstreamError {
        if is_exhaustion(&error) { UpstreamError::Exhausted(error) } else { UpstreamError::Connect(error) }
    }

    /// Returns the reason code, for logs, metrics and the client's `error` field.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            UpstreamError::Resolve(_) => "upstream_unresolved",
            UpstreamError::Connect(_) => "upstream_unreachable",
            UpstreamError::ConnectTimeout => "upstream_connect_timeout",
            UpstreamError::Busy { .. } => "upstream_busy",
            UpstreamError::Exhausted(_) => "gate_exhausted",
            UpstreamError::Closed | UpstreamError::Broken(_) => "upstream_closed",
            UpstreamError::ResponseTimeout => "upstream_response_timeout",
            UpstreamError::Response(_) => "upstream_bad_response",
            UpstreamError::Upload(UploadFault::Stalled(_)) => "request_stalled",
            UpstreamError::Upload(UploadFault::Broken) => "request_broken",
        }
    }

    /// Returns whether the upstream caused the failure. Other causes are the client, the gate's
    /// limit of connections, and the gate's resources.
    pub(crate) fn is_upstreams_fault(&self) -> bool {
        match self {
            UpstreamError::Busy { .. } | UpstreamError::Exhausted(_) | UpstreamError::Upload(_) => false,
            UpstreamError::Resolve(_)
            | UpstreamError::Connect(_)
            | UpstreamError::ConnectTimeout
            | UpstreamError::Closed
            | UpstreamError::Broken(_)
            | UpstreamError::ResponseTimeout
            | UpstreamError::Response(_) => true,
        }
    }

    /// Returns stage and type of the failure, for the metrics.
    pub(crate) fn failure(&self) -> RequestFailure {
        let (stage, kind) = match self {
            UpstreamError::Resolve(_) => (FailureStage::Connect, FailureType::Unresolved),
            UpstreamError::Connect(error) => (FailureStage::Connect, FailureType::of_dial(error)),
            UpstreamError::ConnectTimeout => (FailureStage::Connect, FailureType::Timeout),
            UpstreamError::Busy { .. } => (FailureStage::Connect, FailureType::Busy),
            UpstreamError::Exhausted(_) => (FailureStage::Connect, FailureType::Exhausted),
            UpstreamError::Closed => (FailureStage::FirstByte, FailureType::Closed),
            UpstreamError::Broken(kind) => (FailureStage::FirstByte, FailureType::of_broken(*kind)),
            UpstreamError::ResponseTimeout => (FailureStage::FirstByte, FailureType::Timeout),
            UpstreamError::Response(_) => (FailureStage::FirstByte, FailureType::BadResponse),
            UpstreamError::Upload(UploadFault::Stalled(_)) => (FailureStage::Request, FailureType::Timeout),
            UpstreamError::Upload(UploadFault::Broken) => (FailureStage::Request, FailureType::Incomplete),
        };
        RequestFailure::new(stage, kind)
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Resolve(_)
            | UpstreamError::Connect(_)
            | UpstreamError::Closed
            | UpstreamError::Broken(_)
            | UpstreamError::Response(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::ConnectTimeout | UpstreamError::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::Busy { .. } | UpstreamError::Exhausted(_) => StatusCode::SERVICE_UNAVAILABLE,
            UpstreamError::Upload(UploadFault::Stalled(_)) => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::Upload(UploadFault::Broken) => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns the text for the client: what happened, without addresses.
    pub(crate) fn message(&self) -> String {
        match self {
            UpstreamError::Resolve(_) | UpstreamError::Connect(_) => {
                "The service behind this gate can't be reached."
            }
            UpstreamError::ConnectTimeout => {
                "The service behind this gate did not accept a connection in time."
            }
            UpstreamError::Busy { .. } | UpstreamError::Exhausted(_) => {
                "This gate has no free connection to the service behind it."
            }
            UpstreamError::Closed | UpstreamError::Broken(_) => {
                "The service behind this gate closed the connection before it responded."
            }
            UpstreamError::ResponseTimeout => "The service behind this gate sent no response in time.",
            UpstreamError::Response(_) => {
                "The service behind this gate sent a response that is not valid HTTP."
            }
            UpstreamError::Upload(fault) => match fault {
                UploadFault::Stalled(idle) => {
                    return format!("No bytes of the request body arrived for {} s.", idle.as_secs_f32());
                }
                UploadFault::Broken => "The request body ended before it was complete.",
            },
        }
        .to_owned()
    }
}

impl From<ExchangeError> for UpstreamError {
    fn from(error: ExchangeError) -> UpstreamError {
        let closed = error.is_closed();
        match error {
            ExchangeError::Timeout => UpstreamError::ResponseTimeout,
            ExchangeError::Unsent(_) => UpstreamError::Closed,
            ExchangeError::Failed { error, .. } => match (upload_fault(&error), broken_connection(&error)) {
                (Some(fault), _) => UpstreamError::Upload(fault),
                (None, Some(kind)) => UpstreamError::Broken(kind),
                (None, None) if closed => UpstreamError::Closed,
                (None, None) => UpstreamError::Response(error),
            },
        }
    }
}

/// Returns whether this machine or process has run out of a resource. The upstream was not
/// contacted.
fn is_exhaustion(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Returns the kind of the I/O error of a connection that broke. Other errors are about its bytes:
/// for example, TLS reports invalid ones as invalid data.
fn broken_connection(error: &dyn std::error::Error) -> Option<io::ErrorKind> {
    let kind = io_source(error)?.kind();
    let is_broken = matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    );
    is_broken.then_some(kind)
}

/// Returns the failure of the request body that caused an error of hyper, if there is one.
fn upload_fault(error: &(dyn std::error::Error + 'static)) -> Option<UploadFault> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<UploadError>() {
            Some(UploadError::Stalled(idle)) => return Some(UploadFault::Stalled(*idle)),
            Some(UploadError::Broken(_)) => return Some(UploadFault::Broken),
            None => cause = error.source(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_local_resources_are_not_the_upstreams_fault() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL] {
            let error = || io::Error::from_raw_os_error(code);
            for error in [UpstreamError::from_dial(error()), UpstreamError::from_resolve(error())] {
                assert_eq!(
                    (error.status(), error.as_str()),
                    (StatusCode::SERVICE_UNAVAILABLE, "gate_exhausted")
                );
                assert!(!error.is_upstreams_fault());
            }
        }
        let refused = UpstreamError::from_dial(io::Error::from_raw_os_error(libc::ECONNREFUSED));
        assert!(refused.is_upstreams_fault());
    }

    #[test]
    fn a_connection_that_breaks_before_the_head_is_no_bad_response() {
        /// Error with a source, as hyper's errors have.
        #[derive(Debug, thiserror::Error)]
        #[error("read")]
        struct ReadError(#[source] io::Error);

        for (code, expected) in [
            (libc::ETIMEDOUT, Some(FailureType::Timeout)),
            (libc::EHOSTUNREACH, Some(FailureType::Unreachable)),
            (libc::ENETUNREACH, Some(FailureType::Unreachable)),
            (libc::ECONNRESET, Some(FailureType::Reset)),
            (libc::EPIPE, Some(FailureType::Reset)),
            (libc::EINVAL, None),
        ] {
            let kind = broken_connection(&ReadError(io::Error::from_raw_os_error(code)));
            let failure = kind.map(|kind| UpstreamError::Broken(kind).failure());
            let expected = expected.map(|kind| RequestFailure::new(FailureStage::FirstByte, kind));
            assert_eq!(failure, expected, "{code}");
        }
    }
}
