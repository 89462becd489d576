//! A connection to Postgres as it is lent: how it is started, and the task that moves its bytes.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{AsyncMessage, CancelToken, Client, SimpleQueryMessage};

use super::dial::{Place, Plan, open_again};
use super::error::PostgresError;
use super::settings::ChannelBinding;
use super::socket::Socket;
use super::start::{PostgresStart, PostgresTerms, SessionCheck};
use super::stream::{Done, PostgresStream};
use crate::connect::{ConnectError, ConnectErrorKind, Connection};

/// How long a connection that is closed may take to finish what it does, before the server is asked to stop it.
const GRACE: Duration = Duration::from_millis(100);

/// Pauses between requests to cancel, which double from the first to the last: a query may catch a cancellation and go on.
const CANCEL_AGAIN: Duration = Duration::from_secs(1);
const CANCEL_AGAIN_MOST: Duration = Duration::from_secs(60);

/// A connection to Postgres. It is used as the [`tokio_postgres::Client`] that it derefs to.
///
/// A task of its own moves the bytes; it ends with the client. Dropping the client says goodbye to the server once all
/// that was asked is answered. Notices are logged by their SQLSTATE alone, since their words may hold a row's values.
/// Notifications (`LISTEN`) are dropped: a connection that is lent for a while is no place to wait for them.
pub struct PostgresClient {
    client: Client,
    task: JoinHandle<()>,
    socket: Socket,
    cancel: PostgresCancelToken,
}

impl PostgresClient {
    /// What can stop a query of this connection from elsewhere. In the place of tokio-postgres' own token, it knows where
    /// the server is and how to encrypt.
    pub fn cancel_token(&self) -> PostgresCancelToken {
        self.cancel.clone()
    }

    /// Where the server is, as errors and logs say it.
    pub fn address(&self) -> String {
        self.cancel.0.place.to_string()
    }

    fn error(&self, error: tokio_postgres::Error) -> ConnectError {
        self.cancel.0.error(error).into()
    }
}

impl Connection for PostgresClient {
    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn reset(&mut self, script: &str) -> Result<(), ConnectError> {
        self.client.batch_execute(script).await.map_err(|error| self.error(error))
    }

