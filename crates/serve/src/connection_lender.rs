//! Connection lender: gives the manager's consumer connections to the database.
//!
//! The manager has the connections, and is started with its consumer. So the consumer can't hold
//! the manager: it requests each connection through a channel, and a task that holds the manager
//! replies. The task ends with the manager.
//! The channel holds one request: the consumer makes one call at a time. A request whose consumer
//! has stopped waiting is dropped.

use forebay_replication::reservoir::{ConnectionGuard, PostgresClient};
use forebay_replication::{Manager, ManagerStep, PoolError};
use tokio::sync::{mpsc, oneshot};

type LoanReply = oneshot::Sender<Result<ConnectionGuard<PostgresClient>, PoolError>>;

/// Requests connections from a [`ConnectionLender`].
#[derive(Debug)]
pub(crate) struct ConnectionBorrower {
    requests: mpsc::Sender<LoanReply>,
}

/// Replies to the requests of a [`ConnectionBorrower`].
#[derive(Debug)]
pub(crate) struct ConnectionLender {
    requests: mpsc::Receiver<LoanReply>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BorrowError {
    /// The manager has ended.
    #[error("the server ends")]
    Ended,
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl ConnectionLender {
    /// Creates both ends of the channel.
    pub(crate) fn channel() -> (ConnectionBorrower, ConnectionLender) {
        let (sender, receiver) = mpsc::channel(1);
        (ConnectionBorrower { requests: sender }, ConnectionLender { requests: receiver })
    }

    /// Lends connections until the manager has ended.
    pub(crate) async fn run(mut self, manager: Manager) {
        let mut status = manager.watch();
        tokio::select! {
            _ended = status.wait_for(|status| status.step == ManagerStep::Stopped) => {}
            () = self.lend(&manager) => {}
        }
    }

    /// Lends connections until the borrower is dropped.
    async fn lend(&mut self, manager: &Manager) {
        while let Some(mut reply) = self.requests.recv().await {
            let connection = tokio::select! {
                connection = any_connection(manager) => Some(connection),
                () = reply.closed() => None,
            };
            // If the borrower has stopped waiting, the connection returns to its pool.
            let _unclaimed = connection.map(|connection| reply.send(connection));
        }
    }
}

impl ConnectionBorrower {
    /// Waits for a connection.
    ///
    /// # Errors
    /// Fails if the pools have no connection, or the manager has ended.
    pub(crate) async fn borrow(&self) -> Result<ConnectionGuard<PostgresClient>, BorrowError> {
        let (reply, connection) = oneshot::channel();
        self.requests.send(reply).await.map_err(|_| BorrowError::Ended)?;
        Ok(connection.await.map_err(|_| BorrowError::Ended)??)
    }
}

/// Returns an admin connection, or else a snapshot connection.
///
/// For callers that the stream waits for: tasks that change the publication hold admin connections,
/// and may themselves wait for the stream.
pub(crate) async fn any_connection(manager: &Manager) -> Result<ConnectionGuard<PostgresClient>, PoolError> {
    match manager.admin().await {
        Ok(client) => Ok(client),
        Err(_) => manager.snapshot().await,
    }
}
