//! Connections by tokio-postgres, with TLS by rustls.
//!
//! Invariant: a connection has one descriptor and one task, and `close` resolves only when the server has closed its end; a dial
//! that is given up holds its slot until then.
//! Kept by: the task and whoever closes share the socket (`socket.rs`, `client.rs`); so does a dial (`starting.rs`).
//! Not here: how many connections there may be, and when they are opened; see `core/`.

mod binding;
mod client;
mod conninfo;
mod dial;
mod error;
mod registry;
mod server_error;
mod settings;
mod socket;
mod start;
mod starting;
mod stream;
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::client::ClientStart;
pub use self::client::{PostgresCancelToken, PostgresClient};
use self::dial::{Opening, Plan};
pub use self::error::{PostgresConfigError, PostgresError};
pub use self::server_error::ServerError;
pub use self::settings::ChannelBinding;
use self::settings::Settings;
pub use self::start::{PostgresStart, PostgresTerms, SessionCheck};
pub use self::stream::PostgresStream;
use self::tls::Encryption;
pub use self::tls::{PostgresTls, SslMode};
use crate::connect::{Connect, ConnectError, DialSlot};
use crate::credentials::{Cached, Secret, TokenProvider};

/// Opens connections to Postgres.
///
/// # The connection string
/// As libpq's, a URL or words: `postgres://user:password@host:5432/dbname?sslmode=verify-full`, or
/// `user=… host=… dbname=…`. Several hosts (`host:port,host:port`) are tried in order, each with all its addresses and its
/// share of the time; a server that answers "no" ends the search, as in libpq. A host that begins with `/` is the folder
/// of a Unix socket. Nothing is taken from the environment or from files in the home folder.
///
/// | key | meaning |
/// |---|---|
/// | `user`, `password`, `dbname` | who and where; the user must be given |
/// | `host`, `hostaddr`, `port` | a list each; `hostaddr` is used in place of looking up `host` |
/// | `sslmode` | see [`SslMode`]; `verify-full` if an authority is given, else `prefer` |
/// | `sslrootcert` | a file of authorities (PEM), or `system` |
/// | `sslcert`, `sslkey` | the client's certificate and key (PEM) |
/// | `sslnegotiation` | `postgres`, or `direct` (PostgreSQL 17, `sslmode=require` or stronger) |
/// | `channel_binding` | `disable`, `prefer` (default) or `require` |
/// | `connect_timeout` | seconds for all of it, from the name to the end of authentication; default 10 |
/// | `keepalives`, `keepalives_idle`, `keepalives_interval`, `keepalives_count` | 1, 60 s, 10 s, 3 by default |
/// | `tcp_user_timeout` | milliseconds; default 90 000; 0 leaves it to the system |
/// | `target_session_attrs` | `any` (default), `read-write`, `read-only`, `primary` or `standby` |
/// | `application_name`, `options` | passed on |
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
    plan: Arc<Plan>,
    provider: Option<Arc<dyn TokenProvider>>,
}

impl PostgresConnect {
    /// As the connection string says. It reads the files that the string names, so make it once, at the start.
    ///
    /// # Errors
    /// When the string or a file can't be used; the error names the key and never shows a value.
    pub fn new(connection_string: &str) -> Result<Self, PostgresConfigError> {
        PostgresConnect::builder(connection_string)?.build()
    }

    /// As the connection string says, and more.
    ///
    /// # Errors
    /// When the string can't be used; the error names the key and never shows a value.
    pub fn builder(connection_string: &str) -> Result<PostgresConnectBuilder, PostgresConfigError> {
        let settings = Settings::parse(connection_string)?;
        Ok(PostgresConnectBuilder { settings, tls: PostgresTls::new(), provider: None })
    }

    /// Who connects.
    pub fn user(&self) -> &str {
        &self.plan.settings.user
    }

    /// To which database.
    pub fn database(&self) -> &str {
        self.plan.settings.database.as_deref().unwrap_or(self.user())
    }

    /// To which servers: `host:port`, joined by commas; a Unix socket by its path.
    pub fn endpoint(&self) -> String {
        let hosts: Vec<_> = self.plan.settings.hosts.iter().map(ToString::to_string).collect();
        hosts.join(",")
    }

