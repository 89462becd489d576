//! What a client is told, and how a URL says it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::core::backoff::Backoff;
use crate::core::frame::Limits;
use crate::error::ConfigError;
use crate::hooks::Hooks;
use std::sync::Arc;

/// How to connect, and the bounds of the connection. `Config::default()` is `redis://127.0.0.1:6379/0`.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the server is.
    pub address: Address,
    /// TLS, where it is wanted. `rediss://` turns it on with the system's certificates.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::Tls>,
    /// The ACL user. Default none: with a password alone, the server's `default` user.
    pub username: Option<String>,
    /// The password. Never shown by `Debug`, never logged.
    pub password: Option<Password>,
    /// The database to select. Default 0.
    pub db: u32,
    /// Shown by `CLIENT LIST`. Default none.
    pub client_name: Option<String>,
    /// Default [`Protocol::Auto`].
    pub protocol: Protocol,
    /// For one try to connect: name, dial, TLS and handshake together. Default 5 s.
    pub connect_timeout: Duration,
    /// From the submission of a request to its reply, the time in the queue included. Default 5 s. `None`: for ever.
    pub response_timeout: Option<Duration>,
    /// A server that takes requests and sends nothing for so long is taken for dead, and the connection is made anew.
    /// Default 30 s, well beyond the response timeout, so that a pause fails requests and not the connection.
    pub stall_timeout: Option<Duration>,
    /// How long [`close`](crate::Client::close) lets what is in flight finish. Default 5 s.
    pub close_timeout: Duration,
    /// When to connect again after a loss. `None`: never; the client is then closed and keeps the reason.
    pub reconnect: Option<Backoff>,
    /// Whether `READONLY`, `LOADING` and `MASTERDOWN` end the connection, so that the next dial resolves the name again and
    /// finds the server that can serve. Default true. Reads on a replica get no such error. Turn it off for a client that
    /// reads from a replica and whose writes may fail. Without [`reconnect`](Self::reconnect) it has no effect.
    pub leave_unfit_server: bool,
    /// Requests that may be open at once, those that nobody waits for any more included. Default 65,536.
    pub max_requests: usize,
    /// Bytes that may wait to be sent; the request that crosses this is the last one let in. Default 256 MiB, so that a
    /// value of 64 MiB on its way keeps nobody else out.
    pub max_unsent_bytes: usize,
    /// Messages that may wait in one subscription; then it loses messages and says so. Default 4,096.
    pub max_queued_messages: usize,
    /// What the server may send.
    pub limits: Limits,
    /// Keep-alive probes after so long without traffic. Default 15 s.
    pub tcp_keepalive: Option<Duration>,
    /// Sent data that nobody acknowledges, or a peer that takes nothing more, for so long ends the connection (Linux).
    /// Default 10 s.
    pub tcp_user_timeout: Option<Duration>,
    /// Told about every request and every change of the connection.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// A RESP2 connection that only subscribes: every array is a push message.
    pub(crate) subscriber_only: bool,
    /// One caller at a time.
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
            db: 0,
            client_name: None,
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(5),
            response_timeout: Some(Duration::from_secs(5)),
            stall_timeout: Some(Duration::from_secs(30)),
            close_timeout: Duration::from_secs(5),
            reconnect: Some(Backoff::default()),
            leave_unfit_server: true,
            max_requests: 65_536,
            max_unsent_bytes: 256 << 20,
            max_queued_messages: 4_096,
            limits: Limits::default(),
            tcp_keepalive: Some(Duration::from_secs(15)),
            tcp_user_timeout: Some(Duration::from_secs(10)),
            hooks: None,
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

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// Resolved at each try to connect; all its addresses are tried in turn.
        host: String,
        /// 6379 unless the URL says otherwise.
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

/// Which protocol to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// RESP3, or RESP2 where the server doesn't know RESP3.
    #[default]
    Auto,
    /// RESP2 always.
    Resp2,
    /// RESP3, or no connection.
    Resp3,
}

/// A password. It shows itself to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub(crate) String);

impl<S: Into<String>> From<S> for Password {
    fn from(password: S) -> Self {
        Password(password.into())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Something that says how to connect: a URL or a [`Config`].
///
/// - `redis://[user[:password]@]host[:port][/db]`, `rediss://…` for TLS
/// - `unix:///path/to/socket`, with `?db=`, `?user=`, `?password=`
/// - with `?client_name=`, `?protocol=2|3`, `?response_timeout_ms=`, `?connect_timeout_ms=`,
///   `?leave_unfit_server=true|false` on any of them
pub trait IntoConfig {
    /// Reads it.
    fn into_config(self) -> Result<Config, ConfigError>;
}

impl IntoConfig for Config {
    fn into_config(self) -> Result<Config, ConfigError> {
        Ok(self)
    }
}

impl IntoConfig for &str {
    fn into_config(self) -> Result<Config, ConfigError> {
        parse_url(self)
    }
}

impl IntoConfig for String {
    fn into_config(self) -> Result<Config, ConfigError> {
        parse_url(&self)
    }
}

impl IntoConfig for &String {
    fn into_config(self) -> Result<Config, ConfigError> {
        parse_url(self)
    }
}

/// Errors never repeat the URL: it may hold a password.
fn parse_url(url: &str) -> Result<Config, ConfigError> {
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

fn parse_tcp(rest: &str, config: &mut Config) -> Result<(), ConfigError> {
    let (authority, db) = rest.split_once('/').unwrap_or((rest, ""));
    let host_port = match authority.rsplit_once('@') {
        None => authority,
        Some((user_info, host_port)) => {
            let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
            config.username = Some(decode(user)?).filter(|user| !user.is_empty());
            config.password = Some(decode(password)?).filter(|password| !password.is_empty()).map(Password);
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

fn parse_option(key: &str, value: &str, config: &mut Config) -> Result<(), ConfigError> {
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
            // The option isn't named: it may be the end of a password with a ? in it.
            return Err(error(
                "unknown option in the Redis URL; known: db, user, password, client_name, protocol, \
                 response_timeout_ms, connect_timeout_ms, leave_unfit_server (write a ? in a password as %3F)",
            ));
        }
    }
    Ok(())
}

#[cfg(feature = "tls")]
fn enable_tls(config: &mut Config) -> Result<(), ConfigError> {
    config.tls = Some(crate::tls::Tls::system());
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn enable_tls(_: &mut Config) -> Result<(), ConfigError> {
    Err(error("rediss:// needs the crate's feature `tls`"))
}

fn decode(text: &str) -> Result<String, ConfigError> {
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

fn error(text: &str) -> ConfigError {
    ConfigError(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Config {
        parse_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn a_url_says_where_who_and_which_database() {
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
    fn what_a_url_leaves_out_has_defaults() {
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
