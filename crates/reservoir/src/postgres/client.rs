//! Postgres connection that a reservoir lends, and the task that drives its socket.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{AsyncMessage, CancelToken, Client, SimpleQueryMessage, Statement};

use super::dial::{ConnectPlan, ServerAddress, redial};
use super::error::PostgresError;
use super::settings::ChannelBinding;
use super::socket::PostgresSocket;
use super::startup::{PostgresStartup, PostgresStartupParams, SessionCheck};
use super::statement_cache::{StatementCache, drops_statements};
use super::stream::{HandshakeDone, PostgresStream};
use crate::connect::{ConnectionError, ConnectionErrorKind, ReservoirConnection};

/// How long a closed connection may stay busy before its query is cancelled.
const CANCEL_AFTER: Duration = Duration::from_millis(100);

/// Interval between cancellations; it doubles up to the maximum, since a query may catch them.
const CANCEL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_CANCEL_INTERVAL: Duration = Duration::from_secs(60);

/// A connection to Postgres. Dereferences to [`tokio_postgres::Client`].
///
/// A task drives the socket and ends with the client. Dropping the client sends Terminate to the
/// server after all pending requests are answered.
///
/// Notices are logged by their SQLSTATE only, because their text may contain row values.
/// Notifications (`LISTEN`) are discarded.
pub struct PostgresClient {
    client: Client,
    task: JoinHandle<()>,
    socket: PostgresSocket,
    cancel: PostgresCancelToken,
    /// Not locked across an await, nor while a statement is dropped.
    statements: Mutex<StatementCache<Statement>>,
}

impl PostgresClient {
    /// Returns a prepared statement, from the cache of this connection if it has one for `sql`.
    ///
    /// The statement stays prepared on the server, across callers, until the connection ends or the
    /// cache drops it. The cache holds up to
    /// [`statement_cache`](super::PostgresConnectBuilder::statement_cache) statements and drops
    /// those that were not used for the longest time. It also drops all of them after a
    /// [`Reset`](crate::Reset) with `DISCARD ALL` or `DEALLOCATE`.
    ///
    /// A caller that runs such a command itself, or alters a table of a cached statement, calls
    /// [`clear_cached_statements`](Self::clear_cached_statements). Before a transaction, get the
    /// statements first: a transaction borrows the client.
    ///
    /// ```no_run
    /// # use forebay_reservoir::{ConnectionGuard, PostgresClient, tokio_postgres};
    /// # type Lent = ConnectionGuard<PostgresClient>;
    /// # async fn run(mut client: Lent) -> Result<(), tokio_postgres::Error> {
    /// let insert = client.prepare_cached("INSERT INTO items (name) VALUES ($1)").await?;
    /// let transaction = client.transaction().await?;
    /// transaction.execute(&insert, &[&"kettle"]).await?;
    /// transaction.commit().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails as `prepare` does. A statement that can't be prepared is not cached.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let cached = self.statements.lock().get(sql);
        if let Some(statement) = cached {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        let dropped = self.statements.lock().insert(sql, statement.clone());
        drop(dropped);
        Ok(statement)
    }

    /// Drops all statements that [`prepare_cached`](Self::prepare_cached) has cached.
    ///
    /// The server closes those that no caller holds.
    pub fn clear_cached_statements(&self) {
        let dropped = self.statements.lock().clear();
        drop(dropped);
    }

    /// Returns a token that cancels a query of this connection.
    ///
    /// Unlike the token of tokio-postgres, it includes the server's address and the TLS settings.
    pub fn cancel_token(&self) -> PostgresCancelToken {
        self.cancel.clone()
    }

    /// Returns the server's address, as in errors and logs.
    pub fn address(&self) -> String {
        self.cancel.0.server.to_string()
    }

    fn error(&self, error: tokio_postgres::Error) -> ConnectionError {
        self.cancel.0.error(error).into()
    }
}

impl ReservoirConnection for PostgresClient {
    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn reset(&mut self, script: &str) -> Result<(), ConnectionError> {
        self.client.batch_execute(script).await.map_err(|error| self.error(error))?;
        if !self.statements.lock().is_empty() && drops_statements(script) {
            self.clear_cached_statements();
        }
        Ok(())
    }

    /// Cancels a running query, repeatedly, until the server has closed its end. Dropping the
    /// future closes the socket.
    async fn close(self) {
        let PostgresClient { client, task, socket, cancel, statements: _ } = self;
        let mut task = AbortOnDrop(task);
        drop(client);
        let closing = async {
            let _ended = (&mut task.0).await;
            // After an error, the task has ended without sending Terminate.
            socket.shutdown_and_wait().await;
        };
        tokio::select! {
            () = closing => {}
            () = cancel.cancel_repeatedly() => {}
        }
    }
}

impl Deref for PostgresClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for PostgresClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl fmt::Debug for PostgresClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresClient")
            .field("address", &self.address())
            .field("is_closed", &self.client.is_closed())
            .finish()
    }
}

/// Cancels the query of a connection.
#[derive(Clone)]
pub struct PostgresCancelToken(Arc<CancelTarget>);

/// The connection's server, TLS state and cancel key.
struct CancelTarget {
    plan: Arc<ConnectPlan>,
    server: ServerAddress,
    encrypted: bool,
    token: CancelToken,
}

impl CancelTarget {
    fn error(&self, error: tokio_postgres::Error) -> PostgresError {
        PostgresError::from_client(&self.server.to_string(), &self.plan.settings.user, error)
    }
}

