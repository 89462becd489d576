//! Client configuration and Redis URLs.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::core::backoff::ReconnectBackoff;
use crate::core::frame::ReplyLimits;
use crate::credentials::CredentialsProvider;
use crate::error::RedisConfigError;
use crate::hooks::Hooks;
use std::sync::Arc;

/// How to connect, and the bounds of the connection. `Config::default()` is
/// `redis://127.0.0.1:6379/0`.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Address of the server.
    pub address: Address,
    /// TLS settings, if TLS is used. `rediss://` enables TLS with the system's certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::RedisTls>,
    /// ACL user. Default none: with only a password, the server's `default` user.
    pub username: Option<String>,
    /// Password. Omitted from `Debug` output and logs.
    pub password: Option<RedisPassword>,
    /// Provider that is called for the credentials at each attempt to connect, instead of
    /// [`password`](Self::password). Default none. See
    /// [`RedisPasswordFile`](crate::RedisPasswordFile).
    pub credentials: Option<Arc<dyn CredentialsProvider>>,
    /// Database to select. Default 0.
    pub db: u32,
    /// Connection name in `CLIENT LIST`. Default none.
    pub client_name: Option<String>,
    /// RESP version. Default [`Protocol::Auto`].
    pub protocol: Protocol,
    /// Deadline of one attempt to connect: credentials, name resolution, dial, TLS and handshake
    /// together.
    /// Default 5 s.
    pub connect_timeout: Duration,
    /// Deadline from the submission of a request to its reply, including the time in the queue.
    /// Default 5 s. `None` disables it.
    pub response_timeout: Option<Duration>,
    /// A connection on which requests wait while the server sends nothing for this long is
    /// replaced. Default 30 s, well above the response timeout, so that a short pause fails
    /// requests and not the connection.
    pub stall_timeout: Option<Duration>,
    /// How long [`close`](crate::RedisClient::close) waits for requests in flight. Default 5 s.
    pub close_timeout: Duration,
    /// Delays between attempts to reconnect. `None` disables reconnection: a lost connection closes
    /// the client, which keeps the reason.
    pub reconnect: Option<ReconnectBackoff>,
    /// Whether `READONLY`, `LOADING` and `MASTERDOWN` end the connection. The next dial then
    /// resolves the name again and can reach a server that runs the commands.
    ///
    /// Default true. Turn it off for a client that reads from a replica and tolerates failed
    /// writes; reads on a replica do not get these errors. It has no effect without
    /// [`reconnect`](Self::reconnect).
    pub leave_unfit_server: bool,
    /// Maximum open requests, including abandoned ones. Default 65,536.
    pub max_requests: usize,
    /// Maximum unsent bytes. The request that crosses it is still accepted. Default 256 MiB, so
    /// that one value of 64 MiB does not block other callers.
    pub max_unsent_bytes: usize,
    /// Maximum queued messages of one subscription. Further messages are dropped and reported as a
    /// gap. Default 4,096.
    pub max_queued_messages: usize,
    /// Limits on replies.
    pub limits: ReplyLimits,
    /// Idle time before TCP keep-alive probes are sent. Default 15 s.
    pub tcp_keepalive: Option<Duration>,
    /// Ends the connection if sent data stays unacknowledged, or the peer's window stays closed,
    /// for this long (Linux only). Default 10 s.
    pub tcp_user_timeout: Option<Duration>,
    /// Callbacks for every request and every state change.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// Whether requests are measured; see [`metrics`](crate::metrics). Measuring reads the clock
    /// twice per request. Default true.
    #[cfg(feature = "metrics")]
    pub measure_requests: bool,
    /// True for a RESP2 connection that only subscribes: every array is a push message.
    pub(crate) subscriber_only: bool,
    /// True for a [`DedicatedConnection`](crate::DedicatedConnection), which has one caller at a
    /// time.
    pub(crate) dedicated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            address: Address::Tcp { host: "127.0.0.1".into(), port: 6379 },
            #[cfg(feature = "tls")]
            tls: None,
            username: None,
            password: None,
            credentials: None,
            db: 0,
            client_name: None,
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Some(Duration::from_secs(5)),
            stall_timeout: Some(Duration::from_secs(30)),
            close_timeout: Duration::from_secs(5),
            reconnect: Some(ReconnectBackoff::default()),
            leave_unfit_server: true,
            max_requests: 65_536,
            max_unsent_bytes: 256 << 20,
            max_queued_messages: 4_096,
            limits: ReplyLimits::default(),
            tcp_keepalive: Some(Duration::from_secs(15)),
            tcp_user_timeout: Some(Duration::from_secs(10)),
            hooks: None,
            #[cfg(feature = "metrics")]
            measure_requests: true,
            subscriber_only: false,
            dedicated: false,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("address", &self.address)
            .field("username", &self.username)
            .field("db", &self.db)
            .field("client_name", &self.client_name)
            .finish_non_exhaustive()
    }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// Resolved at each attempt; all its addresses are tried in turn.
        host: String,
        /// Default 6379.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// RESP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Protocol {
    /// RESP3, or RESP2 if the server does not support RESP3.
    #[default]
    Auto,
    /// Always RESP2.
    Resp2,
    /// RESP3; connecting fails if the server does not support it.
    Resp3,
}

