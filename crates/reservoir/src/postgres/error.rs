//! Why there is no connection: what happened, at which address, and what to do about it.
//!
//! Invariant: nothing here holds a password or a token.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use tokio_postgres::error::SqlState;

use super::tls::SslMode;
use crate::connect::{ConnectError, ConnectErrorKind};
use crate::credentials::TokenError;

/// Why a connection string or a TLS setting can't be used: the key, and what is allowed. It shows no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct PostgresConfigError {
    key: String,
    problem: String,
}

impl PostgresConfigError {
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        PostgresConfigError { key: key.into(), problem: problem.into() }
    }

    /// The key that it is about, such as `sslmode`.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Why Postgres gave no connection, or lost one. The source of a [`ConnectError`] by
/// [`PostgresConnect`](crate::PostgresConnect).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The provider has no password or token.
    #[error("{0}")]
    Token(#[source] TokenError),
    /// The provider took too long.
    #[error("no password or token within {after:?}")]
    TokenTimeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// The host has no address.
    #[error("the name {host} can't be looked up: {source}: check the host and the name service")]
    Resolve {
        /// The host as it was given.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody listens, or nothing gets there.
    #[error(
        "{address}: {source}: check that the server runs, and that nothing between here and there blocks it"
    )]
    Dial {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The time was over.
    #[error("{address}: no answer within {after:?} while {step}")]
    Timeout {
        /// Where.
        address: String,
        /// What was being done.
        step: &'static str,
        /// The limit for the whole connection.
        after: Duration,
    },
    /// The server answered that it has no TLS.
    #[error(
        "{address}: the server has no TLS, and sslmode={mode} asks for it: set ssl = on there, or use another sslmode"
    )]
    NoTls {
        /// Where.
        address: String,
        /// What was asked for.
        mode: SslMode,
    },
    /// The TLS handshake failed, or TLS broke later.
    #[error("{address}: TLS: {source}{}", tls_advice(source, *direct))]
    Tls {
        /// Where.
        address: String,
        /// Whether it was begun without asking the server first (`sslnegotiation=direct`).
        direct: bool,
        /// Why.
        source: io::Error,
    },
    /// Something else than Postgres listens there.
    #[error("{address}: what answers there isn't Postgres ({found}): check the host and the port")]
    NotPostgres {
        /// Where.
        address: String,
        /// What was wrong with the answer.
        found: String,
    },
    /// The connection broke.
    #[error("{address}: the connection was lost: {}", with_sources(source))]
    Lost {
        /// Where.
        address: String,
        /// Why.
        source: tokio_postgres::Error,
    },
    /// The server said no.
    #[error("{address}: {}{}", server_words(source), server_advice(source))]
    Server {
        /// Where.
        address: String,
        /// Its words, with an SQLSTATE.
        source: tokio_postgres::Error,
    },
    /// The server asks for a password, and there is none.
    #[error(
        "{address}: the server asks user {user} for a password, and there is none: give one in the connection string, or \
         use password_from"
    )]
    NoPassword {
        /// Where.
        address: String,
        /// Who we said we are.
        user: String,
    },
    /// Client and server don't agree how to authenticate.
    #[error("{address}: authentication: {}", with_sources(source))]
    Authentication {
        /// Where.
        address: String,
        /// Why.
        source: tokio_postgres::Error,
    },
    /// The server works, but `target_session_attrs` asks for another one.
    #[error("{address}: the server isn't {wanted}, which target_session_attrs asks for")]
    WrongSession {
        /// Where.
        address: String,
        /// What was asked for.
        wanted: &'static str,
    },
}

