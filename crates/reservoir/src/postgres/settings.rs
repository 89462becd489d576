//! Settings of a connection string.
//!
//! Invariant: parsed settings are complete and valid.
//! Out of scope: defaults from `PG*` variables, `~/.pgpass`, `~/.postgresql` and service files. The
//! settings of a service should be in one place.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::conninfo::{self, ConninfoPair};
use super::error::PostgresConfigError;
use super::socket::{Keepalive, TcpOptions};
use super::tls::{PemSource, PostgresTls, SslMode};
use crate::credentials::AuthSecret;

const KEYS: &str = "user, password, dbname, host, hostaddr, port, sslmode, sslrootcert, sslcert, sslkey, \
    sslnegotiation, channel_binding, connect_timeout, keepalives, keepalives_idle, keepalives_interval, \
    keepalives_count, tcp_user_timeout, target_session_attrs, application_name and options";
const DEFAULT_PORT: u16 = 5432;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_STATEMENT_CACHE: usize = 100;
const A_DAY_SECS: u64 = 24 * 60 * 60;
/// Upper limit of the timeout; short enough to be added to any `Instant`.
pub(super) const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(A_DAY_SECS);
/// Detects a vanished server within 90 s, idle or not; the kernel's default is over two hours.
const DEFAULT_TCP: TcpOptions = TcpOptions {
    keepalive: Some(Keepalive { idle: Duration::from_secs(60), interval: Duration::from_secs(10), count: 3 }),
    user_timeout: Some(Duration::from_secs(90)),
};

/// A parsed and validated connection string.
#[derive(Debug, Clone)]
pub(super) struct ConnectSettings {
    /// At least one host.
    pub(super) hosts: Vec<Host>,
    pub(super) user: String,
    /// `None`: the server uses the user name.
    pub(super) database: Option<String>,
    pub(super) password: Option<AuthSecret>,
    pub(super) application_name: Option<String>,
    pub(super) options: Option<String>,
    /// `None` if not given.
    pub(super) ssl_mode: Option<SslMode>,
    pub(super) tls: PostgresTls,
    /// `sslnegotiation=direct`.
    pub(super) direct_tls: bool,
    pub(super) channel_binding: ChannelBinding,
    pub(super) connect_timeout: Duration,
    pub(super) tcp: TcpOptions,
    pub(super) session: TargetSession,
    /// Maximum number of statements that a connection caches.
    pub(super) statement_cache: usize,
}

/// A host to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// TCP. If `address` is set, the name isn't resolved.
    Tcp { name: String, address: Option<IpAddr>, port: u16 },
    /// Path of the Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp { name, port, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp { name, port, .. } => write!(f, "{name}:{port}"),
            Host::Unix(path) => path.display().fmt(f),
        }
    }
}

/// libpq's `channel_binding`: whether authentication is bound to the TLS session, which detects a
/// man in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never used.
    Disable,
    /// Used if the server offers it.
    Prefer,
    /// Required; a server without it is refused.
    Require,
}

/// libpq's `target_session_attrs`, without `prefer-standby`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetSession {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
}

impl ConnectSettings {
    pub(super) fn parse(text: &str) -> Result<Self, PostgresConfigError> {
        let mut combined = CombinedKeys::default();
        let mut settings = ConnectSettings {
            hosts: Vec::new(),
            user: String::new(),
            database: None,
            password: None,
            application_name: None,
            options: None,
            ssl_mode: None,
            tls: PostgresTls::default(),
            direct_tls: false,
            channel_binding: ChannelBinding::Prefer,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            tcp: DEFAULT_TCP,
            session: TargetSession::Any,
            statement_cache: DEFAULT_STATEMENT_CACHE,
        };
        let pairs = conninfo::pairs(text)?;
        for (index, (key, value)) in pairs.iter().enumerate() {
            // As in libpq, an empty value counts as not given.
            if !value.is_empty() && !combined.set(key, value)? && !settings.set(key, value)? {
                return Err(unknown(key, index.checked_sub(1).map(|before| &pairs[before])));
            }
        }
        if settings.user.is_empty() {
            return Err(PostgresConfigError::new("user", "it must be given: postgres://user@host/dbname"));
        }
        settings.hosts = combined.hosts()?;
        settings.tcp.keepalive = combined.keepalive;
        Ok(settings)
    }