/// A password. `Debug` output omits it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisPassword(pub(crate) String);

impl<S: Into<String>> From<S> for RedisPassword {
    fn from(password: S) -> Self {
        RedisPassword(password.into())
    }
}

impl fmt::Debug for RedisPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisPassword(…)")
    }
}

/// Conversion into a [`Config`], from a URL or from a `Config` itself.
///
/// - `redis://[user[:password]@]host[:port][/db]`, `rediss://…` for TLS
/// - `unix:///path/to/socket`, with `?db=`, `?user=`, `?password=`
/// - any of them with `?client_name=`, `?protocol=2|3`, `?response_timeout_ms=`,
///   `?connect_timeout_ms=`, `?leave_unfit_server=true|false`
pub trait IntoConfig {
    /// Returns the configuration, or an error that says which part of the URL is invalid.
    fn into_config(self) -> Result<Config, RedisConfigError>;
}

impl IntoConfig for Config {
    fn into_config(self) -> Result<Config, RedisConfigError> {
        Ok(self)
    }
}

impl IntoConfig for &str {
    fn into_config(self) -> Result<Config, RedisConfigError> {
        parse_url(self)
    }
}

impl IntoConfig for String {
    fn into_config(self) -> Result<Config, RedisConfigError> {
        parse_url(&self)
    }
}

impl IntoConfig for &String {
    fn into_config(self) -> Result<Config, RedisConfigError> {
        parse_url(self)
    }
}

/// Parses a Redis URL. Errors never repeat the URL, because it may contain a password.
fn parse_url(url: &str) -> Result<Config, RedisConfigError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        error("a Redis URL begins with redis://, rediss:// or unix://; this one has no scheme")
    })?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut config = Config::default();
    match scheme {
        "redis" | "valkey" => parse_tcp(rest, &mut config)?,
        "rediss" | "valkeys" => {
            parse_tcp(rest, &mut config)?;
            enable_tls(&mut config)?;
        }
        "unix" | "redis+unix" => {
            if !rest.starts_with('/') {
                return Err(error("a unix:// URL needs an absolute path, as in unix:///run/redis.sock"));
            }
            config.address = Address::Unix(PathBuf::from(decode(rest)?));
        }
        _ => return Err(error("unknown scheme in the Redis URL; use redis://, rediss:// or unix://")),
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        parse_option(key, &decode(value)?, &mut config)?;
    }
    Ok(config)
}