impl PostgresError {
    /// What tokio-postgres said about `address`.
    pub(super) fn from_client(address: &str, user: &str, source: tokio_postgres::Error) -> Self {
        let address = address.to_owned();
        if source.as_db_error().is_some() {
            return PostgresError::Server { address, source };
        }
        if source.is_closed() {
            return PostgresError::Lost { address, source };
        }
        if let Some(io) = source.source().and_then(|cause| cause.downcast_ref::<io::Error>()) {
            if is_tls(io) {
                // rustls' errors can't be cloned out of an io::Error without its kind, and the kind is of no use here.
                let source = io::Error::other(rustls_error(io).expect("is_tls found it").clone());
                return PostgresError::Tls { address, direct: false, source };
            }
            return match io.kind() {
                // What the decoder says of bytes that make no sense.
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    PostgresError::NotPostgres { address, found: io.to_string() }
                }
                _ => PostgresError::Lost { address, source },
            };
        }
        // The crate keeps its kinds to itself; a test of ours fails when these words change.
        match (source.to_string().as_str(), source.source().map(ToString::to_string).as_deref()) {
            (_, Some("password missing")) => PostgresError::NoPassword { address, user: user.to_owned() },
            ("authentication error", _) => PostgresError::Authentication { address, source },
            (words, _) => PostgresError::NotPostgres { address, found: words.to_owned() },
        }
    }

    /// What it means for the next try.
    pub fn kind(&self) -> ConnectErrorKind {
        match self {
            PostgresError::Token(_) | PostgresError::TokenTimeout { .. } => ConnectErrorKind::Credentials,
            PostgresError::Resolve { .. }
            | PostgresError::Dial { .. }
            | PostgresError::Timeout { .. }
            | PostgresError::Lost { .. }
            | PostgresError::WrongSession { .. } => ConnectErrorKind::Unreachable,
            PostgresError::NoPassword { .. } | PostgresError::Authentication { .. } => {
                ConnectErrorKind::Refused
            }
            PostgresError::NoTls { .. } | PostgresError::NotPostgres { .. } => ConnectErrorKind::Other,
            // Another end of the connection during the handshake is as good as none.
            PostgresError::Tls { source, .. } => match rustls_error(source) {
                None => ConnectErrorKind::Unreachable,
                Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => ConnectErrorKind::Refused,
                Some(_) => ConnectErrorKind::Other,
            },
            PostgresError::Server { source, .. } => source.code().map_or(ConnectErrorKind::Other, kind_of),
        }
    }

    /// Whether it came out of a conversation with a Postgres that is there.
    pub(super) fn is_a_word_of_postgres(&self) -> bool {
        matches!(
            self,
            PostgresError::Server { .. }
                | PostgresError::NoPassword { .. }
                | PostgresError::Authentication { .. }
        )
    }

    /// Whether another password might have been let in.
    pub(super) fn is_about_the_password(&self) -> bool {
        match self {
            PostgresError::Server { source, .. } => {
                source.code().is_some_and(|code| code.code().starts_with("28"))
            }
            _ => false,
        }
    }

    /// Whether libpq would go on to the next host: not after a server's clear word, except that it is only starting.
    pub(super) fn ends_the_search(&self) -> bool {
        match self {
            PostgresError::Server { source, .. } => {
                source.code().map_or(ConnectErrorKind::Other, kind_of) != ConnectErrorKind::Unreachable
            }
            PostgresError::NoPassword { .. } | PostgresError::Authentication { .. } => true,
            PostgresError::Token(_)
            | PostgresError::TokenTimeout { .. }
            | PostgresError::Resolve { .. }
            | PostgresError::Dial { .. }
            | PostgresError::Timeout { .. }
            | PostgresError::NoTls { .. }
            | PostgresError::Tls { .. }
            | PostgresError::NotPostgres { .. }
            | PostgresError::Lost { .. }
            | PostgresError::WrongSession { .. } => false,
        }
    }

    /// Whether `sslmode=prefer` tries again without TLS, as libpq does: when TLS itself failed, and when the server's
    /// rules don't let us in *with* it.
    pub(super) fn is_worth_a_try_without_tls(&self) -> bool {
        match self {
            PostgresError::Tls { .. } => true,
            PostgresError::Server { source, .. } => {
                source.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
            }
            _ => false,
        }
    }
}

impl From<PostgresError> for ConnectError {
    fn from(error: PostgresError) -> Self {
        ConnectError::new(error.kind(), error)
    }
}

fn kind_of(code: &SqlState) -> ConnectErrorKind {
    match code.code() {
        "53300" | "53400" => ConnectErrorKind::Full,
        // Shutting down, crashed, starting.
        "57P01" | "57P02" | "57P03" => ConnectErrorKind::Unreachable,
        "3D000" | "42501" => ConnectErrorKind::Refused,
        code if code.starts_with("28") => ConnectErrorKind::Refused,
        _ => ConnectErrorKind::Other,
    }
}

fn server_words(error: &tokio_postgres::Error) -> String {
    let Some(said) = error.as_db_error() else { return with_sources(error) };
    let detail = said.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("{}{detail} [{}]", said.message(), said.code().code())
}

fn server_advice(error: &tokio_postgres::Error) -> &'static str {
    match error.code().map(SqlState::code).unwrap_or_default() {
        "28P01" => ": check the user, and its password or token",
        "28000" => ": check that the role exists and may log in, and what pg_hba.conf says about it",
        code if code.starts_with("28") => ": check the user and how the server authenticates it",
        "3D000" => ": check the name of the database, or create it",
        "42501" => ": grant the role what it lacks, such as CONNECT on the database",
        "53300" => {
            ": lower the budget of connections, or raise the limit of the server, the database or the role"
        }
        "53400" => ": a limit of the server's configuration is reached: lower the budget, or raise it there",
        "57P03" => ": it is starting, stopping or recovering, and will be back",
        _ => "",
    }
}

fn tls_advice(error: &io::Error, direct: bool) -> &'static str {
    match rustls_error(error) {
        Some(rustls::Error::InvalidCertificate(certificate)) => match certificate {
            // The second is what an authority that was made anew under the same name gives.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                ": the authorities that are trusted didn't sign the server's certificate: check sslrootcert"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ": connect by a name that the certificate is for, or use sslmode=verify-ca"
            }
            _ => ": check the server's certificate and sslrootcert",
        },
        Some(rustls::Error::AlertReceived(alert)) if is_about_us(*alert) => {
            ": the server refuses our certificate, or that we have none: check sslcert and sslkey"
        }
        Some(_) => "",
        None if direct => {
            ": sslnegotiation=direct needs PostgreSQL 17 or newer with ssl = on: leave it out for others"
        }
        None => "",
    }
}

fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
    )
}

fn is_tls(error: &io::Error) -> bool {
    rustls_error(error).is_some()
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn with_sources(error: &tokio_postgres::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
