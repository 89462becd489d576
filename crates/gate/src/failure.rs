//! Why the upstream gave no response: one reason for the client's status, the log and the metrics.

use std::fmt;
use std::io;
use std::time::Duration;

use http::StatusCode;

use super::connection::ExchangeError;
use super::upload::UploadError;

/// Why there is no response. What the client may read of it is [`UpstreamError::message`]; the rest is for the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the upstream's name does not resolve: {0}")]
    Resolve(#[source] io::Error),
    #[error("the upstream can't be reached: {0}")]
    Connect(#[source] io::Error),
    #[error("the upstream did not accept a connection in time")]
    ConnectTimeout,
    #[error("all {max} connections to the upstream are in use")]
    Busy { max: usize },
    #[error("the gate has no descriptor, port or memory left for a connection to the upstream: {0}")]
    Exhausted(#[source] io::Error),
    #[error("the upstream closed the connection before it answered")]
    Closed,
    #[error("the upstream gave no head of a response in time")]
    ResponseTimeout,
    #[error("the upstream's answer is no HTTP response: {0}")]
    Response(#[source] hyper::Error),
    #[error("{0}")]
    Upload(UploadFault),
}

/// The client's part in a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UploadFault {
    Stalled(Duration),
    Broken,
}

impl fmt::Display for UploadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UploadFault::Stalled(idle) => write!(f, "the client sent nothing of its body for {idle:?}"),
            UploadFault::Broken => f.write_str("the client's body broke off"),
        }
    }
}

impl UpstreamError {
    /// Of looking for its addresses.
    pub(crate) fn of_resolving(error: io::Error) -> UpstreamError {
        if is_exhaustion(&error) { UpstreamError::Exhausted(error) } else { UpstreamError::Resolve(error) }
    }

    /// Of dialling one of them.
    pub(crate) fn of_dialling(error: io::Error) -> UpstreamError {
        if is_exhaustion(&error) { UpstreamError::Exhausted(error) } else { UpstreamError::Connect(error) }
    }

    /// The reason's name in logs, metrics and the client's `error` member.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            UpstreamError::Resolve(_) => "upstream_unresolved",
            UpstreamError::Connect(_) => "upstream_unreachable",
            UpstreamError::ConnectTimeout => "upstream_connect_timeout",
            UpstreamError::Busy { .. } => "upstream_busy",
            UpstreamError::Exhausted(_) => "gate_exhausted",
            UpstreamError::Closed => "upstream_closed",
            UpstreamError::ResponseTimeout => "upstream_response_timeout",
            UpstreamError::Response(_) => "upstream_bad_response",
            UpstreamError::Upload(UploadFault::Stalled(_)) => "request_stalled",
            UpstreamError::Upload(UploadFault::Broken) => "request_broken",
        }
    }

    /// Not the client's, and not the gate's own bound or want.
    pub(crate) fn is_upstreams_fault(&self) -> bool {
        match self {
            UpstreamError::Busy { .. } | UpstreamError::Exhausted(_) | UpstreamError::Upload(_) => false,
            UpstreamError::Resolve(_)
            | UpstreamError::Connect(_)
            | UpstreamError::ConnectTimeout
            | UpstreamError::Closed
            | UpstreamError::ResponseTimeout
            | UpstreamError::Response(_) => true,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Resolve(_)
            | UpstreamError::Connect(_)
            | UpstreamError::Closed
            | UpstreamError::Response(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::ConnectTimeout | UpstreamError::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::Busy { .. } | UpstreamError::Exhausted(_) => StatusCode::SERVICE_UNAVAILABLE,
            UpstreamError::Upload(UploadFault::Stalled(_)) => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::Upload(UploadFault::Broken) => StatusCode::BAD_REQUEST,
        }
    }

    /// What the client may know: what happened, not where.
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
            UpstreamError::Closed => "The service behind this gate closed the connection before it answered.",
            UpstreamError::ResponseTimeout => "The service behind this gate did not begin to answer in time.",
            UpstreamError::Response(_) => "The service behind this gate gave an answer that is no HTTP.",
            UpstreamError::Upload(fault) => match fault {
                UploadFault::Stalled(idle) => {
                    return format!("Nothing of the request's body came for {} s.", idle.as_secs_f32());
                }
                UploadFault::Broken => "The request's body broke off.",
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
            ExchangeError::Failed { error, .. } => match upload_fault(&error) {
                Some(fault) => UpstreamError::Upload(fault),
                None if closed => UpstreamError::Closed,
                None => UpstreamError::Response(error),
            },
        }
    }
}

/// Whether this machine, or this process, has run out of something; the upstream was never asked.
fn is_exhaustion(error: &io::Error) -> bool {
    let wants = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| wants.contains(&code))
}

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
    fn what_the_gate_has_run_out_of_is_no_fault_of_the_upstream() {
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL] {
            let error = || io::Error::from_raw_os_error(code);
            for error in [UpstreamError::of_dialling(error()), UpstreamError::of_resolving(error())] {
                assert_eq!(
                    (error.status(), error.as_str()),
                    (StatusCode::SERVICE_UNAVAILABLE, "gate_exhausted")
                );
                assert!(!error.is_upstreams_fault());
            }
        }
        let refused = UpstreamError::of_dialling(io::Error::from_raw_os_error(libc::ECONNREFUSED));
        assert!(refused.is_upstreams_fault());
    }
}
