//! Errors of each operation: connecting, a whole request, one reply.
//!
//! Each error says what happened and what to do. The client never repeats a request by itself;
//! [`ExecError::retry`] says whether repeating it is safe.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::core::frame::ProtocolError;
pub use crate::core::refusal::ServerRefusal;
use crate::credentials::CredentialsError;

/// Error of [`RedisClient::exec`](crate::RedisClient::exec).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// No reply arrived.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The reply is an error, or cannot be decoded as the requested type.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl ExecError {
    /// Returns the server's error, if the server replied with one.
    pub fn server(&self) -> Option<&RedisServerError> {
        match self {
            ExecError::Reply(ReplyError::Server(error)) => Some(error),
            ExecError::Reply(ReplyError::Mismatch(_) | ReplyError::Aborted) | ExecError::Request(_) => None,
        }
    }

    /// Returns whether to retry.
    pub fn retry(&self) -> Retry {
        match self {
            ExecError::Request(error) => error.retry(),
            ExecError::Reply(error) => error.retry(),
        }
    }
}

/// Whether a failed request may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The server did not run the request; the same request may succeed later.
    Safe,
    /// The server may have run the request, or may still run it. Retry only idempotent requests.
    Unknown,
    /// The same request will fail again.
    Never,
}

/// Why a whole request got no reply.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The link is waiting for its next attempt to connect. New requests get this error, and so do
    /// requests that were queued when the last attempt failed. Nothing was sent.
    #[error("rejected: the connection is down ({last_error}); {}", NextAttempt(*.retry_at))]
    Rejected {
        /// What ended the connection, or the last attempt to connect.
        last_error: ConnectionLoss,
        /// When the next attempt starts.
        retry_at: Option<Instant>,
    },
    /// Too many requests are open, or too many bytes are unsent. Slow down, or raise the bounds in
    /// [`Config`](crate::Config).
    #[error(
        "queue full: {requests} of {max_requests} requests open, {unsent_bytes} of {max_unsent_bytes} bytes unsent; \
         the server is slower than its callers"
    )]
    QueueFull {
        /// Open requests.
        requests: usize,
        /// Maximum open requests.
        max_requests: usize,
        /// Unsent bytes.
        unsent_bytes: usize,
        /// Maximum unsent bytes.
        max_unsent_bytes: usize,
    },
    /// The connection does not accept this command: it may not get exactly one reply, or it would
    /// change or block the connection for other callers. Nothing was sent.
    #[error("{command} is not supported on this connection; use {instead} instead")]
    UnsupportedCommand {
        /// The rejected command.
        command: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// No reply arrived in time. The server may still run the command, unless none of its bytes was
    /// sent.
    #[error("no reply within {after:?}; the server may still run the command")]
    Deadline {
        /// The deadline, measured from when the worker took the request. It takes requests at once.
        after: Duration,
    },
    /// The connection was lost while the request was open. The request is not sent again.
    #[error(
        "the connection was lost before the reply arrived: {0}; the command may have run, and is not sent again"
    )]
    Lost(#[source] ConnectionLoss),
    /// The client is closed. A request still in flight when `close` timed out may have run.
    #[error("the client is closed{}", ClosedCause(.last_error))]
    Closed {
        /// What ended the link, unless `close` did.
        last_error: Option<ConnectionLoss>,
    },
    /// The client was [aborted](crate::RedisClient::abort), or the runtime of the connection has
    /// shut down. Requests in flight may have run.
    #[error(
        "cancelled: the client was aborted, or the runtime that ran its connection has shut down; the command \
         may have run; connect again"
    )]
    Cancelled,
}

impl RequestError {
    /// Returns whether to retry.
    pub fn retry(&self) -> Retry {
        match self {
            RequestError::Rejected { .. } | RequestError::QueueFull { .. } => Retry::Safe,
            RequestError::Deadline { .. } | RequestError::Lost(_) => Retry::Unknown,
            RequestError::UnsupportedCommand { .. }
            | RequestError::Closed { .. }
            | RequestError::Cancelled => Retry::Never,
        }
    }