impl PostgresCancelToken {
    pub(super) fn new(
        plan: Arc<ConnectPlan>,
        server: ServerAddress,
        encrypted: bool,
        client: &Client,
    ) -> Self {
        PostgresCancelToken(Arc::new(CancelTarget { plan, server, encrypted, token: client.cancel_token() }))
    }

    /// Sends a cancel request over a second connection to the same address, with the same
    /// encryption.
    ///
    /// Resolves when the server has accepted the request. A cancelled query fails with SQLSTATE
    /// 57014.
    pub async fn cancel(&self) -> Result<(), ConnectionError> {
        let target = &*self.0;
        let (socket, stream) = redial(&target.plan, &target.server, target.encrypted).await?;
        let passed_on = async {
            let sent = target.token.cancel_query_raw(stream, HandshakeDone).await;
            sent.map_err(|error| target.error(error))?;
            socket.closed_by_peer().await;
            Ok::<_, PostgresError>(())
        };
        let after = target.plan.settings.connect_timeout;
        let step = "cancelling a query";
        let late = |_| PostgresError::Timeout { address: target.server.to_string(), step, after };
        tokio::time::timeout(after, passed_on).await.map_err(late)??;
        Ok(())
    }

    /// Sends cancel requests until the future is dropped.
    async fn cancel_repeatedly(&self) {
        let (mut pause, mut next) = (CANCEL_AFTER, CANCEL_INTERVAL);
        loop {
            tokio::time::sleep(pause).await;
            if let Err(error) = self.cancel().await {
                tracing::debug!(%error, "query cancellation failed");
            }
            (pause, next) = (next, (next * 2).min(MAX_CANCEL_INTERVAL));
        }
    }
}

impl fmt::Debug for PostgresCancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresCancelToken").field("address", &self.0.server.to_string()).finish()
    }
}

/// Aborts the task of a connection that is being closed.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Aborts the task of a connection unless its server passed the session check.
struct AbortUnlessChecked(Option<AbortHandle>);

impl Drop for AbortUnlessChecked {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Starts SQL sessions with tokio-postgres.
pub(super) struct ClientStart;

impl PostgresStartup for ClientStart {
    type Session = PostgresClient;

    async fn start(
        &self,
        stream: PostgresStream,
        params: &PostgresStartupParams<'_>,
    ) -> Result<PostgresClient, PostgresError> {
        let (socket, encrypted) = (stream.socket(), stream.is_encrypted());
        let failed = |error| PostgresError::from_client(&params.address(), params.user(), error);
        let connecting = config(params, encrypted).connect_raw(stream, HandshakeDone).await;
        let (client, connection) = connecting.map_err(failed)?;
        let cancel =
            PostgresCancelToken::new(Arc::clone(params.plan), params.server.clone(), encrypted, &client);
        let task = tokio::spawn(run(connection, Arc::clone(&cancel.0)));
        let statements = Mutex::new(StatementCache::new(params.plan.settings.statement_cache));
        let client = PostgresClient { client, task, socket, cancel, statements };
        let Some(check) = params.session_check() else { return Ok(client) };
        // If this future is dropped before the check has passed, only the dial may read the socket.
        let mut unchecked = AbortUnlessChecked(Some(client.task.abort_handle()));
        let error = match params.bound("asking what the server is", passes_check(&client, check)).await? {
            Ok(true) => {
                unchecked.0 = None;
                return Ok(client);
            }
            Ok(false) => PostgresError::WrongSession { address: params.address(), wanted: check.required },
            Err(error) => failed(error),
        };
        // The server counts this connection until it is closed: wait before the next host is
        // dialed.
        params.bound("closing", client.close()).await?;
        Err(error)
    }
}

fn config(params: &PostgresStartupParams<'_>, encrypted: bool) -> tokio_postgres::Config {
    use tokio_postgres::config::{self, SslMode, SslNegotiation};

    let mut config = tokio_postgres::Config::new();
    config.user(params.user()).channel_binding(match params.channel_binding() {
        ChannelBinding::Disable => config::ChannelBinding::Disable,
        ChannelBinding::Prefer => config::ChannelBinding::Prefer,
        ChannelBinding::Require => config::ChannelBinding::Require,
    });
    // TLS is already negotiated: see `HandshakeDone`.
    match encrypted {
        true => config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct),
        false => config.ssl_mode(SslMode::Disable),
    };
    if let Some(database) = params.database() {
        config.dbname(database);
    }
    if let Some(name) = params.application_name() {
        config.application_name(name);
    }
    if let Some(options) = params.options() {
        config.options(options);
    }
    if let Some(password) = params.password() {
        config.password(password);
    }
    config
}

async fn passes_check(client: &Client, check: SessionCheck) -> Result<bool, tokio_postgres::Error> {
    let messages = client.simple_query(check.sql).await?;
    Ok(messages.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some(check.expected),
        _ => false,
    }))
}

async fn run(
    mut connection: tokio_postgres::Connection<PostgresStream, PostgresStream>,
    target: Arc<CancelTarget>,
) {
    loop {
        // Not the connection's own future: that one logs the text of notices.
        match poll_fn(|cx| connection.poll_message(cx)).await {
            None => return,
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let (severity, sqlstate) = (notice.severity(), notice.code().code());
                tracing::debug!(address = %target.server, severity, sqlstate, "server notice received");
            }
            Some(Ok(_notification)) => {}
            Some(Err(error)) => {
                let error = target.error(error);
                match error.kind() {
                    ConnectionErrorKind::Unreachable => {
                        tracing::debug!(address = %target.server, %error, "connection lost");
                    }
                    _ => tracing::warn!(address = %target.server, %error, "connection failed"),
                }
                return;
            }
        }
    }
}
