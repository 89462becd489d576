//! Postgres connector: tokio-postgres with TLS by rustls.
//!
//! Invariant: a connection has one descriptor and one task. `close` resolves only when the server
//! has closed its end; an abandoned dial holds its slot until then.
//! Enforced by: the connection's task and `close` share the socket (`socket.rs`, `client.rs`); so
//! do a dial and its `StartingSocket` (`starting_socket.rs`).
//! Out of scope: how many connections are opened and when; see `core/`.

mod channel_binding;
mod client;
mod conninfo;
mod dial;
mod error;
mod registry;
mod server_error;
mod settings;
mod socket;
mod starting_socket;
mod startup;
mod statement_cache;
mod stream;
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::client::ClientStart;
pub use self::client::{PostgresCancelToken, PostgresClient};
use self::dial::{ConnectPlan, SessionDialer};
pub use self::error::{PostgresConfigError, PostgresError};
pub use self::server_error::PostgresServerError;
pub use self::settings::ChannelBinding;
use self::settings::ConnectSettings;
pub use self::startup::{PostgresStartup, PostgresStartupParams, SessionCheck};
pub use self::stream::PostgresStream;
use self::tls::TlsContext;
pub use self::tls::{PostgresTls, SslMode};
use crate::connect::{Connect, ConnectionError, DialSlot};
use crate::credentials::{AuthSecret, TokenCache, TokenProvider};

/// Opens connections to Postgres.
///
/// # Connection string
/// The syntax is libpq's: a URL, `postgres://user:password@host:5432/dbname?sslmode=verify-full`,
/// or keywords, `user=… host=… dbname=…`. Several hosts (`host:port,host:port`) are tried in order,
/// each with all its addresses and its share of the time. As in libpq, an error that the server
/// sends ends the search. A host that begins with `/` is the directory of a Unix socket. Nothing is
/// read from environment variables or from files in the home directory.
///
/// | key | meaning |
/// |---|---|
/// | `user`, `password`, `dbname` | user, password and database; the user is required |
/// | `host`, `hostaddr`, `port` | comma-separated lists; `hostaddr` replaces the lookup of `host` |
/// | `sslmode` | see [`SslMode`]; default: `verify-full` with `sslrootcert`, else `prefer` |
/// | `sslrootcert` | file with CA certificates (PEM), or `system` |
/// | `sslcert`, `sslkey` | the client's certificate and key (PEM) |
/// | `sslnegotiation` | `postgres`, or `direct` (PostgreSQL 17, `sslmode=require` or stronger) |
/// | `channel_binding` | `disable`, `prefer` (default) or `require` |
/// | `connect_timeout` | seconds for the whole dial, including authentication; default 10 |
/// | `keepalives`, `keepalives_idle` | default 1 and 60 s |
/// | `keepalives_interval`, `keepalives_count` | default 10 s and 3 |
/// | `tcp_user_timeout` | milliseconds; default 90 000; 0 uses the system's default |
/// | `target_session_attrs` | `any` (default), `read-write`, `read-only`, `primary` or `standby` |
/// | `application_name`, `options` | sent to the server |
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use forebay_reservoir::{PostgresConnect, PostgresTls};
///
/// let connect = PostgresConnect::builder("postgres://app@db.internal/shop?sslmode=verify-full")?
///     .tls(PostgresTls::new().ca_file("/etc/ssl/db-ca.pem"))
///     .connect_timeout(Duration::from_secs(3))
///     .build()?;
/// # drop(connect);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresConnect {
    plan: Arc<ConnectPlan>,
    provider: Option<Arc<dyn TokenProvider>>,
}

impl PostgresConnect {
    /// Creates a connector from a connection string. Reads the files that the string names.
    ///
    /// # Errors
    /// Fails if the string or a file is invalid; the error names the key and never shows a value.
    pub fn new(connection_string: &str) -> Result<Self, PostgresConfigError> {
        PostgresConnect::builder(connection_string)?.build()
    }

    /// Creates a builder from a connection string.
    ///
    /// # Errors
    /// Fails if the string is invalid; the error names the key and never shows a value.
    pub fn builder(connection_string: &str) -> Result<PostgresConnectBuilder, PostgresConfigError> {
        let settings = ConnectSettings::parse(connection_string)?;
        Ok(PostgresConnectBuilder { settings, tls: PostgresTls::new(), provider: None })
    }

    /// Returns the user.
    pub fn user(&self) -> &str {
        &self.plan.settings.user
    }

    /// Returns the database.
    pub fn database(&self) -> &str {
        self.plan.settings.database.as_deref().unwrap_or(self.user())
    }

