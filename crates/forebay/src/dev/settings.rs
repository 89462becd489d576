//! Which addresses it has, and what the server is told.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use crate::cli::{DevArgs, ServeArgs};
use crate::config::{self, ConfigError, Hidden};
use crate::logging::{LogConfig, LogFormat};

const CLIENTS: u16 = 3000;
const ADMIN: u16 = 3001;
/// How far a free port is looked for.
const TRIES: u16 = 50;
/// Enough to try it, on a machine that lets a program open a thousand files.
const TOTAL: u32 = 500;
const QUIET: &str = "warn";

/// Where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) clients: String,
    pub(super) admin: String,
    /// Ports that were wanted, and that somebody else has.
    pub(super) taken: Vec<u16>,
}

impl Addresses {
    /// The usual ports, or the next ones that are free, unless others were named.
    pub(super) fn find(args: &DevArgs) -> Self {
        let mut taken = Vec::new();
        let mut free = |wanted: u16, but: Option<u16>| {
            let found = (wanted..wanted + TRIES).find(|port| Some(*port) != but && is_free(*port));
            if !is_free(wanted) {
                taken.push(wanted);
            }
            found.unwrap_or(wanted)
        };
        let named = |address: &Option<String>| address.as_ref().and_then(|address| address.parse().ok());
        let clients_named: Option<SocketAddr> = named(&args.listen);
        let clients = clients_named.map_or_else(|| free(CLIENTS, None), |address| address.port());
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        Addresses {
            clients: args.listen.clone().unwrap_or_else(|| local(clients)),
            admin: args.admin.clone().unwrap_or_else(|| local(free(ADMIN, Some(clients)))),
            taken,
        }
    }
}

/// Whoever listens to all addresses has this one, too.
fn is_free(port: u16) -> bool {
    let all = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
    !all.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// What is logged: by default only what is wrong, so that the addresses stay in sight.
pub fn log(args: &DevArgs) -> LogConfig {
    LogConfig { format: LogFormat::Text, filter: args.log.clone().unwrap_or_else(|| QUIET.to_owned()) }
}

/// Whether the flags can be used, before anything is started.
///
/// # Errors
/// Says what is wrong, and what to write.
pub fn check(args: &DevArgs) -> Result<(), ConfigError> {
    let any = || "127.0.0.1:0".to_owned();
    let addresses = Addresses {
        clients: args.listen.clone().unwrap_or_else(any),
        admin: args.admin.clone().unwrap_or_else(any),
        taken: Vec::new(),
    };
    let url = Some("postgres://postgres@localhost/postgres".to_owned());
    let (args, environment) = serve_args(args, &addresses, url, Path::new("."));
    config::load_serve(args, environment).map(drop)
}

/// `url`: the throwaway database's, unless there is one of somebody's own.
pub(super) fn serve_args(
    args: &DevArgs,
    addresses: &Addresses,
    url: Option<String>,
    storage: &Path,
) -> (ServeArgs, Vec<(String, String)>) {
    let name = format!("forebay_dev_{}", std::process::id());
    let serve = ServeArgs {
        database_url: args.database_url.clone().or(url.map(Hidden::from)),
        slot: Some(name.clone()),
        publication: Some(name),
        storage: Some(storage.join("shapes").display().to_string()),
        listen: Some(addresses.clients.clone()),
        admin: Some(addresses.admin.clone()),
        redis: args.redis.clone(),
        total: Some(TOTAL),
        log: Some(args.log.clone().unwrap_or_else(|| QUIET.to_owned())),
        ..ServeArgs::default()
    };
    // What has no flag. The shell's own variables don't count here: they are for `forebay serve`.
    let settings = [
        ("FOREBAY_DATABASE_TEMPORARY_SLOT", "true"),
        ("FOREBAY_DATABASE_POOL_SIZE", "8"),
        ("FOREBAY_SERVE_DRAIN_TIMEOUT_MS", "500"),
        // A Redis that knows of nobody admits streams after one TTL: nobody should wait for long to see them.
        ("FOREBAY_QUOTA_BEAT_MS", "250"),
        ("FOREBAY_QUOTA_TTL_MS", "1500"),
    ];
    (serve, settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_somebody_has_is_passed_over_and_said() {
        let args = DevArgs::default();
        // One that can't be had, another program has, for as long as it likes: nothing is known of it.
        let bind = |port: u16| Some((TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?, port));
        let held: Vec<_> = [CLIENTS, ADMIN].into_iter().filter_map(bind).collect();
        let addresses = Addresses::find(&args);
        for (_, port) in &held {
            assert!(addresses.taken.contains(port), "{addresses:?}");
            let taken = format!("127.0.0.1:{port}");
            assert!(addresses.clients != taken && addresses.admin != taken, "{addresses:?}");
        }
        assert_ne!(addresses.clients, addresses.admin);
    }

    #[test]
    fn an_address_beyond_this_machine_is_refused() {
        let args = DevArgs { listen: Some("0.0.0.0:3000".into()), ..DevArgs::default() };
        assert!(check(&args).unwrap_err().to_string().contains("secret"));
        assert!(check(&DevArgs::default()).is_ok());
    }
}
