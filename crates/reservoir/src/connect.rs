//! Where connections come from, and what the reservoir asks of them.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;

use tokio::sync::mpsc;

/// Opens connections.
///
/// A dial has two steps, so that a connection that fails for want of a password doesn't use up the rate limit: first the
/// credentials, which may be asked for somewhere, then the connection itself.
pub trait Connect: Send + Sync + 'static {
    /// What is lent.
    type Connection: Connection;
    /// What a connection is opened with.
    type Credentials: Send;

    /// The server that it dials: reservoirs of one quota share budget and rate if this is the same.
    fn endpoint(&self) -> String {
        "default".into()
    }

    /// Gets what the next connection is opened with.
    fn credentials(&self) -> impl Future<Output = Result<Self::Credentials, ConnectError>> + Send;

    /// Opens a connection. It may be dropped at any point.
    fn connect(
        &self,
        credentials: Self::Credentials,
    ) -> impl Future<Output = Result<Self::Connection, ConnectError>> + Send;

    /// Opens a connection, as [`connect`](Self::connect) does. The reservoir calls this one.
    ///
    /// A connector whose server may go on with a dial that failed or was dropped (it still authenticates, say) keeps a
    /// clone of `slot` until the server has closed that connection: until then the dial counts. It needs none for the
    /// connection that it returns. By default `slot` is dropped with the dial.
    fn connect_in_slot(
        &self,
        credentials: Self::Credentials,
        slot: DialSlot,
    ) -> impl Future<Output = Result<Self::Connection, ConnectError>> + Send {
        async move {
            let connected = self.connect(credentials).await;
            drop(slot);
            connected
        }
    }
}

/// The place of one dial among the reservoir's `max` connections, with its lease of the budget. After a failed dial both are
/// taken until every clone is dropped, and for no longer than [`close_timeout`](crate::ReservoirConfig::close_timeout).
#[derive(Debug, Clone)]
pub struct DialSlot {
    /// Nothing is ever sent; the receiver learns when the last clone is gone.
    holder: mpsc::Sender<Infallible>,
}

/// The clones of a [`DialSlot`], seen from the reservoir.
pub(crate) struct SlotHolders(mpsc::Receiver<Infallible>);

impl DialSlot {
    pub(crate) fn new() -> (DialSlot, SlotHolders) {
        let (holder, holders) = mpsc::channel(1);
        (DialSlot { holder }, SlotHolders(holders))
    }
}

impl DialSlot {
    /// Resolves when the reservoir has given the place back, because it waited for long enough: a connection that is still
    /// open should be closed.
    pub async fn given_back(&self) {
        self.holder.closed().await;
    }
}

impl SlotHolders {
    pub(crate) fn are_gone(&self) -> bool {
        self.0.sender_strong_count() == 0
    }

    /// Resolves when the last clone is dropped.
    pub(crate) async fn gone(&mut self) {
        let None = self.0.recv().await;
    }
}

/// A connection as the reservoir sees it.
pub trait Connection: Send + 'static {
    /// Whether it is known to be of no use any more. Asked on every return, and before it is lent.
    fn is_closed(&self) -> bool;

    /// Makes it as if nobody had used it: `script` is what the reservoir's [`Reset`](crate::Reset) says. An error retires
    /// the connection.
    fn reset(&mut self, script: &str) -> impl Future<Output = Result<(), ConnectError>> + Send;

    /// Says goodbye, and resolves when the server has closed its end: until then the connection counts. The reservoir drops
    /// the future after [`close_timeout`](crate::ReservoirConfig::close_timeout); then nothing may be left open.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// Why a connection couldn't be opened or reset.
#[derive(Debug)]
pub struct ConnectError {
    kind: ConnectErrorKind,
    source: Box<dyn Error + Send + Sync>,
}

/// What an error means for the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectErrorKind {
    /// The credentials couldn't be had. Nothing was dialed.
    Credentials,
    /// The server refused who we say we are, or what we may do.
    Refused,
    /// The server has no room for more connections.
    Full,
    /// Nobody answered, or not in time.
    Unreachable,
    /// Anything else.
    Other,
}

impl ConnectErrorKind {
    /// In metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            ConnectErrorKind::Credentials => "credentials",
            ConnectErrorKind::Refused => "refused",
            ConnectErrorKind::Full => "server_full",
            ConnectErrorKind::Unreachable => "unreachable",
            ConnectErrorKind::Other => "other",
        }
    }

    /// Whether trying again soon would only make it worse: a full server, a wrong password that locks an account.
    pub(crate) fn calls_for_patience(self) -> bool {
        matches!(self, ConnectErrorKind::Full | ConnectErrorKind::Refused)
    }
}

impl ConnectError {
    /// An error of this kind.
    pub fn new(kind: ConnectErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ConnectError { kind, source: source.into() }
    }

    /// What it means for the next try.
    pub fn kind(&self) -> ConnectErrorKind {
        self.kind
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            ConnectErrorKind::Credentials => "no credentials",
            ConnectErrorKind::Refused => "the server refuses us",
            ConnectErrorKind::Full => "the server has no room",
            ConnectErrorKind::Unreachable => "the server can't be reached",
            ConnectErrorKind::Other => "no connection",
        };
        write!(f, "{what}: {}", self.source)
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
