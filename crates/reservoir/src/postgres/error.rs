//! Errors of Postgres connections: what happened, at which address, and what to do.
//!
//! Invariant: no error contains a password or a token.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};

use super::server_error::PostgresServerError;
use super::tls::SslMode;
use crate::connect::{ConnectionError, ConnectionErrorKind};
use crate::credentials::TokenError;

/// SQLSTATE `invalid_authorization_specification`: no pg_hba.conf rule admits the connection.
const INVALID_AUTHORIZATION: &str = "28000";

/// Invalid connection string or TLS setting: the key and the allowed values. It shows no value.
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

    /// Returns the key, such as `sslmode`.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// Why a connection to Postgres could not be opened, or was lost.
///
/// It is the source of the [`ConnectionError`]s of [`PostgresConnect`](crate::PostgresConnect).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresError {
    /// The provider returned no password or token.
    #[error("{0}")]
    Token(#[source] TokenError),
    /// The provider took too long.
    #[error("no password or token within {after:?}")]
    TokenTimeout {
        /// The timeout.
        after: Duration,
    },
    /// The host name could not be resolved.
    #[error("the name {host} can't be looked up: {source}: check the host and the name service")]
    Resolve {
        /// The configured host.
        host: String,
        /// Cause.
        source: io::Error,
    },
    /// The TCP or Unix connect failed.
    #[error(
        "{address}: {source}: check that the server runs, and that nothing between here and there blocks it"
    )]
    Dial {
        /// Address of the server.
        address: String,
        /// Cause.
        source: io::Error,
    },
    /// The deadline has passed.
    #[error("{address}: no answer within {after:?} while {step}")]
    Timeout {
        /// Address of the server.
        address: String,
        /// The step that was in progress.
        step: &'static str,
        /// Timeout of the whole dial.
        after: Duration,
    },
    /// The server has no TLS.
    #[error(
        "{address}: the server has no TLS, and sslmode={mode} asks for it: set ssl = on there, or use another sslmode"
    )]
    NoTls {
        /// Address of the server.
        address: String,
        /// The configured mode.
        mode: SslMode,
    },
    /// The TLS handshake failed, or TLS failed later.
    #[error("{address}: TLS: {source}{}", tls_advice(source, *direct))]
    Tls {
        /// Address of the server.
        address: String,
        /// Whether TLS was started without a request (`sslnegotiation=direct`).
        direct: bool,
        /// Cause.
        source: io::Error,
    },
    /// The peer is not a Postgres server.
    #[error("{address}: what answers there isn't Postgres ({found}): check the host and the port")]
    NotPostgres {
        /// Address of the server.
        address: String,
        /// What was wrong with the response.
        found: String,
    },
    /// The connection was lost.
    #[error("{address}: the connection was lost: {}", with_sources(&**source))]
    Lost {
        /// Address of the server.
        address: String,
        /// Cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server sent an error.
    #[error("{address}: {error}{}", error.advice())]
    Server {
        /// Address of the server.
        address: String,
        /// The error, with its SQLSTATE.
        #[source]
        error: PostgresServerError,
    },
    /// The server requires a password, and none is configured.
    #[error(
        "{address}: the server asks user {user} for a password, and there is none: give one in the connection string, or \
         use password_from"
    )]
    NoPassword {
        /// Address of the server.
        address: String,
        /// User of the connection.
        user: String,
    },
    /// Client and server have no authentication method in common.
    #[error("{address}: authentication: {}", with_sources(&**source))]
    Authentication {
        /// Address of the server.
        address: String,
        /// Cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The server doesn't match `target_session_attrs`.
    #[error("{address}: the server isn't {wanted}, which target_session_attrs asks for")]
    WrongSession {
        /// Address of the server.
        address: String,
        /// The required kind of server.
        wanted: &'static str,
    },
}

