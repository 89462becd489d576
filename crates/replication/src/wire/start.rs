//! Startup of a connection in replication mode.
//!
//! Invariant: the startup ends with a [`ReplicationConnection`] or an error with the server's
//! address. Only small messages are read before authentication has succeeded.

use bytes::BytesMut;
use forebay_reservoir::{PostgresError, PostgresStartup, PostgresStartupParams, PostgresStream};
use postgres_protocol::message::backend::{self, Message};
use postgres_protocol::message::frontend;

use super::ReplicationConnection;
use super::auth::{AuthError, AuthStep, Authentication, Identity};
use super::channel::{BackendReply, Channel, ReplicationTransport};
use super::error::WireError;

/// Maximum size of a startup message. libpq allows 30,000 bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Starts connections with `replication=database`.
pub(super) struct ReplicationStartup;

impl PostgresStartup for ReplicationStartup {
    type Session = ReplicationConnection;

    async fn start(
        &self,
        stream: PostgresStream,
        terms: &PostgresStartupParams<'_>,
    ) -> Result<ReplicationConnection, PostgresError> {
        let request = StartupRequest {
            address: terms.address(),
            identity: Identity {
                user: terms.user(),
                password: terms.password(),
                binding: terms.channel_binding(),
                server_end_point: stream.tls_server_end_point(),
            },
            database: terms.database(),
            application_name: terms.application_name(),
            options: terms.options(),
        };
        let mut connection = request.open(stream).await?;
        let Some(check) = terms.session_check() else { return Ok(connection) };
        let error = match terms.bound("inspecting the server", connection.query(check.sql)).await? {
            Ok(rows) if rows.iter().flatten().any(|value| value.as_deref() == Some(check.expected)) => {
                return Ok(connection);
            }
            Ok(_) => PostgresError::WrongSession { address: terms.address(), wanted: check.required },
            Err(error) => request.failed(error),
        };
        // It counts against the connection limits until it is closed.
        connection.close().await;
        Err(error)
    }
}

/// Parameters of the startup message.
pub(super) struct StartupRequest<'a> {
    pub(super) address: String,
    pub(super) identity: Identity<'a>,
    pub(super) database: Option<&'a str>,
    pub(super) application_name: Option<&'a str>,
    pub(super) options: Option<&'a str>,
}

impl StartupRequest<'_> {
    /// Sends the startup message, authenticates, and waits for `ReadyForQuery`.
    pub(super) async fn open<S: ReplicationTransport>(
        &self,
        stream: S,
    ) -> Result<ReplicationConnection<S>, PostgresError> {
        let mut channel = Channel::new(stream, self.address.clone(), MAX_MESSAGE_BYTES);
        let mut out = BytesMut::new();
        let optional = [
            ("database", self.database),
            ("application_name", self.application_name),
            ("options", self.options),
        ];
        let optional = optional.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        let required =
            [("client_encoding", "UTF8"), ("user", self.identity.user), ("replication", "database")];
        frontend::startup_message(required.into_iter().chain(optional), &mut out)
            .map_err(|error| self.failed(WireError::Protocol(error.to_string())))?;
        channel.send(&out).await.map_err(|error| self.failed(error))?;
        self.authenticate(&mut channel).await?;
        let backend_pid = self.wait_until_ready(&mut channel).await?;
        Ok(ReplicationConnection::new(channel, backend_pid))
    }

    async fn authenticate<S: ReplicationTransport>(
        &self,
        channel: &mut Channel<S>,
    ) -> Result<(), PostgresError> {
        let mut authentication = Authentication::Started;
        loop {
            let message = self.message(channel).await?;
            match authentication.step(message, &self.identity).map_err(|error| self.refused(error))? {
                AuthStep::Send(bytes) => channel.send(&bytes).await.map_err(|error| self.failed(error))?,
                AuthStep::Wait => {}
                AuthStep::Done => return Ok(()),
            }
        }
    }

    /// Waits for `ReadyForQuery`, and returns the backend's process id.
    async fn wait_until_ready<S: ReplicationTransport>(
        &self,
        channel: &mut Channel<S>,
    ) -> Result<i32, PostgresError> {
        let mut backend_pid = 0;
        loop {
            match self.message(channel).await? {
                Message::BackendKeyData(body) => backend_pid = body.process_id(),
                Message::ReadyForQuery(_) => return Ok(backend_pid),
                _ => {
                    return Err(self.failed(WireError::protocol("an unexpected message during startup")));
                }
            }
        }
    }

    async fn message<S: ReplicationTransport>(
        &self,
        channel: &mut Channel<S>,
    ) -> Result<Message, PostgresError> {
        match channel.reply().await.map_err(|error| self.failed(error))? {
            BackendReply::Message(message) => Ok(message),
            BackendReply::Error(error) => Err(PostgresError::Server { address: self.address.clone(), error }),
            BackendReply::CopyBoth => Err(self.failed(WireError::protocol("an unexpected CopyBothResponse"))),
        }
    }

    fn refused(&self, error: AuthError) -> PostgresError {
        let (address, user) = (self.address.clone(), self.identity.user.to_owned());
        match error {
            AuthError::NoPassword => PostgresError::NoPassword { address, user },
            AuthError::Failed(_) => PostgresError::Authentication { address, source: error.into() },
            AuthError::OutOfOrder => PostgresError::NotPostgres { address, found: error.to_string() },
        }
    }

    fn failed(&self, error: WireError) -> PostgresError {
        let address = self.address.clone();
        match error {
            WireError::Server(error) => PostgresError::Server { address, error },
            WireError::Lost(error) => PostgresError::from_io(&address, error),
            // A server that can't start a backend sends a plain text that begins with `E`.
            WireError::TooLong { tag: backend::ERROR_RESPONSE_TAG, .. } => {
                let problem = "the server couldn't start a backend; see its log";
                PostgresError::Dial { address, source: std::io::Error::other(problem) }
            }
            WireError::Ended
            | WireError::TooLong { .. }
            | WireError::TooBig { .. }
            | WireError::Protocol(_)
            | WireError::Broken => PostgresError::NotPostgres { address, found: error.to_string() },
        }
    }
}
