//! Request failure: in which stage a request failed, and how; the labels of
//! `forebay_gate_errors_total`.

use std::error::Error;
use std::io;

use super::download::DownloadError;

/// Stage of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureStage {
    /// The gate reads and checks the client's request.
    Request,
    /// The gate gets a connection to the upstream.
    Connect,
    /// From the first byte of the request to the response head, and its status.
    FirstByte,
    /// The response body, or an upgraded connection, is being passed on.
    Stream,
}

impl FailureStage {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            FailureStage::Request => "request",
            FailureStage::Connect => "connect",
            FailureStage::FirstByte => "first_byte",
            FailureStage::Stream => "stream",
        }
    }
}

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureType {
    Timeout,
    /// The upstream's machine refused the connection.
    Refused,
    Reset,
    /// The upstream closed the connection too early.
    Closed,
    /// The upstream can't be reached for another reason.
    Unreachable,
    /// The upstream's name can't be resolved.
    Unresolved,
    /// All connections to the upstream are in use.
    Busy,
    /// The gate has run out of descriptors, ports or memory.
    Exhausted,
    /// The request is not valid, or not supported.
    BadRequest,
    /// The request body ended before it was complete.
    Incomplete,
    /// The response is not valid HTTP.
    BadResponse,
    /// The upstream responded with a 5xx.
    Upstream5xx,
    /// The gate is at fault.
    Internal,
}

impl FailureType {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            FailureType::Timeout => "timeout",
            FailureType::Refused => "refused",
            FailureType::Reset => "reset",
            FailureType::Closed => "closed",
            FailureType::Unreachable => "unreachable",
            FailureType::Unresolved => "unresolved",
            FailureType::Busy => "busy",
            FailureType::Exhausted => "exhausted",
            FailureType::BadRequest => "bad_request",
            FailureType::Incomplete => "incomplete",
            FailureType::BadResponse => "bad_response",
            FailureType::Upstream5xx => "upstream_5xx",
            FailureType::Internal => "internal",
        }
    }

    /// Returns the type of a failed dial.
    pub(crate) fn of_dial(error: &io::Error) -> FailureType {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => FailureType::Refused,
            io::ErrorKind::ConnectionReset => FailureType::Reset,
            io::ErrorKind::TimedOut => FailureType::Timeout,
            _ => FailureType::Unreachable,
        }
    }

    /// Returns the type of a connection that broke before the response head.
    pub(crate) fn of_broken(kind: io::ErrorKind) -> FailureType {
        match kind {
            io::ErrorKind::TimedOut => FailureType::Timeout,
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown => FailureType::Unreachable,
            _ => FailureType::Reset,
        }
    }

    /// Returns the type of a response body that failed.
    fn of_download(error: &DownloadError) -> FailureType {
        match error {
            DownloadError::RequestStalled => FailureType::Timeout,
            DownloadError::RequestBroken => FailureType::Incomplete,
            DownloadError::Hyper(error) => match io_source(error) {
                Some(error) => FailureType::of_read(error),
                None if error.is_parse() => FailureType::BadResponse,
                None => FailureType::Closed,
            },
            DownloadError::Io(error) => FailureType::of_read(error),
            DownloadError::Chunk(_) => FailureType::BadResponse,
            DownloadError::Closed | DownloadError::Ended => FailureType::Closed,
        }
    }

    /// Returns the type of a failed read. hyper reports invalid chunks as invalid input or data.
    fn of_read(error: &io::Error) -> FailureType {
        match error.kind() {
            io::ErrorKind::TimedOut => FailureType::Timeout,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => FailureType::BadResponse,
            io::ErrorKind::UnexpectedEof => FailureType::Closed,
            _ => FailureType::Reset,
        }
    }
}

/// Stage and type of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestFailure {
    pub(crate) stage: FailureStage,
    pub(crate) kind: FailureType,
}

impl RequestFailure {
    pub(crate) fn new(stage: FailureStage, kind: FailureType) -> RequestFailure {
        RequestFailure { stage, kind }
    }

    /// Returns stage and type of a response body that failed.
    pub(crate) fn of_download(error: &DownloadError) -> RequestFailure {
        let stage = if error.is_clients_fault() { FailureStage::Request } else { FailureStage::Stream };
        RequestFailure::new(stage, FailureType::of_download(error))
    }
}

/// Returns the I/O error that caused an error.
pub(crate) fn io_source(error: &dyn Error) -> Option<&io::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref() {
            Some(io) => return Some(io),
            None => cause = error.source(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dials_error_has_the_type_of_its_code() {
        for (code, kind) in [
            (libc::ECONNREFUSED, FailureType::Refused),
            (libc::ECONNRESET, FailureType::Reset),
            (libc::ETIMEDOUT, FailureType::Timeout),
            (libc::EHOSTUNREACH, FailureType::Unreachable),
            (libc::ENETUNREACH, FailureType::Unreachable),
            (libc::EACCES, FailureType::Unreachable),
        ] {
            assert_eq!(FailureType::of_dial(&io::Error::from_raw_os_error(code)), kind, "{code}");
        }
    }

    #[test]
    fn a_body_error_has_the_type_of_its_cause() {
        let io = |kind: io::ErrorKind| FailureType::of_download(&DownloadError::Io(kind.into()));
        assert_eq!(io(io::ErrorKind::ConnectionReset), FailureType::Reset);
        assert_eq!(io(io::ErrorKind::TimedOut), FailureType::Timeout);
        assert_eq!(io(io::ErrorKind::UnexpectedEof), FailureType::Closed);
        assert_eq!(io(io::ErrorKind::InvalidData), FailureType::BadResponse);
        assert_eq!(FailureType::of_download(&DownloadError::Closed), FailureType::Closed);
    }
}
