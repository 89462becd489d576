//! What can go wrong, by operation: connecting, a request as a whole, one reply of it.
//!
//! Each error says what happened and what to do. [`ExecError::retry`] is the one place that decides whether trying again is
//! safe: this client never repeats a request by itself.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::core::frame::ProtocolError;
pub use crate::core::refusal::Refusal;

/// Why [`Client::exec`](crate::Client::exec) has no value to give.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// There was no reply.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// There was a reply, but not of the kind that was asked for.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

impl ExecError {
    /// The server's error, if that is what it is.
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            ExecError::Reply(ReplyError::Server(error)) => Some(error),
            ExecError::Reply(ReplyError::Mismatch(_) | ReplyError::Aborted) | ExecError::Request(_) => None,
        }
    }

    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        match self {
            ExecError::Request(error) => error.retry(),
            ExecError::Reply(error) => error.retry(),
        }
    }
}

/// Whether a failed request may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The server did not run it; the same request may succeed later.
    Safe,
    /// The server may have run it, or may still: only a request that does no harm twice should be repeated.
    Unknown,
    /// The same request will fail again.
    Never,
}

/// Why a request as a whole got no reply.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The link waits before its next try to connect, and rejects what comes meanwhile, and what was queued when the last
    /// try failed. Nothing of it was sent.
    #[error("rejected: the connection is down ({last_error}); {}", Next(*.retry_at))]
    Rejected {
        /// What ended the connection, or the last try to make one.
        last_error: Loss,
        /// When the next try starts.
        retry_at: Option<Instant>,
    },
    /// Too much is open already. Slow down, or raise the bounds in [`Config`](crate::Config).
    #[error(
        "queue full: {requests} of {max_requests} requests open, {unsent_bytes} of {max_unsent_bytes} bytes unsent; \
         the server is slower than its callers"
    )]
    QueueFull {
        /// Requests that are open.
        requests: usize,
        /// How many may be.
        max_requests: usize,
        /// Bytes that wait to be sent.
        unsent_bytes: usize,
        /// How many may.
        max_unsent_bytes: usize,
    },
    /// The connection can't take this command: it would answer otherwise than with one reply, or change or block the
    /// connection for everybody else. Nothing was sent.
    #[error("{command} would upset this connection; use {instead} instead")]
    Unsuitable {
        /// What was refused.
        command: &'static str,
        /// What to use.
        instead: &'static str,
    },
    /// No reply in time. The server may still run it, unless no byte of it had left.
    #[error("no reply within {after:?}; the server may still run the command")]
    Deadline {
        /// The deadline, counted from when the connection's task took the request over, which it does at once.
        after: Duration,
    },
    /// The connection was lost while the request was open. It is not sent again.
    #[error(
        "the connection was lost before the reply came: {0}; the command may have run, and is not sent again"
    )]
    Lost(#[source] Loss),
    /// The client was closed. A request that was in flight when `close` ran out of time may have run.
    #[error("the client is closed{}", Because(.last_error))]
    Closed {
        /// What ended the link, if it wasn't `close`.
        last_error: Option<Loss>,
    },
    /// The runtime that ran the connection has shut down, and the connection with it. What was in flight may have run.
    #[error("the runtime that ran this connection is gone; connect again on a live one")]
    Cancelled,
}

impl RequestError {
    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        match self {
            RequestError::Rejected { .. } | RequestError::QueueFull { .. } => Retry::Safe,
            RequestError::Deadline { .. } | RequestError::Lost(_) => Retry::Unknown,
            RequestError::Unsuitable { .. } | RequestError::Closed { .. } | RequestError::Cancelled => {
                Retry::Never
            }
        }
    }

    /// The variant's name in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            RequestError::Rejected { .. } => "rejected",
            RequestError::QueueFull { .. } => "queue_full",
            RequestError::Unsuitable { .. } => "unsuitable",
            RequestError::Deadline { .. } => "deadline",
            RequestError::Lost(_) => "lost",
            RequestError::Closed { .. } => "closed",
            RequestError::Cancelled => "cancelled",
        }
    }
}

struct Next(Option<Instant>);

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "next try in {:?}", at.saturating_duration_since(Instant::now())),
            None => f.write_str("no further try"),
        }
    }
}

struct Because<'a>(&'a Option<Loss>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(loss) => write!(f, " after a failure: {loss}"),
            None => Ok(()),
        }
    }
}

/// Why one reply is not the value that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server answered with another type.
    #[error(transparent)]
    Mismatch(#[from] Box<Mismatch>),
    /// The transaction did not run, because a watched key was changed. Read it again and try again.
    #[error("the transaction did not run: a watched key was changed meanwhile")]
    Aborted,
}

impl ReplyError {
    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        match self {
            ReplyError::Server(error) => error.refusal().map_or(Retry::Never, Refusal::retry),
            ReplyError::Aborted => Retry::Safe,
            ReplyError::Mismatch(_) => Retry::Never,
        }
    }

    /// Notes that the error happened at `step` of the reply.
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

