//! The start-up of a connection in replication mode.
//!
//! Invariant: whatever the server answers, it leads to a [`Wire`] or an error that says where; nothing is read beyond small
//! messages before the server has let us in.

use bytes::BytesMut;
use forebay_reservoir::{PostgresError, PostgresStartup, PostgresStartupParams, PostgresStream};
use postgres_protocol::message::backend::{self, Message};
use postgres_protocol::message::frontend;

use super::Wire;
use super::auth::{AuthError, Authentication, Identity, Step};
use super::channel::{Channel, Line, Reply};
use super::error::WireError;

/// What a message of the start-up may have. Postgres' own clients allow 30 000 bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Starts connections in replication mode, of a database.
pub(super) struct Replication;

impl PostgresStartup for Replication {
    type Session = Wire;

    async fn start(
        &self,
        stream: PostgresStream,
        terms: &PostgresStartupParams<'_>,
    ) -> Result<Wire, PostgresError> {
        let hello = Hello {
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
        let mut wire = hello.say(stream).await?;
        let Some(check) = terms.session_check() else { return Ok(wire) };
        let error = match terms.bound("asking what the server is", wire.query(check.sql)).await? {
            Ok(rows) if rows.iter().flatten().any(|value| value.as_deref() == Some(check.expected)) => {
                return Ok(wire);
            }
            Ok(_) => PostgresError::WrongSession { address: terms.address(), wanted: check.required },
            Err(error) => hello.failed(error),
        };
        // Until it is gone it counts, and the next server's connection might be one too many.
        wire.close().await;
        Err(error)
    }
}

/// What we say first, and to whom.
pub(super) struct Hello<'a> {
    pub(super) address: String,
    pub(super) identity: Identity<'a>,
    pub(super) database: Option<&'a str>,
    pub(super) application_name: Option<&'a str>,
    pub(super) options: Option<&'a str>,
}

impl Hello<'_> {
    pub(super) async fn say<S: Line>(&self, stream: S) -> Result<Wire<S>, PostgresError> {
        let mut channel = Channel::new(stream, self.address.clone(), MAX_MESSAGE_BYTES);
        let mut out = BytesMut::new();
        let given = [
            ("database", self.database),
            ("application_name", self.application_name),
            ("options", self.options),
        ];
        let given = given.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        let always = [("client_encoding", "UTF8"), ("user", self.identity.user), ("replication", "database")];
        frontend::startup_message(always.into_iter().chain(given), &mut out)
            .map_err(|error| self.failed(WireError::Protocol(error.to_string())))?;
        channel.send(&out).await.map_err(|error| self.failed(error))?;
        self.authenticate(&mut channel).await?;
        let backend_pid = self.wait_until_ready(&mut channel).await?;
        Ok(Wire::ready(channel, backend_pid))
    }

    async fn authenticate<S: Line>(&self, channel: &mut Channel<S>) -> Result<(), PostgresError> {
        let mut authentication = Authentication::Begun;
        loop {
            let message = self.message(channel).await?;
            match authentication.step(message, &self.identity).map_err(|error| self.refused(error))? {
                Step::Send(bytes) => channel.send(&bytes).await.map_err(|error| self.failed(error))?,
                Step::Wait => {}
                Step::Done => return Ok(()),
            }
        }
    }

    /// The server's process.
    async fn wait_until_ready<S: Line>(&self, channel: &mut Channel<S>) -> Result<i32, PostgresError> {
        let mut backend_pid = 0;
        loop {
            match self.message(channel).await? {
                Message::BackendKeyData(body) => backend_pid = body.process_id(),
                Message::ReadyForQuery(_) => return Ok(backend_pid),
                _ => {
                    return Err(self.failed(WireError::protocol("a message that has no place in a start-up")));
                }
            }
        }
    }

    async fn message<S: Line>(&self, channel: &mut Channel<S>) -> Result<Message, PostgresError> {
        match channel.reply().await.map_err(|error| self.failed(error))? {
            Reply::Message(message) => Ok(message),
            Reply::Error(said) => Err(PostgresError::Server { address: self.address.clone(), error: said }),
            Reply::CopyBoth => Err(self.failed(WireError::protocol("a stream that nobody asked for"))),
        }
    }

    fn refused(&self, error: AuthError) -> PostgresError {
        let (address, user) = (self.address.clone(), self.identity.user.to_owned());
        match error {
            AuthError::NoPassword => PostgresError::NoPassword { address, user },
            AuthError::Failed(_) => PostgresError::Authentication { address, source: error.into() },
            AuthError::OutOfTurn => PostgresError::NotPostgres { address, found: error.to_string() },
        }
    }

    fn failed(&self, error: WireError) -> PostgresError {
        let address = self.address.clone();
        match error {
            WireError::Server(said) => PostgresError::Server { address, error: said },
            WireError::Lost(error) => PostgresError::from_io(&address, error),
            // Not of the protocol, but what a server says that can't even start a process for us.
            WireError::Long { tag: backend::ERROR_RESPONSE_TAG, .. } => {
                let problem = "the server failed before it could say why; its log does";
                PostgresError::Dial { address, source: std::io::Error::other(problem) }
            }
            WireError::Ended
            | WireError::Long { .. }
            | WireError::Big { .. }
            | WireError::Protocol(_)
            | WireError::Broken => PostgresError::NotPostgres { address, found: error.to_string() },
        }
    }
}
