//! Traits of connectors and connections.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;

use tokio::sync::mpsc;

/// Opens connections.
///
/// A dial has two steps: credentials, then the connection. The rate limit is checked between them,
/// so a dial without credentials uses no rate token.
pub trait Connect: Send + Sync + 'static {
    /// Type of the connections.
    type Connection: ReservoirConnection;
    /// Password, token or other credentials of a connection.
    type Credentials: Send;

    /// Returns the name of the server. Reservoirs of one quota share budget and rate if their
    /// endpoints are equal.
    fn endpoint(&self) -> String {
        "default".into()
    }

    /// Returns the credentials for the next connection.
    fn credentials(&self) -> impl Future<Output = Result<Self::Credentials, ConnectionError>> + Send;

    /// Opens a connection. The future may be dropped at any point.
    fn connect(
        &self,
        credentials: Self::Credentials,
    ) -> impl Future<Output = Result<Self::Connection, ConnectionError>> + Send;

    /// Opens a connection, as [`connect`](Self::connect) does. The reservoir calls this method.
    ///
    /// After a failed or dropped dial, the server may still have a backend, for example one that is
    /// authenticating. A connector keeps a clone of `slot` until the server has closed that
    /// backend; until then the dial counts against `max`. The returned connection needs no clone.
    /// By default `slot` is dropped with the dial.
    fn connect_in_slot(
        &self,
        credentials: Self::Credentials,
        slot: DialSlot,
    ) -> impl Future<Output = Result<Self::Connection, ConnectionError>> + Send {
        async move {
            let connected = self.connect(credentials).await;
            drop(slot);
            connected
        }
    }
}

/// Slot of one dial among the `max` connections of a reservoir, with its lease of the budget.
///
/// After a failed dial, slot and lease stay in use until every clone is dropped, at most for
/// [`close_timeout`](crate::ReservoirConfig::close_timeout).
#[derive(Debug, Clone)]
pub struct DialSlot {
    /// No value is ever sent; the receiver detects that the last clone was dropped.
    holder: mpsc::Sender<Infallible>,
}

/// The reservoir's side of a [`DialSlot`]: detects when all clones are dropped.
pub(crate) struct SlotHolders(mpsc::Receiver<Infallible>);

impl DialSlot {
    pub(crate) fn new() -> (DialSlot, SlotHolders) {
        let (holder, holders) = mpsc::channel(1);
        (DialSlot { holder }, SlotHolders(holders))
    }
}

impl DialSlot {
    /// Waits until the reservoir has released the slot after `close_timeout`. Sockets that are
    /// still open should be closed then.
    pub async fn released(&self) {
        self.holder.closed().await;
    }
}

impl SlotHolders {
    pub(crate) fn all_dropped(&self) -> bool {
        self.0.sender_strong_count() == 0
    }

    /// Waits until the last clone is dropped.
    pub(crate) async fn dropped(&mut self) {
        let None = self.0.recv().await;
    }
}

/// A connection that a reservoir can lend.
pub trait ReservoirConnection: Send + 'static {
    /// Returns whether the connection is unusable. Called before each checkout and after each
    /// return.
    fn is_closed(&self) -> bool;

    /// Resets the session by running `script`, which comes from [`Reset`](crate::Reset). After an
    /// error the connection is retired.
    fn reset(&mut self, script: &str) -> impl Future<Output = Result<(), ConnectionError>> + Send;

    /// Closes the connection and waits until the server has closed its end; until then the
    /// connection counts against `max`. The reservoir drops the future after
    /// [`close_timeout`](crate::ReservoirConfig::close_timeout); the socket must be closed then.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// Why a connection could not be opened or reset.
#[derive(Debug)]
pub struct ConnectionError {
    kind: ConnectionErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// Class of an error; decides when to dial again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionErrorKind {
    /// The credentials could not be obtained. Nothing was dialed.
    Credentials,
    /// The server refused the user, the password or the database.
    Refused,
    /// The server has no room for more connections.
    Full,
    /// The server did not respond, or not in time.
    Unreachable,
    /// The connection was opened, but its after-connect hook failed.
    Hook,
    /// Any other error.
    Other,
}

impl ConnectionErrorKind {
    /// Returns the value of the metric label and log field.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectionErrorKind::Credentials => "credentials",
            ConnectionErrorKind::Refused => "refused",
            ConnectionErrorKind::Full => "server_full",
            ConnectionErrorKind::Unreachable => "unreachable",
            ConnectionErrorKind::Hook => "hook",
            ConnectionErrorKind::Other => "other",
        }
    }

    /// Returns whether early retries do harm: they load a full server, or lock an account after
    /// wrong passwords.
    pub(crate) fn needs_long_backoff(self) -> bool {
        matches!(self, ConnectionErrorKind::Full | ConnectionErrorKind::Refused)
    }
}

impl ConnectionError {
    /// Creates an error of this kind.
    pub fn new(kind: ConnectionErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConnectionError { kind, source: source.into() }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ConnectionErrorKind {
        self.kind
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ConnectionErrorKind::Credentials => "no credentials",
            ConnectionErrorKind::Refused => "the server refuses us",
            ConnectionErrorKind::Full => "the server has no room",
            ConnectionErrorKind::Unreachable => "the server can't be reached",
            ConnectionErrorKind::Hook => "the after-connect hook failed",
            ConnectionErrorKind::Other => "no connection",
        };
        write!(f, "{what}: {}", self.source)
    }
}

impl Error for ConnectionError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