    /// A query that is still running is cancelled, again and again until the server has closed its end. Dropping the future
    /// closes the socket at once.
    async fn close(self) {
        let PostgresClient { client, task, socket, cancel } = self;
        let mut task = Ending(task);
        drop(client);
        let closing = async {
            let _ended = (&mut task.0).await;
            // The task may have ended by an error, without a goodbye.
            socket.hang_up().await;
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

/// Cancels what a connection is doing.
#[derive(Clone)]
pub struct PostgresCancelToken(Arc<Origin>);

/// Where a connection came from.
struct Origin {
    plan: Arc<Plan>,
    place: Place,
    encrypted: bool,
    token: CancelToken,
}

impl Origin {
    fn error(&self, error: tokio_postgres::Error) -> PostgresError {
        PostgresError::from_client(&self.place.to_string(), &self.plan.settings.user, error)
    }
}

impl PostgresCancelToken {
    pub(super) fn new(plan: Arc<Plan>, place: Place, encrypted: bool, client: &Client) -> Self {
        PostgresCancelToken(Arc::new(Origin { plan, place, encrypted, token: client.cancel_token() }))
    }

    /// Asks the server to stop what the connection is doing, if anything, over a second connection to the same address,
    /// encrypted alike. Resolves when the server has passed it on; whether anything was stopped only the query tells,
    /// by the error 57014.
    pub async fn cancel(&self) -> Result<(), ConnectError> {
        let origin = &*self.0;
        let (socket, stream) = open_again(&origin.plan, &origin.place, origin.encrypted).await?;
        let passed_on = async {
            let sent = origin.token.cancel_query_raw(stream, Done).await;
            sent.map_err(|error| origin.error(error))?;
            socket.closed_by_peer().await;
            Ok::<_, PostgresError>(())
        };
        let after = origin.plan.settings.connect_timeout;
        let step = "cancelling a query";
        let late = |_| PostgresError::Timeout { address: origin.place.to_string(), step, after };
        tokio::time::timeout(after, passed_on).await.map_err(late)??;
        Ok(())
    }

    /// Never resolves.
    async fn cancel_repeatedly(&self) {
        let (mut pause, mut next) = (GRACE, CANCEL_AGAIN);
        loop {
            tokio::time::sleep(pause).await;
            if let Err(error) = self.cancel().await {
                tracing::debug!(%error, "a connection that is closed is busy, and its query can't be cancelled");
            }
            (pause, next) = (next, (next * 2).min(CANCEL_AGAIN_MOST));
        }
    }
}

impl fmt::Debug for PostgresCancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresCancelToken").field("address", &self.0.place.to_string()).finish()
    }
}

/// The task of a connection that is being closed. Nothing may outlive that.
struct Ending(JoinHandle<()>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ends the task of a connection whose server hasn't been checked, as it is dropped.
struct Unchecked(Option<AbortHandle>);

impl Drop for Unchecked {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Starts sessions of SQL.
pub(super) struct ClientStart;

impl PostgresStart for ClientStart {
    type Session = PostgresClient;

    async fn start(
        &self,
        stream: PostgresStream,
        terms: &PostgresTerms<'_>,
    ) -> Result<PostgresClient, PostgresError> {
        let (socket, encrypted) = (stream.socket(), stream.is_encrypted());
        let failed = |error| PostgresError::from_client(&terms.address(), terms.user(), error);
        let connecting = config(terms, encrypted).connect_raw(stream, Done).await;
        let (client, connection) = connecting.map_err(failed)?;
        let cancel =
            PostgresCancelToken::new(Arc::clone(terms.plan), terms.place.clone(), encrypted, &client);
        let task = tokio::spawn(run(connection, Arc::clone(&cancel.0)));
        let client = PostgresClient { client, task, socket, cancel };
        let Some(check) = terms.session_check() else { return Ok(client) };
        // If this is dropped before it is good, nothing but the dial may read the socket.
        let mut unchecked = Unchecked(Some(client.task.abort_handle()));
        let error = match terms.bound("asking what the server is", is_good(&client, check)).await? {
            Ok(true) => {
                unchecked.0 = None;
                return Ok(client);
            }
            Ok(false) => PostgresError::WrongSession { address: terms.address(), wanted: check.wanted },
            Err(error) => failed(error),
        };
        // Until it is gone it counts, and the next server's connection might be one too many.
        terms.bound("closing", client.close()).await?;
        Err(error)
    }
}

fn config(terms: &PostgresTerms<'_>, encrypted: bool) -> tokio_postgres::Config {
    use tokio_postgres::config::{self, SslMode, SslNegotiation};

    let mut config = tokio_postgres::Config::new();
    config.user(terms.user()).channel_binding(match terms.channel_binding() {
        ChannelBinding::Disable => config::ChannelBinding::Disable,
        ChannelBinding::Prefer => config::ChannelBinding::Prefer,
        ChannelBinding::Require => config::ChannelBinding::Require,
    });
    // The stream is what it should be: see `Done`.
    match encrypted {
        true => config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct),
        false => config.ssl_mode(SslMode::Disable),
    };
    if let Some(database) = terms.database() {
        config.dbname(database);
    }
    if let Some(name) = terms.application_name() {
        config.application_name(name);
    }
    if let Some(options) = terms.options() {
        config.options(options);
    }
    if let Some(password) = terms.password() {
        config.password(password);
    }
    config
}

async fn is_good(client: &Client, check: SessionCheck) -> Result<bool, tokio_postgres::Error> {
    let answers = client.simple_query(check.sql).await?;
    Ok(answers.iter().any(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0) == Some(check.good),
        _ => false,
    }))
}

async fn run(
    mut connection: tokio_postgres::Connection<PostgresStream, PostgresStream>,
    origin: Arc<Origin>,
) {
    loop {
        // Not the connection's own future: that one logs the words of notices.
        match poll_fn(|cx| connection.poll_message(cx)).await {
            None => return,
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let (severity, sqlstate) = (notice.severity(), notice.code().code());
                tracing::debug!(address = %origin.place, severity, sqlstate, "the server sent a notice");
            }
            Some(Ok(_notification)) => {}
            Some(Err(error)) => {
                let error = origin.error(error);
                match error.kind() {
                    ConnectErrorKind::Unreachable => {
                        tracing::debug!(address = %origin.place, %error, "a connection was lost");
                    }
                    _ => tracing::warn!(address = %origin.place, %error, "a connection broke"),
                }
                return;
            }
        }
    }
}