impl PostgresError {
    /// Converts an error of tokio-postgres.
    pub(super) fn from_client(address: &str, user: &str, source: tokio_postgres::Error) -> Self {
        let address = address.to_owned();
        if let Some(error) = source.as_db_error() {
            return PostgresError::Server { address, error: error.into() };
        }
        if source.is_closed() {
            return PostgresError::Lost { address, source: source.into() };
        }
        if let Some(io) = source.source().and_then(|cause| cause.downcast_ref::<io::Error>()) {
            if let Some(tls) = PostgresError::from_tls(&address, io) {
                return tls;
            }
            return match io.kind() {
                // The decoder received malformed bytes.
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                    PostgresError::NotPostgres { address, found: io.to_string() }
                }
                _ => PostgresError::Lost { address, source: source.into() },
            };
        }
        // tokio-postgres doesn't expose its error kinds; a test fails if these texts change.
        match (source.to_string().as_str(), source.source().map(ToString::to_string).as_deref()) {
            (_, Some("password missing")) => PostgresError::NoPassword { address, user: user.to_owned() },
            ("authentication error", _) => PostgresError::Authentication { address, source: source.into() },
            (text, _) => PostgresError::NotPostgres { address, found: text.to_owned() },
        }
    }

    /// Converts an I/O error of an open stream.
    pub fn from_io(address: &str, error: io::Error) -> Self {
        match PostgresError::from_tls(address, &error) {
            Some(tls) => tls,
            None => PostgresError::Lost { address: address.to_owned(), source: error.into() },
        }
    }

    /// Returns `None` if the error isn't a TLS error.
    fn from_tls(address: &str, error: &io::Error) -> Option<Self> {
        // A rustls error can't be moved out of a borrowed `io::Error`; it is cloned without the
        // kind.
        let source = io::Error::other(rustls_error(error)?.clone());
        Some(PostgresError::Tls { address: address.to_owned(), direct: false, source })
    }

    /// Returns the class of the error, which decides when to dial again.
    pub fn kind(&self) -> ConnectionErrorKind {
        match self {
            PostgresError::Token(_) | PostgresError::TokenTimeout { .. } => ConnectionErrorKind::Credentials,
            PostgresError::Resolve { .. }
            | PostgresError::Dial { .. }
            | PostgresError::Timeout { .. }
            | PostgresError::Lost { .. }
            | PostgresError::WrongSession { .. } => ConnectionErrorKind::Unreachable,
            PostgresError::NoPassword { .. } | PostgresError::Authentication { .. } => {
                ConnectionErrorKind::Refused
            }
            PostgresError::NoTls { .. } | PostgresError::NotPostgres { .. } => ConnectionErrorKind::Other,
            // A connection that is closed during the handshake counts as unreachable.
            PostgresError::Tls { source, .. } => match rustls_error(source) {
                None => ConnectionErrorKind::Unreachable,
                Some(rustls::Error::AlertReceived(alert)) if is_client_certificate_alert(*alert) => {
                    ConnectionErrorKind::Refused
                }
                Some(_) => ConnectionErrorKind::Other,
            },
            PostgresError::Server { error, .. } => error.kind(),
        }
    }

    /// Returns whether the error is part of a Postgres protocol exchange with the server.
    pub(super) fn is_server_reply(&self) -> bool {
        matches!(
            self,
            PostgresError::Server { .. }
                | PostgresError::NoPassword { .. }
                | PostgresError::Authentication { .. }
        )
    }

    /// Returns whether the server rejected the password.
    pub(super) fn is_password_rejected(&self) -> bool {
        match self {
            PostgresError::Server { error, .. } => error.code().starts_with("28"),
            _ => false,
        }
    }

    /// Returns whether the next host is not tried, as in libpq: the server has refused, and isn't
    /// just starting.
    pub(super) fn stops_host_search(&self) -> bool {
        match self {
            PostgresError::Server { error, .. } => error.kind() != ConnectionErrorKind::Unreachable,
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

    /// Returns whether `sslmode=prefer` retries without TLS, as libpq does: TLS failed, or
    /// pg_hba.conf refuses encrypted connections.
    pub(super) fn allows_retry_without_tls(&self) -> bool {
        match self {
            PostgresError::Tls { .. } => true,
            PostgresError::Server { error, .. } => error.code() == INVALID_AUTHORIZATION,
            _ => false,
        }
    }
}

impl From<PostgresError> for ConnectionError {
    fn from(error: PostgresError) -> Self {
        ConnectionError::new(error.kind(), error)
    }
}

fn tls_advice(error: &io::Error, direct: bool) -> &'static str {
    match rustls_error(error) {
        Some(rustls::Error::InvalidCertificate(certificate)) => match certificate {
            // A CA that was recreated under the same name gives `BadSignature`.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                ": the authorities that are trusted didn't sign the server's certificate: check sslrootcert"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ": connect by a name that the certificate is for, or use sslmode=verify-ca"
            }
            _ => ": check the server's certificate and sslrootcert",
        },
        Some(rustls::Error::AlertReceived(alert)) if is_client_certificate_alert(*alert) => {
            ": the server refuses our certificate, or that we have none: check sslcert and sslkey"
        }
        Some(_) => "",
        None if direct => {
            ": sslnegotiation=direct needs PostgreSQL 17 or newer with ssl = on: leave it out for others"
        }
        None => "",
    }
}

fn is_client_certificate_alert(alert: AlertDescription) -> bool {
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
