//! Why there is no connection: what happened, at which address, and what to do about it.
//!
//! Invariant: nothing here holds a password or a token.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use super::server_error::ServerError;
use super::tls::SslMode;
use crate::connect::{ConnectError, ConnectErrorKind};
use crate::credentials::TokenError;

/// The SQLSTATE of a server whose rules have no place for us.
const NOT_LET_IN: &str = "28000";

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
    #[error("{address}: the connection was lost: {}", with_sources(&**source))]
    Lost {
        /// Where.
        address: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server said no.
    #[error("{address}: {said}{}", said.advice())]
    Server {
        /// Where.
        address: String,
        /// Its words, with an SQLSTATE.
        #[source]
        said: ServerError,
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
    #[error("{address}: authentication: {}", with_sources(&**source))]
    Authentication {
        /// Where.
        address: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
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
        if let Some(said) = source.as_db_error() {
            return PostgresError::Server { address, said: said.into() };
        }
        if source.is_closed() {
            return PostgresError::Lost { address, source: source.into() };
        }
        if let Some(io) = source.source().and_then(|cause| cause.downcast_ref::<io::Error>()) {
            if let Some(tls) = PostgresError::from_tls(&address, io) {
                return tls;
            }
            return match io.kind() {
                // What the decoder says of bytes that make no sense.
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    PostgresError::NotPostgres { address, found: io.to_string() }
                }
                _ => PostgresError::Lost { address, source: source.into() },
            };
        }
        // The crate keeps its kinds to itself; a test of ours fails when these words change.
        match (source.to_string().as_str(), source.source().map(ToString::to_string).as_deref()) {
            (_, Some("password missing")) => PostgresError::NoPassword { address, user: user.to_owned() },
            ("authentication error", _) => PostgresError::Authentication { address, source: source.into() },
            (words, _) => PostgresError::NotPostgres { address, found: words.to_owned() },
        }
    }

    /// What reading or writing at `address` failed with, once the stream was open.
    pub fn from_io(address: &str, error: io::Error) -> Self {
        match PostgresError::from_tls(address, &error) {
            Some(tls) => tls,
            None => PostgresError::Lost { address: address.to_owned(), source: error.into() },
        }
    }

    /// `None`: it isn't TLS that failed.
    fn from_tls(address: &str, error: &io::Error) -> Option<Self> {
        // rustls' errors can't be cloned out of an io::Error without its kind, and the kind is of no use here.
        let source = io::Error::other(rustls_error(error)?.clone());
        Some(PostgresError::Tls { address: address.to_owned(), direct: false, source })
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
            PostgresError::Server { said, .. } => said.kind(),
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
            PostgresError::Server { said, .. } => said.code().starts_with("28"),
            _ => false,
        }
    }

    /// Whether libpq would go on to the next host: not after a server's clear word, except that it is only starting.
    pub(super) fn ends_the_search(&self) -> bool {
        match self {
            PostgresError::Server { said, .. } => said.kind() != ConnectErrorKind::Unreachable,
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
            PostgresError::Server { said, .. } => said.code() == NOT_LET_IN,
            _ => false,
        }
    }
}

impl From<PostgresError> for ConnectError {
    fn from(error: PostgresError) -> Self {
        ConnectError::new(error.kind(), error)
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

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn with_sources(error: &(dyn Error + Send + Sync)) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
