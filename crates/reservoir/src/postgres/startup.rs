//! Start-up of a session: SQL with tokio-postgres (`client.rs`), or another protocol such as
//! replication.
//!
//! Invariant: hosts, addresses, TLS and the deadline are handled only in `dial.rs`.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::dial::{ConnectPlan, DialDeadline, ServerAddress};
use super::error::PostgresError;
use super::settings::{ChannelBinding, TargetSession};
use super::stream::PostgresStream;
use crate::credentials::AuthSecret;

/// Starts sessions of one protocol.
pub trait PostgresStartup: Sync {
    /// A started session.
    type Session: Send;

    /// Authenticates and waits until the server is ready.
    ///
    /// It may be called several times per session, each time with a new stream: for other
    /// addresses, and without TLS if `sslmode=prefer` allows it. Its error decides whether there is
    /// another attempt. It is dropped when the deadline passes.
    fn start(
        &self,
        stream: PostgresStream,
        params: &PostgresStartupParams<'_>,
    ) -> impl Future<Output = Result<Self::Session, PostgresError>> + Send;
}

/// Parameters of a start-up. `Debug` doesn't show the password.
pub struct PostgresStartupParams<'a> {
    pub(super) plan: &'a Arc<ConnectPlan>,
    pub(super) server: &'a ServerAddress,
    pub(super) password: Option<&'a AuthSecret>,
    pub(super) deadline: DialDeadline,
}

impl<'a> PostgresStartupParams<'a> {
    /// Returns the server's address, as in errors and logs.
    pub fn address(&self) -> String {
        self.server.to_string()
    }

    /// Returns the user.
    pub fn user(&self) -> &'a str {
        &self.plan.settings.user
    }

    /// Returns the database; `None`: the server uses the user name.
    pub fn database(&self) -> Option<&'a str> {
        self.plan.settings.database.as_deref()
    }

    /// Returns the application name, which `pg_stat_activity` shows.
    pub fn application_name(&self) -> Option<&'a str> {
        self.plan.settings.application_name.as_deref()
    }

    /// Returns the command-line options for the server.
    pub fn options(&self) -> Option<&'a str> {
        self.plan.settings.options.as_deref()
    }

    /// Returns the password or token.
    pub fn password(&self) -> Option<&'a str> {
        self.password.map(AuthSecret::reveal)
    }

    /// Returns whether authentication is bound to the TLS session.
    pub fn channel_binding(&self) -> ChannelBinding {
        self.plan.settings.channel_binding
    }

    /// Returns the check for `target_session_attrs`; `None` if any server will do.
    ///
    /// A server that fails the check is a [`PostgresError::WrongSession`].
    pub fn session_check(&self) -> Option<SessionCheck> {
        self.plan.settings.session.check()
    }

    /// Runs a step until the deadline of the dial; the error names the step.
    ///
    /// # Errors
    /// Fails if the deadline has passed.
    pub async fn bound<F: Future>(&self, step: &'static str, future: F) -> Result<F::Output, PostgresError> {
        self.deadline.bound(self.server, step, future).await
    }
}

impl fmt::Debug for PostgresStartupParams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStartupParams")
            .field("address", &self.address())
            .field("user", &self.user())
            .field("database", &self.database())
            .finish_non_exhaustive()
    }
}

/// A query that checks `target_session_attrs`, and its expected result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionCheck {
    /// The query; it returns one row of one column.
    pub sql: &'static str,
    /// The expected value, as text.
    pub expected: &'static str,
    /// The required kind of server, for the error.
    pub required: &'static str,
}

impl TargetSession {
    fn check(self) -> Option<SessionCheck> {
        const READ_ONLY: &str = "SHOW transaction_read_only";
        const RECOVERING: &str = "SELECT pg_catalog.pg_is_in_recovery()";
        let (sql, expected, required) = match self {
            TargetSession::Any => return None,
            TargetSession::ReadWrite => (READ_ONLY, "off", "read-write"),
            TargetSession::ReadOnly => (READ_ONLY, "on", "read-only"),
            TargetSession::Primary => (RECOVERING, "f", "a primary"),
            TargetSession::Standby => (RECOVERING, "t", "a standby"),
        };
        Some(SessionCheck { sql, expected, required })
    }
}