    /// Opens a session of another protocol than SQL: asks for the password or token, dials as for a connection (every host
    /// and address in its turn, TLS as `sslmode` says, all within `connect_timeout`), and has `start` do the rest.
    ///
    /// # Errors
    /// As for a connection, or what `start` says.
    pub async fn open_with<S: PostgresStart>(&self, start: &S) -> Result<S::Session, PostgresError> {
        let password = self.password().await?;
        self.open(password.as_ref(), start, None).await
    }

    async fn password(&self) -> Result<Option<Secret>, PostgresError> {
        let Some(provider) = &self.provider else { return Ok(self.plan.settings.password.clone()) };
        let after = self.plan.settings.connect_timeout;
        match tokio::time::timeout(after, provider.token()).await {
            Ok(Ok(token)) => Ok(Some(token.secret)),
            Ok(Err(error)) => Err(PostgresError::Token(error)),
            Err(_) => Err(PostgresError::TokenTimeout { after }),
        }
    }

    async fn open<S: PostgresStart>(
        &self,
        password: Option<&Secret>,
        start: &S,
        slot: Option<DialSlot>,
    ) -> Result<S::Session, PostgresError> {
        let opened = Opening { plan: &self.plan, password, start, slot }.open().await;
        if let (Err(error), Some(provider)) = (&opened, &self.provider)
            && error.is_about_the_password()
        {
            provider.refused();
        }
        opened
    }

    /// All that makes one connection differ from another, secrets aside.
    fn identity(&self) -> String {
        format!("{:?}", self.plan.settings)
    }

    /// How much a connection is protected.
    pub fn ssl_mode(&self) -> SslMode {
        self.plan.mode
    }
}

impl Connect for PostgresConnect {
    type Connection = PostgresClient;
    /// The password or token; `None` where none was given.
    type Credentials = Option<Secret>;

    fn endpoint(&self) -> String {
        PostgresConnect::endpoint(self)
    }

    async fn credentials(&self) -> Result<Option<Secret>, ConnectError> {
        Ok(self.password().await?)
    }

    async fn connect(&self, credentials: Option<Secret>) -> Result<PostgresClient, ConnectError> {
        Ok(self.open(credentials.as_ref(), &ClientStart, None).await?)
    }

    /// Sockets that are given up hold the slot until the server has closed its end of them.
    async fn connect_in_slot(
        &self,
        credentials: Option<Secret>,
        slot: DialSlot,
    ) -> Result<PostgresClient, ConnectError> {
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

/// A [`PostgresConnect`] to be.
pub struct PostgresConnectBuilder {
    settings: Settings,
    tls: PostgresTls,
    provider: Option<Arc<dyn TokenProvider>>,
}

impl PostgresConnectBuilder {
    /// Where each connection's password comes from, in place of the string's.
    #[must_use]
    pub fn password_from(mut self, provider: impl TokenProvider) -> Self {
        // One that says how long its tokens are good is asked again after 80 % of that; others for each dial.
        self.provider = Some(Arc::new(Cached::new(provider)));
        self
    }

    /// Whom to trust and what to show. What is set wins over the string's; the mode is the string's.
    #[must_use]
    pub fn tls(mut self, tls: PostgresTls) -> Self {
        self.tls = tls;
        self
    }

    /// How long a connection may take, from the name to the end of authentication, in place of the string's. A day at
    /// most.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout.min(settings::MAX_CONNECT_TIMEOUT);
        self
    }

    /// What the server shows of us in `pg_stat_activity`, in place of the string's.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.settings.application_name = Some(name.into());
        self
    }

    /// Reads the files, and checks that all of it fits together.
    ///
    /// # Errors
    /// When it doesn't; the error names the key.
    pub fn build(self) -> Result<PostgresConnect, PostgresConfigError> {
        let PostgresConnectBuilder { mut settings, tls, provider } = self;
        settings.tls = tls.or(settings.tls);
        // libpq stays with `prefer` when it is given an authority, and so verifies nothing that matters.
        let unsaid = if settings.tls.authority.is_some() { SslMode::VerifyFull } else { SslMode::Prefer };
        let mode = settings.ssl_mode.unwrap_or(unsaid);
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
        let encryption = Encryption::prepare(mode, settings.tls.clone())?;
        Ok(PostgresConnect { plan: Arc::new(Plan { settings, mode, encryption }), provider })
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
