//! Rejections: why a stream is not admitted.
//!
//! Invariant: every rejection has one [`RejectionReason`], which alone determines its HTTP status,
//! metric label and log fields.
//! A user's id appears only in the response body for that user.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::client_identity::{InvalidUserId, UserId};
use crate::core::pressure::ShedCause;
use crate::identity::IdentifyError;
use crate::problem_details;
use crate::thread_id::ThreadId;

/// Reason of a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionReason {
    /// All streams of the cluster are in use.
    Exhausted,
    /// All streams that this process may have at present are in use: the adaptive limit is reached.
    Adaptive,
    /// The share of the total limit for the client's or the route's class is in use.
    Headroom,
    /// The user has reached its limit.
    UserLimit,
    /// No stream became free while the request waited.
    WaitTimedOut,
    /// The wait queue is full.
    WaitFull,
    /// This process is short of memory.
    Memory,
    /// This process is short of CPU.
    Cpu,
    /// The store is new or lost its data, and its counts are being rebuilt. The policy allows this
    /// process no more until then.
    Rebuilding,
    /// The store is unreachable, and the policy is to refuse then.
    StoreDown,
    /// Too many requests wait for the store.
    StoreBusy,
    /// This process is shutting down.
    Draining,
    /// An operator ended the stream before its response.
    Ended,
    /// The token or API key is invalid.
    Credentials,
    /// A header is malformed.
    BadRequest,
    /// An id, key or token exceeds its maximum length.
    TooLong,
}

impl RejectionReason {
    /// All reasons, in declaration order.
    pub const ALL: [RejectionReason; 16] = [
        RejectionReason::Exhausted,
        RejectionReason::Adaptive,
        RejectionReason::Headroom,
        RejectionReason::UserLimit,
        RejectionReason::WaitTimedOut,
        RejectionReason::WaitFull,
        RejectionReason::Memory,
        RejectionReason::Cpu,
        RejectionReason::Rebuilding,
        RejectionReason::StoreDown,
        RejectionReason::StoreBusy,
        RejectionReason::Draining,
        RejectionReason::Ended,
        RejectionReason::Credentials,
        RejectionReason::BadRequest,
        RejectionReason::TooLong,
    ];

    /// Returns the name in logs, metrics and response bodies.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectionReason::Exhausted => "exhausted",
            RejectionReason::Adaptive => "adaptive",
            RejectionReason::Headroom => "headroom",
            RejectionReason::UserLimit => "user_limit",
            RejectionReason::WaitTimedOut => "waited_in_vain",
            RejectionReason::WaitFull => "wait_full",
            RejectionReason::Memory => "memory",
            RejectionReason::Cpu => "cpu",
            RejectionReason::Rebuilding => "rebuilding",
            RejectionReason::StoreDown => "store_down",
            RejectionReason::StoreBusy => "store_busy",
            RejectionReason::Draining => "draining",
            RejectionReason::Ended => "ended",
            RejectionReason::Credentials => "credentials",
            RejectionReason::BadRequest => "bad_request",
            RejectionReason::TooLong => "too_long",
        }
    }

    /// Returns the HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            RejectionReason::Exhausted
            | RejectionReason::Adaptive
            | RejectionReason::Headroom
            | RejectionReason::WaitTimedOut
            | RejectionReason::WaitFull
            | RejectionReason::Memory
            | RejectionReason::Cpu
            | RejectionReason::Rebuilding
            | RejectionReason::StoreDown
            | RejectionReason::StoreBusy
            | RejectionReason::Draining
            | RejectionReason::Ended => StatusCode::SERVICE_UNAVAILABLE,
            RejectionReason::UserLimit => StatusCode::TOO_MANY_REQUESTS,
            RejectionReason::Credentials => StatusCode::UNAUTHORIZED,
            RejectionReason::BadRequest => StatusCode::BAD_REQUEST,
            RejectionReason::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    /// Returns whether the cluster, the process or the store is the cause, not the client.
    pub(crate) fn is_server_side(self) -> bool {
        self.status() == StatusCode::SERVICE_UNAVAILABLE
    }
}

impl From<ShedCause> for RejectionReason {
    fn from(shed_cause: ShedCause) -> Self {
        match shed_cause {
            ShedCause::Memory => RejectionReason::Memory,
            ShedCause::Cpu => RejectionReason::Cpu,
        }
    }
}

/// A rejection and the contents of its response.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejection {
    pub(crate) reason: RejectionReason,
    pub(crate) user: Option<UserId>,
    /// Used and maximum streams: the user's for [`RejectionReason::UserLimit`], this process's for
    /// [`RejectionReason::Adaptive`], otherwise the cluster's.
    pub(crate) count: Option<(u32, u32)>,
    pub(crate) retry_after_seconds: Option<u32>,
    pub(crate) fault: Option<IdentifyError>,
}

impl Rejection {
    pub(crate) fn new(reason: RejectionReason, user: Option<UserId>) -> Self {
        Rejection { reason, user, count: None, retry_after_seconds: None, fault: None }
    }

    /// Returns the reason.
    pub fn reason(&self) -> RejectionReason {
        self.reason
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// Returns the `Retry-After` in seconds, if a retry can succeed.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.retry_after_seconds
    }

    /// Returns the HTTP response: status, headers and an `application/problem+json` body.
    /// [`AdmissionLayer`](crate::AdmissionLayer) sends it itself.
    pub fn response(&self, thread: &ThreadId) -> Response<Bytes> {
        problem_details::problem_response(self, thread)
    }

    /// Returns whether the client may see the cluster's usage: only authenticated clients may.
    pub(crate) fn may_see_counts(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_address())
    }
}

impl From<IdentifyError> for Rejection {
    fn from(fault: IdentifyError) -> Self {
        let reason = match &fault {
            IdentifyError::Token(_) | IdentifyError::ApiKey { .. } => RejectionReason::Credentials,
            IdentifyError::TooLong { .. } | IdentifyError::Id(InvalidUserId::TooLong { .. }) => {
                RejectionReason::TooLong
            }
            IdentifyError::Ambiguous { .. } | IdentifyError::Unreadable { .. } => RejectionReason::BadRequest,
            IdentifyError::Id(InvalidUserId::Empty | InvalidUserId::ControlCharacter) => {
                RejectionReason::BadRequest
            }
        };
        Rejection { fault: Some(fault), ..Rejection::new(reason, None) }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not admitted: {}", self.reason.as_str())?;
        if let Some((current, max)) = self.count {
            write!(f, ", {current} of {max} in use")?;
        }
        match &self.fault {
            Some(fault) => write!(f, ", {fault}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rejection({self})")
    }
}

impl std::error::Error for Rejection {}