fn parse_tcp(rest: &str, config: &mut Config) -> Result<(), RedisConfigError> {
    let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
    let host_port = match authority.rsplit_once('@') {
        None => authority,
        Some((user_info, host_port)) => {
            let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
            config.username = Some(decode(user)?).filter(|user| !user.is_empty());
            config.password =
                Some(decode(password)?).filter(|password| !password.is_empty()).map(RedisPassword);
            host_port
        }
    };
    let (host, port) = match host_port.strip_prefix('[') {
        Some(v6) => {
            let (host, port) =
                v6.split_once(']').ok_or_else(|| error("an IPv6 address in the URL lacks its ]"))?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => host_port.split_once(':').unwrap_or((host_port, "")),
    };
    let port = match port {
        "" => 6379,
        port => port.parse().map_err(|_| error("the port in the URL is not a number from 0 to 65535"))?,
    };
    let host = if host.is_empty() { "127.0.0.1".into() } else { decode(host)? };
    config.address = Address::Tcp { host, port };
    if !db.is_empty() {
        config.db = db.parse().map_err(|_| error("the database in the URL's path is not a number"))?;
    }
    Ok(())
}

fn parse_option(key: &str, value: &str, config: &mut Config) -> Result<(), RedisConfigError> {
    let number =
        || value.parse::<u64>().map_err(|_| error(&format!("{key} in the URL is not a whole number")));
    match key {
        "db" => config.db = value.parse().map_err(|_| error("db in the URL is not a number"))?,
        "user" => config.username = Some(value.into()),
        "password" => config.password = Some(value.into()),
        "client_name" => config.client_name = Some(value.into()),
        "protocol" => {
            config.protocol = match value {
                "2" | "resp2" => Protocol::Resp2,
                "3" | "resp3" => Protocol::Resp3,
                _ => return Err(error("protocol in the URL is neither 2 nor 3")),
            }
        }
        "response_timeout_ms" => {
            config.response_timeout = Some(Duration::from_millis(number()?)).filter(|t| !t.is_zero())
        }
        "leave_unfit_server" => {
            config.leave_unfit_server =
                value.parse().map_err(|_| error("leave_unfit_server in the URL is neither true nor false"))?
        }
        "connect_timeout_ms" => config.connect_timeout = Duration::from_millis(number()?),
        _ => {
            // The error does not name the option: it may be the end of a password that contains a
            // `?`.
            return Err(error(
                "unknown option in the Redis URL; known: db, user, password, client_name, protocol, \
                 response_timeout_ms, connect_timeout_ms, leave_unfit_server (write a ? in a password as %3F)",
            ));
        }
    }
    Ok(())
}

#[cfg(feature = "tls")]
fn enable_tls(config: &mut Config) -> Result<(), RedisConfigError> {
    config.tls = Some(crate::tls::RedisTls::system());
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn enable_tls(_: &mut Config) -> Result<(), RedisConfigError> {
    Err(error("rediss:// needs the crate's feature `tls`"))
}

fn decode(text: &str) -> Result<String, RedisConfigError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(bytes.next()), digit(bytes.next())) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => {
                return Err(error(
                    "a % in the URL is not followed by two hexadecimal digits; write % itself as %25",
                ));
            }
        }
    }
    String::from_utf8(out).map_err(|_| error("the URL's %-escapes are not UTF-8"))
}

fn error(text: &str) -> RedisConfigError {
    RedisConfigError(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Config {
        parse_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_has_address_user_and_database() {
        let config = parse("redis://ada:p%40ss%3A@redis.example:7000/3?client_name=app&protocol=2");
        assert_eq!(config.address, Address::Tcp { host: "redis.example".into(), port: 7000 });
        assert_eq!(config.username.as_deref(), Some("ada"));
        assert_eq!(config.password, Some("p@ss:".into()));
        assert_eq!(
            (config.db, config.client_name.as_deref(), config.protocol),
            (3, Some("app"), Protocol::Resp2)
        );
    }

    #[test]
    fn missing_parts_of_a_url_have_defaults() {
        assert_eq!(parse("redis://").address, Address::Tcp { host: "127.0.0.1".into(), port: 6379 });
        assert_eq!(parse("redis://[::1]").address, Address::Tcp { host: "::1".into(), port: 6379 });
        assert_eq!(parse("redis://[::1]:7").address.to_string(), "[::1]:7");
        let config = parse("redis://:secret@host");
        assert_eq!((config.username, config.password), (None, Some("secret".into())));
        assert_eq!(parse("redis://h?response_timeout_ms=0").response_timeout, None);
        assert!(parse("redis://h").leave_unfit_server);
        assert!(!parse("redis://h?leave_unfit_server=false").leave_unfit_server);
    }

    #[test]
    fn a_unix_socket_has_its_options_in_the_query() {
        let config = parse("unix:///run/redis.sock?db=2&user=u&password=p");
        assert_eq!(config.address, Address::Unix("/run/redis.sock".into()));
        assert_eq!(
            (config.db, config.username.as_deref(), config.password),
            (2, Some("u"), Some("p".into()))
        );
    }

    #[test]
    fn a_bad_url_is_explained_without_repeating_its_password() {
        for url in [
            "localhost:6379",
            "http://u:hunter2@h",
            "redis://u:hunter2@h:port",
            "redis://u:hunter2@h/x",
            "redis://u:hunter2@[::1",
            "redis://u:hunter2%zz@h",
            "redis://u:hunter2@h?nonsense=1",
            "redis://u:hunter2@h?leave_unfit_server=2",
            "redis://u:1234?hunter2@host",
            "redis://:?hunter2=1@h",
            "unix://relative",
        ] {
            let error = parse_url(url).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn debug_output_holds_no_password() {
        let shown = format!("{:?}", parse("redis://u:hunter2@h"));
        assert!(!shown.contains("hunter2") && shown.contains("\"u\""), "{shown}");
    }
}