    /// Returns the variant's name in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            RequestError::Rejected { .. } => "rejected",
            RequestError::QueueFull { .. } => "queue_full",
            RequestError::UnsupportedCommand { .. } => "unsuitable",
            RequestError::Deadline { .. } => "deadline",
            RequestError::Lost(_) => "lost",
            RequestError::Closed { .. } => "closed",
            RequestError::Cancelled => "cancelled",
        }
    }
}

struct NextAttempt(Option<Instant>);

impl fmt::Display for NextAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "next attempt in {:?}", at.saturating_duration_since(Instant::now())),
            None => f.write_str("no further attempt"),
        }
    }
}

struct ClosedCause<'a>(&'a Option<ConnectionLoss>);

impl fmt::Display for ClosedCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(loss) => write!(f, " after a failure: {loss}"),
            None => Ok(()),
        }
    }
}

/// Why a reply is not a value of the requested type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The server replied with an error.
    #[error(transparent)]
    Server(#[from] RedisServerError),
    /// The reply has another type.
    #[error(transparent)]
    Mismatch(#[from] Box<TypeMismatch>),
    /// The transaction did not run, because a watched key was changed. Read the key again and
    /// retry.
    #[error("the transaction did not run: a watched key was changed")]
    Aborted,
}

impl ReplyError {
    /// Returns whether to retry.
    pub fn retry(&self) -> Retry {
        match self {
            ReplyError::Server(error) => error.refusal().map_or(Retry::Never, ServerRefusal::retry),
            ReplyError::Aborted => Retry::Safe,
            ReplyError::Mismatch(_) => Retry::Never,
        }
    }

    /// Prepends `step` to the path of a type mismatch.
    #[must_use]
    pub fn at(self, step: impl Into<PathStep>) -> Self {
        match self {
            ReplyError::Server(_) | ReplyError::Aborted => self,
            ReplyError::Mismatch(mut mismatch) => {
                mismatch.path.insert(0, step.into());
                ReplyError::Mismatch(mismatch)
            }
        }
    }
}

/// An error reply of the server.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("server error: {text}")]
pub struct RedisServerError {
    text: Box<str>,
}

impl RedisServerError {
    pub(crate) fn new(text: &[u8]) -> Self {
        RedisServerError { text: String::from_utf8_lossy(text).into() }
    }

    /// Returns the first word of the error: `WRONGTYPE`, `NOAUTH`, `ERR` …
    pub fn code(&self) -> &str {
        self.text.split_once(' ').map_or(&self.text, |(code, _)| code)
    }

    /// Returns the refusal, if the error means that the command cannot run here or now. Also finds
    /// one inside a script's error.
    pub fn refusal(&self) -> Option<ServerRefusal> {
        ServerRefusal::parse(self.text.as_bytes())
    }

    /// Returns the whole text, as the server sent it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for RedisServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisServerError({:?})", self.text)
    }
}

/// A reply of another type than requested, with the position inside the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeMismatch {
    /// The requested type.
    pub expected: &'static str,
    /// The type of the reply. Never the value itself.
    pub found: Cow<'static, str>,
    /// Path through arrays and maps; empty for the reply itself.
    pub path: Vec<PathStep>,
}

impl fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)?;
        if !self.path.is_empty() {
            f.write_str(" at reply")?;
            self.path.iter().try_for_each(|step| write!(f, "{step}"))?;
        }
        Ok(())
    }
}

impl std::error::Error for TypeMismatch {}

/// One step of a path into a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathStep {
    /// An item of an array or a set.
    Index(usize),
    /// The key of a map entry.
    Key(usize),
    /// The value of a map entry.
    Value(usize),
    /// A field, by name.
    Field(Box<str>),
}

impl From<usize> for PathStep {
    fn from(index: usize) -> Self {
        PathStep::Index(index)
    }
}

impl fmt::Display for PathStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Key(index) => write!(f, "[key {index}]"),
            PathStep::Value(index) => write!(f, "[value {index}]"),
            PathStep::Field(name) => write!(f, ".{name}"),
        }
    }
}