    /// Sets a key that has a meaning on its own; returns `false` for other keys.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, PostgresConfigError> {
        let text = || Some(value.to_owned());
        match key {
            "user" => value.clone_into(&mut self.user),
            "password" => self.password = Some(AuthSecret::new(value)),
            "dbname" => self.database = text(),
            "application_name" => self.application_name = text(),
            "options" => self.options = text(),
            "sslmode" => self.ssl_mode = Some(SslMode::parse(value)?),
            "sslrootcert" if value == "system" => self.tls.authority = Some(PemSource::System),
            "sslrootcert" => self.tls.authority = Some(PemSource::File(value.into())),
            "sslcert" => self.tls.certificate = Some(PemSource::File(value.into())),
            "sslkey" => self.tls.key = Some(PemSource::File(value.into())),
            "sslnegotiation" => {
                self.direct_tls = choice(key, value, &[("postgres", false), ("direct", true)])?;
            }
            "channel_binding" => {
                let all = [
                    ("disable", ChannelBinding::Disable),
                    ("prefer", ChannelBinding::Prefer),
                    ("require", ChannelBinding::Require),
                ];
                self.channel_binding = choice(key, value, &all)?;
            }
            "target_session_attrs" => {
                let all = [
                    ("any", TargetSession::Any),
                    ("read-write", TargetSession::ReadWrite),
                    ("read-only", TargetSession::ReadOnly),
                    ("primary", TargetSession::Primary),
                    ("standby", TargetSession::Standby),
                ];
                self.session = choice(key, value, &all)?;
            }
            "connect_timeout" => {
                let secs = number(key, value, 1, A_DAY_SECS, "seconds")?;
                self.connect_timeout = Duration::from_secs(secs);
            }
            "tcp_user_timeout" => {
                let millis = number(key, value, 0, A_DAY_SECS * 1000, "milliseconds, 0 for the system's")?;
                self.tcp.user_timeout = (millis > 0).then(|| Duration::from_millis(millis));
            }
            // For these keys only the values that match this client's behaviour are accepted.
            "client_encoding" => {
                let all = [("UTF8", ()), ("utf8", ()), ("UTF-8", ()), ("utf-8", ())];
                choice(key, value, &all)?;
            }
            "gssencmode" => choice(key, value, &[("disable", ()), ("prefer", ())])?,
            "load_balance_hosts" => choice(key, value, &[("disable", ())])?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Keys that are evaluated together: hosts and keepalives.
#[derive(Default)]
struct CombinedKeys {
    hosts: Option<String>,
    addresses: Option<String>,
    ports: Option<String>,
    keepalive: Option<Keepalive>,
    keepalive_off: bool,
}

impl CombinedKeys {
    fn set(&mut self, key: &str, value: &str) -> Result<bool, PostgresConfigError> {
        let text = || Some(value.to_owned());
        let keepalive = self.keepalive.get_or_insert(DEFAULT_TCP.keepalive.expect("it is on by default"));
        let secs = || number(key, value, 1, A_DAY_SECS, "seconds").map(Duration::from_secs);
        match key {
            "host" => self.hosts = text(),
            "hostaddr" => self.addresses = text(),
            "port" => self.ports = text(),
            "keepalives" => self.keepalive_off = !choice(key, value, &[("0", false), ("1", true)])?,
            "keepalives_idle" => keepalive.idle = secs()?,
            "keepalives_interval" => keepalive.interval = secs()?,
            // `keepalives_retries` is tokio-postgres' name.
            "keepalives_count" | "keepalives_retries" => {
                let count = number(key, value, 1, 100, "probes")?;
                keepalive.count = u32::try_from(count).expect("it is at most 100");
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn hosts(&mut self) -> Result<Vec<Host>, PostgresConfigError> {
        if self.keepalive_off {
            self.keepalive = None;
        }
        let list = |text: &Option<String>| {
            text.as_ref().map(|text| text.split(',').map(|part| part.trim().to_owned()).collect::<Vec<_>>())
        };
        let addresses = list(&self.addresses);
        let Some(names) = list(&self.hosts).or_else(|| addresses.clone()) else {
            return Err(PostgresConfigError::new("host", "it must be given: postgres://user@host/dbname"));
        };
        let per_host =
            |key: &str, list: &Option<Vec<String>>, allow_one_for_all: bool, index: usize| match list {
                None => Ok(String::new()),
                Some(list) if list.len() == names.len() => Ok(list[index].clone()),
                Some(list) if list.len() == 1 && allow_one_for_all => Ok(list[0].clone()),
                Some(list) => {
                    let problem = format!("there are {} of them for {} hosts", list.len(), names.len());
                    Err(PostgresConfigError::new(key, problem))
                }
            };
        let ports = list(&self.ports);
        let host = |(index, name): (usize, &String)| {
            let address = per_host("hostaddr", &addresses, false, index)?;
            host(name, &address, &per_host("port", &ports, true, index)?)
        };
        names.iter().enumerate().map(host).collect()
    }
}

fn host(name: &str, address: &str, port: &str) -> Result<Host, PostgresConfigError> {
    let problem = "a number from 1 to 65535; in a URL, '@', '/' and ':' in user and password must be written \
                   %40, %2F and %3A";
    let bad_port = || PostgresConfigError::new("port", problem);
    let port = match port {
        "" => DEFAULT_PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(bad_port)?,
    };
    let address = match address {
        "" => None,
        address => Some(
            IpAddr::from_str(address)
                .map_err(|_| PostgresConfigError::new("hostaddr", "an IP address; names belong into host"))?,
        ),
    };
    match (name, address) {
        ("", None) => {
            Err(PostgresConfigError::new("host", "a name, an IP address, or the folder of a socket"))
        }
        ("", Some(ip)) => Ok(Host::Tcp { name: ip.to_string(), address, port }),
        (name, None) if name.starts_with('/') => {
            Ok(Host::Unix(Path::new(name).join(format!(".s.PGSQL.{port}"))))
        }
        (name, address) => {
            let address = address.or_else(|| name.parse().ok());
            Ok(Host::Tcp { name: name.to_owned(), address, port })
        }
    }
}

/// Reports an unknown key. A key after a password may be part of it, so it isn't shown.
fn unknown(key: &str, before: Option<&ConninfoPair>) -> PostgresConfigError {
    let may_show = before.is_none_or(|(before, _)| before != "password")
        && key.len() <= 40
        && key.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'_'));
    let shown = if may_show { key } else { "the connection string" };
    PostgresConfigError::new(shown, format!("an unknown key; these are known: {KEYS}"))
}

fn choice<T: Copy>(key: &str, value: &str, all: &[(&str, T)]) -> Result<T, PostgresConfigError> {
    all.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        PostgresConfigError::new(key, format!("it can be {}", names.join(", ")))
    })
}

fn number(key: &str, value: &str, min: u64, max: u64, unit: &str) -> Result<u64, PostgresConfigError> {
    let number = value.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| {
        PostgresConfigError::new(key, format!("a whole number from {min} to {max}, in {unit}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ConnectSettings {
        ConnectSettings::parse(text).unwrap()
    }

    fn problem(text: &str) -> String {
        ConnectSettings::parse(text).unwrap_err().to_string()
    }

    fn tcp(name: &str, address: Option<&str>, port: u16) -> Host {
        Host::Tcp { name: name.to_owned(), address: address.map(|ip| ip.parse().unwrap()), port }
    }

    #[test]
    fn a_url_and_keywords_give_the_same_settings() {
        let url = parse(
            "postgres://me:pw@db.test:5433/shop?sslmode=verify-full&sslrootcert=/ca.pem&sslnegotiation=direct\
             &application_name=gate&connect_timeout=3&channel_binding=require&options=-c%20jit%3Doff",
        );
        let keywords = parse(
            "user=me password=pw host=db.test port=5433 dbname=shop sslmode=verify-full sslrootcert=/ca.pem \
             sslnegotiation=direct application_name=gate connect_timeout=3 channel_binding=require \
             options='-c jit=off'",
        );
        for settings in [url, keywords] {
            assert_eq!(settings.hosts, [tcp("db.test", None, 5433)]);
            assert_eq!((settings.user.as_str(), settings.database.as_deref()), ("me", Some("shop")));
            assert_eq!(settings.password, Some(AuthSecret::new("pw")));
            assert_eq!(settings.ssl_mode, Some(SslMode::VerifyFull));
            assert_eq!(settings.tls.authority, Some(PemSource::File("/ca.pem".into())));
            assert!(settings.direct_tls);
            assert_eq!(settings.channel_binding, ChannelBinding::Require);
            assert_eq!(settings.connect_timeout, Duration::from_secs(3));
            assert_eq!(settings.options.as_deref(), Some("-c jit=off"));
        }
    }

    #[test]
    fn missing_keys_have_defaults() {
        let settings = parse("postgres://me@h");
        assert_eq!(settings.hosts, [tcp("h", None, 5432)]);
        assert_eq!((settings.database, settings.password), (None, None));
        assert_eq!(settings.ssl_mode, None);
        assert_eq!((settings.connect_timeout, settings.tcp), (DEFAULT_CONNECT_TIMEOUT, DEFAULT_TCP));
        assert_eq!(settings.session, TargetSession::Any);
    }

    #[test]
    fn hosts_have_their_own_port_or_share_one() {
        let found = parse("postgres://me@a:1,b,[::1]:3,%2Frun/db").hosts;
        let socket = Host::Unix("/run/.s.PGSQL.5432".into());
        assert_eq!(found, [tcp("a", None, 1), tcp("b", None, 5432), tcp("::1", Some("::1"), 3), socket]);
        assert_eq!(parse("user=me host=a,b port=7").hosts, [tcp("a", None, 7), tcp("b", None, 7)]);
        let found = parse("user=me host=a,b hostaddr=10.0.0.1,::2 port=7,").hosts;
        assert_eq!(found, [tcp("a", Some("10.0.0.1"), 7), tcp("b", Some("::2"), 5432)]);
        assert_eq!(parse("user=me hostaddr=10.0.0.1").hosts, [tcp("10.0.0.1", Some("10.0.0.1"), 5432)]);
        let socket = parse("user=me host=/run/pg port=7").hosts;
        assert_eq!(socket, [Host::Unix("/run/pg/.s.PGSQL.7".into())]);
    }

    #[test]
    fn keepalive_and_timeout_keys_are_applied() {
        let options = parse(
            "user=me host=h keepalives_idle=5 keepalives_interval=6 keepalives_count=7 tcp_user_timeout=1500",
        );
        let (idle, interval) = (Duration::from_secs(5), Duration::from_secs(6));
        assert_eq!(options.tcp.keepalive, Some(Keepalive { idle, interval, count: 7 }));
        assert_eq!(options.tcp.user_timeout, Some(Duration::from_millis(1500)));
        let off = parse("user=me host=h keepalives=0 keepalives_idle=5 tcp_user_timeout=0").tcp;
        assert_eq!(off, TcpOptions { keepalive: None, user_timeout: None });
    }

    #[test]
    fn an_error_names_the_key_and_says_what_is_allowed() {
        let cases = [
            ("postgres://h/db", "user: it must be given"),
            ("user=me", "host: it must be given"),
            ("postgres://me@h/?sslmode=allow", "sslmode: one of disable, prefer, require"),
            ("postgres://me@h/?sslnegotiation=x", "sslnegotiation: it can be postgres, direct"),
            ("postgres://me@h/?channel_binding=x", "channel_binding: it can be disable, prefer, require"),
            ("postgres://me@h/?target_session_attrs=x", "target_session_attrs: it can be any, read-write"),
            (
                "postgres://me@h/?connect_timeout=0",
                "connect_timeout: a whole number from 1 to 86400, in seconds",
            ),
            ("postgres://me@h/?sslmod=require", "sslmod: an unknown key; these are known: user, password"),
            ("postgres://me@h:0/", "port: a number from 1 to 65535"),
            ("postgres://me@h:99999/", "port: a number from 1 to 65535"),
            ("user=me host=a,b port=1,2,3", "port: there are 3 of them for 2 hosts"),
            ("user=me host=a,b hostaddr=::1", "hostaddr: there are 1 of them for 2 hosts"),
            ("user=me host=a hostaddr=b", "hostaddr: an IP address"),
            ("user=me host=a,,b", "host: a name"),
            ("postgres://me@[::1/db", "host: an IPv6 address is written [::1]:5432"),
        ];
        for (text, wanted) in cases {
            let message = problem(text);
            assert!(message.starts_with(wanted), "{text}: {message}");
        }
    }

    #[test]
    fn nothing_shows_a_password() {
        for text in ["postgres://u:hunter/x", "user=u host=h password=a hunter=b", "postgres://u:hunter"] {
            assert!(!problem(text).contains("hunter"), "{}", problem(text));
        }
        let shown = format!("{:?}", parse("postgres://u:hunter2@h/db"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