    /// Returns the servers: `host:port`, joined by commas; the path of a Unix socket.
    pub fn endpoint(&self) -> String {
        let hosts: Vec<_> = self.plan.settings.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// Opens a session of another protocol than SQL.
    ///
    /// Requests the password or token, dials as for a connection, and calls `start` on the stream.
    ///
    /// # Errors
    /// Fails as a connection does, or with the error of `start`.
    pub async fn open_with<S: PostgresStartup>(&self, start: &S) -> Result<S::Session, PostgresError> {
        let password = self.password().await?;
        self.open(password.as_ref(), start, None).await
    }

    async fn password(&self) -> Result<Option<AuthSecret>, PostgresError> {
        let Some(provider) = &self.provider else { return Ok(self.plan.settings.password.clone()) };
        let after = self.plan.settings.connect_timeout;
        match tokio::time::timeout(after, provider.token()).await {
            Ok(Ok(token)) => Ok(Some(token.secret)),
            Ok(Err(error)) => Err(PostgresError::Token(error)),
            Err(_) => Err(PostgresError::TokenTimeout { after }),
        }
    }

    async fn open<S: PostgresStartup>(
        &self,
        password: Option<&AuthSecret>,
        start: &S,
        slot: Option<DialSlot>,
    ) -> Result<S::Session, PostgresError> {
        let opened = SessionDialer { plan: &self.plan, password, start, slot }.open().await;
        if let (Err(error), Some(provider)) = (&opened, &self.provider)
            && error.is_password_rejected()
        {
            provider.refused();
        }
        opened
    }

    /// Returns a key of all settings, without secrets.
    fn identity(&self) -> String {
        format!("{:?}", self.plan.settings)
    }

    /// Returns the TLS mode.
    pub fn ssl_mode(&self) -> SslMode {
        self.plan.mode
    }
}

impl Connect for PostgresConnect {
    type Connection = PostgresClient;
    /// The password or token; `None` if none is configured.
    type Credentials = Option<AuthSecret>;

    fn endpoint(&self) -> String {
        PostgresConnect::endpoint(self)
    }

    async fn credentials(&self) -> Result<Option<AuthSecret>, ConnectionError> {
        Ok(self.password().await?)
    }

    async fn connect(&self, credentials: Option<AuthSecret>) -> Result<PostgresClient, ConnectionError> {
        Ok(self.open(credentials.as_ref(), &ClientStart, None).await?)
    }

    /// Abandoned sockets hold the slot until the server has closed them.
    async fn connect_in_slot(
        &self,
        credentials: Option<AuthSecret>,
        slot: DialSlot,
    ) -> Result<PostgresClient, ConnectionError> {
        Ok(self.open(credentials.as_ref(), &ClientStart, Some(slot)).await?)
    }
}

impl fmt::Debug for PostgresConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConnect")
            .field("endpoint", &self.endpoint())
            .field("user", &self.user())
            .field("database", &self.database())
            .field("ssl_mode", &self.ssl_mode())
            .finish_non_exhaustive()
    }
}

/// Builder of a [`PostgresConnect`].
pub struct PostgresConnectBuilder {
    settings: ConnectSettings,
    tls: PostgresTls,
    provider: Option<Arc<dyn TokenProvider>>,
}

impl PostgresConnectBuilder {
    /// Sets the provider of passwords or tokens; it replaces the password of the connection string.
    #[must_use]
    pub fn password_from(mut self, provider: impl TokenProvider) -> Self {
        // Tokens with a known validity are cached for 80 % of it; others are requested for each
        // dial.
        self.provider = Some(Arc::new(TokenCache::new(provider)));
        self
    }

    /// Sets certificates. They take precedence over those of the connection string, which sets the
    /// mode.
    #[must_use]
    pub fn tls(mut self, tls: PostgresTls) -> Self {
        self.tls = tls;
        self
    }

    /// Sets the timeout of the whole dial, including authentication; at most a day.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout.min(settings::MAX_CONNECT_TIMEOUT);
        self
    }

    /// Sets the application name, which `pg_stat_activity` shows.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.settings.application_name = Some(name.into());
        self
    }

    /// Sets how many statements each connection caches for
    /// [`prepare_cached`](PostgresClient::prepare_cached). Default: 100. With 0, none is cached.
    #[must_use]
    pub fn statement_cache(mut self, capacity: usize) -> Self {
        self.settings.statement_cache = capacity;
        self
    }

    /// Reads the files and checks the settings.
    ///
    /// # Errors
    /// Fails if a file or setting is invalid; the error names the key.
    pub fn build(self) -> Result<PostgresConnect, PostgresConfigError> {
        let PostgresConnectBuilder { mut settings, tls, provider } = self;
        settings.tls = tls.or(settings.tls);
        // With a CA and no mode, libpq uses `prefer`, which doesn't stop an active attacker.
        let default_mode =
            if settings.tls.authority.is_some() { SslMode::VerifyFull } else { SslMode::Prefer };
        let mode = settings.ssl_mode.unwrap_or(default_mode);
        if settings.direct_tls && mode < SslMode::Require {
            let problem = "direct needs sslmode=require, verify-ca or verify-full";
            return Err(PostgresConfigError::new("sslnegotiation", problem));
        }
        if settings.channel_binding == ChannelBinding::Require && mode == SslMode::Disable {
            let problem = "require needs TLS, and sslmode is disable";
            return Err(PostgresConfigError::new("channel_binding", problem));
        }
        if settings.connect_timeout.is_zero() {
            return Err(PostgresConfigError::new("connect_timeout", "it must be more than nothing"));
        }
        if settings.application_name.as_ref().is_some_and(|name| name.contains('\0')) {
            return Err(PostgresConfigError::new("application_name", "it can't hold a zero byte"));
        }
        let encryption = TlsContext::prepare(mode, settings.tls.clone())?;
        Ok(PostgresConnect { plan: Arc::new(ConnectPlan { settings, mode, encryption }), provider })
    }
}

impl fmt::Debug for PostgresConnectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConnectBuilder")
            .field("settings", &self.settings)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}
