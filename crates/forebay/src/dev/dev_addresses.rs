//! Addresses of `forebay dev`, and the settings of its server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use forebay_admission::StageLevel;

use crate::cli::{DevArgs, ServeArgs};
use crate::config::{self, ConfigError};
use crate::logging::{LogConfig, LogFormat};

const CLIENT_PORT: u16 = 3000;
const ADMIN_PORT: u16 = 3001;
/// Number of ports that are tried.
const PORT_ATTEMPTS: u16 = 50;
/// Maximum number of streams. Enough for a demo, and within the common limit of 1,024 open files.
const MAX_STREAMS: u32 = 500;
const DEFAULT_FILTER: &str = "warn";

/// Addresses that the server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DevAddresses {
    pub(super) clients: String,
    pub(super) admin: String,
    /// Default ports that other programs use.
    pub(super) taken: Vec<u16>,
}

impl DevAddresses {
    /// Returns the addresses of the flags, or the default ports, or the next free ones.
    pub(super) fn find(args: &DevArgs) -> Self {
        let mut taken = Vec::new();
        let mut free = |wanted: u16, except: Option<u16>| {
            let found = (wanted..wanted + PORT_ATTEMPTS).find(|port| Some(*port) != except && is_free(*port));
            if !is_free(wanted) {
                taken.push(wanted);
            }
            found.unwrap_or(wanted)
        };
        let named = |address: &Option<String>| address.as_ref().and_then(|address| address.parse().ok());
        let clients_named: Option<SocketAddr> = named(&args.listen);
        let clients = clients_named.map_or_else(|| free(CLIENT_PORT, None), |address| address.port());
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        DevAddresses {
            clients: args.listen.clone().unwrap_or_else(|| local(clients)),
            admin: args.admin.clone().unwrap_or_else(|| local(free(ADMIN_PORT, Some(clients)))),
            taken,
        }
    }
}

/// Returns whether a port is free. The wildcard address is tried, because a listener on it blocks
/// the port, too.
fn is_free(port: u16) -> bool {
    let all = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    !all.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// Returns the log settings. By default only warnings are logged, so that the banner stays visible.
pub fn log(args: &DevArgs) -> LogConfig {
    LogConfig {
        format: LogFormat::Text,
        filter: args.log.clone().unwrap_or_else(|| DEFAULT_FILTER.to_owned()),
        stages: StageLevel::Debug,
    }
}

/// Checks the flags before anything is started.
///
/// # Errors
/// The error names the invalid flag and a valid value.
pub fn check(args: &DevArgs) -> Result<(), ConfigError> {
    let any = || "127.0.0.1:0".to_owned();
    let addresses = DevAddresses {
        clients: args.listen.clone().unwrap_or_else(any),
        admin: args.admin.clone().unwrap_or_else(any),
        taken: Vec::new(),
    };
    let url = Some("postgres://postgres@localhost/postgres".to_owned());
    let (args, environment) = serve_args(args, &addresses, url, Path::new("."));
    config::load_serve(args, environment).map(drop)
}

/// Returns the flags and variables of the server. `url` is the URL of the temporary database, or
/// `None` if the flags name a database.
pub(super) fn serve_args(
    args: &DevArgs,
    addresses: &DevAddresses,
    url: Option<String>,
    storage: &Path,
) -> (ServeArgs, Vec<(String, String)>) {
    let name = format!("forebay_dev_{}", std::process::id());
    let mut serve = ServeArgs::default()
        .with_flag("--slot", name.clone())
        .with_flag("--publication", name)
        .with_flag("--storage", storage.join("shapes").display().to_string())
        .with_flag("--listen", addresses.clients.clone())
        .with_flag("--admin", addresses.admin.clone())
        .with_flag("--total", MAX_STREAMS)
        .with_flag("--log", args.log.as_deref().unwrap_or(DEFAULT_FILTER));
    let own_url = args.database_url.as_ref().map(|url| url.reveal().to_owned());
    if let Some(url) = own_url.or(url) {
        serve = serve.with_flag("--database-url", url);
    }
    if let Some(url) = &args.redis {
        serve = serve.with_flag("--redis", url.reveal());
    }
    // Settings without a flag. Variables of the shell are ignored, because they are for `forebay
    // serve`.
    let settings = [
        ("FOREBAY_DATABASE_TEMPORARY_SLOT", "true"),
        ("FOREBAY_DATABASE_POOL_SIZE", "8"),
        ("FOREBAY_SERVE_DRAIN_TIMEOUT_MS", "500"),
        // The counts of a new namespace in Redis are rebuilt for one TTL, so the TTL is short.
        ("FOREBAY_QUOTA_BEAT_MS", "250"),
        ("FOREBAY_QUOTA_TTL_MS", "1500"),
    ];
    (serve, settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_skipped_and_reported() {
        let args = DevArgs::default();
        // Another program that holds a port may release it at any time, so the test asserts nothing
        // about that port.
        let bind = |port: u16| Some((TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?, port));
        let held: Vec<_> = [CLIENT_PORT, ADMIN_PORT].into_iter().filter_map(bind).collect();
        let addresses = DevAddresses::find(&args);
        for (_, port) in &held {
            assert!(addresses.taken.contains(port), "{addresses:?}");
            let taken = format!("127.0.0.1:{port}");
            assert!(addresses.clients != taken && addresses.admin != taken, "{addresses:?}");
        }
        assert_ne!(addresses.clients, addresses.admin);
    }

    #[test]
    fn a_public_address_is_refused() {
        let args = DevArgs { listen: Some("0.0.0.0:3000".into()), ..DevArgs::default() };
        assert!(check(&args).unwrap_err().to_string().contains("secret"));
        assert!(check(&DevArgs::default()).is_ok());
    }
}