/// An error that the server answered with.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("server error: {text}")]
pub struct ServerError {
    text: Box<str>,
}

impl ServerError {
    pub(crate) fn new(text: &[u8]) -> Self {
        ServerError { text: String::from_utf8_lossy(text).into() }
    }

    /// Its first word: `WRONGTYPE`, `NOAUTH`, `ERR` …
    pub fn code(&self) -> &str {
        self.text.split_once(' ').map_or(&self.text, |(code, _)| code)
    }

    /// What it says about the server, if it says that the command can't run here or now. Found inside a script's error, too.
    pub fn refusal(&self) -> Option<Refusal> {
        Refusal::of(self.text.as_bytes())
    }

    /// All of it, as the server wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerError({:?})", self.text)
    }
}

/// A reply of another type than the one asked for, and where in the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// What was asked for.
    pub expected: &'static str,
    /// What came. Never the value itself.
    pub found: Cow<'static, str>,
    /// The way to it through arrays and maps; empty for the reply itself.
    pub path: Vec<PathStep>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)?;
        if !self.path.is_empty() {
            f.write_str(" at reply")?;
            self.path.iter().try_for_each(|step| write!(f, "{step}"))?;
        }
        Ok(())
    }
}

impl std::error::Error for Mismatch {}

/// One step into a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// Into an array or a set.
    Index(usize),
    /// To the key of a map's entry.
    Key(usize),
    /// To the value of a map's entry.
    Value(usize),
    /// To a field by its name.
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

/// Why a connection ended, or wasn't made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server closed it: a restart, `CLIENT KILL`, an idle timeout.
    #[error("the server closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
    /// What the server sent is not RESP, or over the limits.
    #[error("{0}")]
    Protocol(#[source] ProtocolError),
    /// The server took requests and sent nothing for too long.
    #[error("the server sent nothing for {0:?} while requests were open")]
    Stalled(Duration),
    /// The server can't serve now; see [`Config::leave_unfit_server`](crate::Config::leave_unfit_server).
    #[error(
        "the server answered {0}; the connection was ended so that the next try finds a server that can serve: check that the \
         address leads to the master"
    )]
    Unfit(Refusal),
    /// The connection couldn't be made.
    #[error("{0}")]
    Connect(#[source] Arc<ConnectError>),
}

impl Loss {
    /// The variant's name in logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Loss::Closed => "closed",
            Loss::Io(_) => "io",
            Loss::Protocol(_) => "protocol",
            Loss::Stalled(_) => "stalled",
            Loss::Unfit(_) => "unfit",
            Loss::Connect(_) => "connect",
        }
    }
}

/// Why a connection couldn't be made.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL or the configuration can't be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The host name has no address.
    #[error("cannot resolve {host}: {source}; check the name and the resolver")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error.
        source: Arc<io::Error>,
    },
    /// No address of the server accepts connections.
    #[error("cannot connect to {address}: {source}; is the server running and listening there?")]
    Dial {
        /// The last address tried.
        address: String,
        /// The error of that try.
        source: Arc<io::Error>,
    },
    /// Not connected in time.
    #[error("not connected to {address} within {after:?}: {step} took too long")]
    Timeout {
        /// Where to.
        address: String,
        /// [`Config::connect_timeout`](crate::Config::connect_timeout).
        after: Duration,
        /// What was under way.
        step: &'static str,
    },
    /// The TLS handshake failed.
    #[error(
        "TLS with {address} failed: {source}; check that the server speaks TLS there and that its certificate is trusted"
    )]
    Tls {
        /// Where to.
        address: String,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// The server refused the name or the password.
    #[error("authentication failed: {0}; check the user name and the password")]
    Auth(#[source] ServerError),
    /// The user may not do what connecting needs.
    #[error("the user may not run {command}: {error}; extend its ACL")]
    Permission {
        /// The command that was refused.
        command: &'static str,
        /// The server's error.
        error: ServerError,
    },
    /// The database can't be selected.
    #[error("cannot select database {db}: {error}")]
    Database {
        /// Its number.
        db: u32,
        /// The server's error.
        error: ServerError,
    },
    /// The server refused another command of the handshake.
    #[error("the server refused {command}: {error}")]
    Refused {
        /// The command that was refused.
        command: &'static str,
        /// The server's error.
        error: ServerError,
    },
    /// The connection broke before the handshake was done.
    #[error(
        "the connection to {address} ended during the handshake: {reason}; does the server expect TLS there?"
    )]
    Handshake {
        /// Where to.
        address: String,
        /// How it ended.
        reason: String,
    },
    /// The client was closed meanwhile.
    #[error("the client was closed while it was connecting")]
    Cancelled,
}

/// A URL or configuration that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);
