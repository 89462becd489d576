//! The start-up of a session, as a parameter: of SQL by tokio-postgres (`client.rs`), or of another protocol that Postgres
//! speaks, such as replication.
//!
//! Invariant: whatever is started, hosts, addresses, TLS and the deadline are dealt with by `dial.rs`, and by nobody else.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::dial::{Deadline, Place, Plan};
use super::error::PostgresError;
use super::settings::{ChannelBinding, Session};
use super::stream::PostgresStream;
use crate::credentials::Secret;

/// Starts sessions of one protocol.
pub trait PostgresStart: Sync {
    /// A session, started.
    type Session: Send;

    /// Authenticates, and does all else until the server is ready. It may be called more than once for a session, each time
    /// with another stream: for other addresses, and without TLS where `sslmode=prefer` allows that. Its error decides
    /// whether there is another try. It may be dropped at any point, and is when the time for the whole is over.
    fn start(
        &self,
        stream: PostgresStream,
        terms: &PostgresTerms<'_>,
    ) -> impl Future<Output = Result<Self::Session, PostgresError>> + Send;
}

/// What a session is to be started with. `Debug` doesn't show the password.
pub struct PostgresTerms<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) place: &'a Place,
    pub(super) password: Option<&'a Secret>,
    pub(super) deadline: Deadline,
}

impl<'a> PostgresTerms<'a> {
    /// Where the server is, as errors and logs say it.
    pub fn address(&self) -> String {
        self.place.to_string()
    }

    /// Who connects.
    pub fn user(&self) -> &'a str {
        &self.plan.settings.user
    }

    /// To which database; `None`: the server takes the user's name.
    pub fn database(&self) -> Option<&'a str> {
        self.plan.settings.database.as_deref()
    }

    /// What the server shows of us in `pg_stat_activity`.
    pub fn application_name(&self) -> Option<&'a str> {
        self.plan.settings.application_name.as_deref()
    }

    /// What the server is told as if on its command line.
    pub fn options(&self) -> Option<&'a str> {
        self.plan.settings.options.as_deref()
    }

    /// The password or token.
    pub fn password(&self) -> Option<&'a str> {
        self.password.map(Secret::reveal)
    }

    /// Whether authentication is bound to the TLS session.
    pub fn channel_binding(&self) -> ChannelBinding {
        self.plan.settings.channel_binding
    }

    /// How to find out whether the server is what `target_session_attrs` asks for; `None`: any will do. One that isn't
    /// makes a [`PostgresError::WrongSession`].
    pub fn session_check(&self) -> Option<SessionCheck> {
        self.plan.settings.session.check()
    }

    /// Bounds a step of the start-up by the time for the whole, and names the step in the error.
    ///
    /// # Errors
    /// When the time is over.
    pub async fn bound<F: Future>(&self, step: &'static str, future: F) -> Result<F::Output, PostgresError> {
        self.deadline.bound(self.place, step, future).await
    }
}

impl fmt::Debug for PostgresTerms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTerms")
            .field("address", &self.address())
            .field("user", &self.user())
            .field("database", &self.database())
            .finish_non_exhaustive()
    }
}

/// A question to a server, and the answer of one that will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionCheck {
    /// The question: one row of one column.
    pub sql: &'static str,
    /// The answer, as text.
    pub good: &'static str,
    /// What a server with another answer isn't, for the error.
    pub wanted: &'static str,
}

impl Session {
    fn check(self) -> Option<SessionCheck> {
        const READ_ONLY: &str = "SHOW transaction_read_only";
        const RECOVERING: &str = "SELECT pg_catalog.pg_is_in_recovery()";
        let (sql, good, wanted) = match self {
            Session::Any => return None,
            Session::ReadWrite => (READ_ONLY, "off", "read-write"),
            Session::ReadOnly => (READ_ONLY, "on", "read-only"),
            Session::Primary => (RECOVERING, "f", "a primary"),
            Session::Standby => (RECOVERING, "t", "a standby"),
        };
        Some(SessionCheck { sql, good, wanted })
    }
}
