//! Why a stream is not admitted.
//!
//! Invariant: every refusal has one [`Reason`], which decides its status, its metric and its log line alike; nobody else does.
//! A rejection never shows a user's id but to that user, in the body of the answer.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode};

use crate::core::pressure::Strain;
use crate::identity::Unidentified;
use crate::problem;
use crate::thread_id::ThreadId;
use crate::visitor::{BadId, User};

/// Why, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// All streams of the whole cluster are taken.
    Exhausted,
    /// The share of the limit that the class of the visitor, or of the route, may use is taken.
    Headroom,
    /// The user has as many streams as a user may.
    UserLimit,
    /// Nothing came free while the visitor waited.
    WaitedInVain,
    /// Too many wait already.
    WaitFull,
    /// This process is short of memory.
    Memory,
    /// This process is short of CPU.
    Cpu,
    /// The store lost its memory, and who holds what is being counted anew.
    Rebuilding,
    /// The store can't be reached, and the policy is to refuse then.
    StoreDown,
    /// Too many wait for the store.
    StoreBusy,
    /// This process is about to end.
    Draining,
    /// A token or key that doesn't hold.
    Credentials,
    /// A header that can't be understood.
    BadRequest,
    /// An id, a key or a token that is longer than any is.
    TooLong,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 14] = [
        Reason::Exhausted,
        Reason::Headroom,
        Reason::UserLimit,
        Reason::WaitedInVain,
        Reason::WaitFull,
        Reason::Memory,
        Reason::Cpu,
        Reason::Rebuilding,
        Reason::StoreDown,
        Reason::StoreBusy,
        Reason::Draining,
        Reason::Credentials,
        Reason::BadRequest,
        Reason::TooLong,
    ];

    /// The name in logs, metrics and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Exhausted => "exhausted",
            Reason::Headroom => "headroom",
            Reason::UserLimit => "user_limit",
            Reason::WaitedInVain => "waited_in_vain",
            Reason::WaitFull => "wait_full",
            Reason::Memory => "memory",
            Reason::Cpu => "cpu",
            Reason::Rebuilding => "rebuilding",
            Reason::StoreDown => "store_down",
            Reason::StoreBusy => "store_busy",
            Reason::Draining => "draining",
            Reason::Credentials => "credentials",
            Reason::BadRequest => "bad_request",
            Reason::TooLong => "too_long",
        }
    }

    /// The status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            Reason::Exhausted
            | Reason::Headroom
            | Reason::WaitedInVain
            | Reason::WaitFull
            | Reason::Memory
            | Reason::Cpu
            | Reason::Rebuilding
            | Reason::StoreDown
            | Reason::StoreBusy
            | Reason::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Reason::UserLimit => StatusCode::TOO_MANY_REQUESTS,
            Reason::Credentials => StatusCode::UNAUTHORIZED,
            Reason::BadRequest => StatusCode::BAD_REQUEST,
            Reason::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    /// Whether the store or the whole cluster is the cause, and not the visitor.
    pub(crate) fn is_ours(self) -> bool {
        self.status() == StatusCode::SERVICE_UNAVAILABLE
    }
}

impl From<Strain> for Reason {
    fn from(strain: Strain) -> Self {
        match strain {
            Strain::Memory => Reason::Memory,
            Strain::Cpu => Reason::Cpu,
        }
    }
}

/// One refusal, with what its answer tells.
#[derive(Clone, PartialEq, Eq)]
pub struct Rejection {
    pub(crate) reason: Reason,
    pub(crate) user: Option<User>,
    /// In use, and how many may be. Of the user for [`Reason::UserLimit`], else of the whole cluster.
    pub(crate) count: Option<(u32, u32)>,
    pub(crate) retry_after_seconds: Option<u32>,
    pub(crate) fault: Option<Unidentified>,
}

impl Rejection {
    pub(crate) fn new(reason: Reason, user: Option<User>) -> Self {
        Rejection { reason, user, count: None, retry_after_seconds: None, fault: None }
    }

    /// Why.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// In how many seconds to try again, where that helps.
    pub fn retry_after_seconds(&self) -> Option<u32> {
        self.retry_after_seconds
    }

    /// The whole answer: status, headers, and a body of `application/problem+json`. The layer sends it by itself.
    pub fn response(&self, thread: &ThreadId) -> Response<Bytes> {
        problem::answer(self, thread)
    }

    /// Whether the visitor may read how full the whole house is: only one who is known by more than an address.
    pub(crate) fn tells_counts(&self) -> bool {
        self.user.as_ref().is_some_and(|user| !user.is_address())
    }
}

impl From<Unidentified> for Rejection {
    fn from(fault: Unidentified) -> Self {
        let reason = match &fault {
            Unidentified::Token(_) | Unidentified::ApiKey { .. } => Reason::Credentials,
            Unidentified::TooLong { .. } | Unidentified::Id(BadId::TooLong { .. }) => Reason::TooLong,
            Unidentified::Ambiguous { .. } | Unidentified::Unreadable { .. } => Reason::BadRequest,
            Unidentified::Id(BadId::Empty | BadId::ControlCharacter) => Reason::BadRequest,
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