/// Why a connection ended or could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionLoss {
    /// The server closed the connection: a restart, `CLIENT KILL`, an idle timeout.
    #[error("the server closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
    /// The server sent bytes that are not RESP, or that exceed the limits.
    #[error("{0}")]
    Protocol(#[source] ProtocolError),
    /// Requests waited while the server sent nothing for too long.
    #[error("the server sent nothing for {0:?} while requests were open")]
    Stalled(Duration),
    /// The server cannot serve; see
    /// [`Config::leave_unfit_server`](crate::Config::leave_unfit_server).
    #[error(
        "the server replied {0}; the connection was closed so that the next attempt can reach a server that \
         serves: check that the address leads to the master"
    )]
    Unfit(ServerRefusal),
    /// Connecting failed.
    #[error("{0}")]
    Connect(#[source] Arc<RedisConnectError>),
}

impl ConnectionLoss {
    /// Returns the variant's name in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            ConnectionLoss::Closed => "closed",
            ConnectionLoss::Io(_) => "io",
            ConnectionLoss::Protocol(_) => "protocol",
            ConnectionLoss::Stalled(_) => "stalled",
            ConnectionLoss::Unfit(_) => "unfit",
            ConnectionLoss::Connect(_) => "connect",
        }
    }
}

/// Why a connection could not be opened.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RedisConnectError {
    /// The URL or the configuration is invalid.
    #[error(transparent)]
    Config(#[from] RedisConfigError),
    /// The host name has no address.
    #[error("cannot resolve {host}: {source}; check the name and the resolver")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's error.
        source: Arc<io::Error>,
    },
    /// No address of the server accepts connections.
    #[error("cannot connect to {address}: {source}; is the server running and listening there?")]
    Dial {
        /// The last address tried.
        address: String,
        /// The error of that address.
        source: Arc<io::Error>,
    },
    /// Connecting took too long.
    #[error("not connected to {address} within {after:?}: {step} took too long")]
    Timeout {
        /// Address of the server.
        address: String,
        /// The value of [`Config::connect_timeout`](crate::Config::connect_timeout).
        after: Duration,
        /// The step in progress at the deadline.
        step: &'static str,
    },
    /// The TLS handshake failed.
    #[error(
        "TLS with {address} failed: {source}; check that the server speaks TLS there and that its certificate is trusted"
    )]
    Tls {
        /// Address of the server.
        address: String,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// The [provider](crate::CredentialsProvider) of the credentials failed.
    #[error("no credentials for {address}: {source}; the provider is called again at the next attempt")]
    Credentials {
        /// Address of the server.
        address: String,
        /// The provider's error.
        source: CredentialsError,
    },
    /// The server rejected the user name or the password.
    #[error("authentication failed: {0}; check the user name and the password")]
    Auth(#[source] RedisServerError),
    /// The user lacks permission for a command of the handshake.
    #[error("the user may not run {command}: {error}; extend its ACL")]
    Permission {
        /// The rejected command.
        command: &'static str,
        /// The server's error.
        error: RedisServerError,
    },
    /// The database cannot be selected.
    #[error("cannot select database {db}: {error}")]
    Database {
        /// The database number.
        db: u32,
        /// The server's error.
        error: RedisServerError,
    },
    /// The server rejected a command of the handshake.
    #[error("the server refused {command}: {error}")]
    Refused {
        /// The rejected command.
        command: &'static str,
        /// The server's error.
        error: RedisServerError,
    },
    /// The connection broke during the handshake.
    #[error(
        "the connection to {address} ended during the handshake: {reason}; does the server expect TLS there?"
    )]
    Handshake {
        /// Address of the server.
        address: String,
        /// How it ended.
        reason: String,
    },
    /// The client was closed or aborted while it was connecting.
    #[error("the client was closed or aborted while it was connecting")]
    Cancelled,
}

/// A URL or configuration that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RedisConfigError(pub(crate) String);
