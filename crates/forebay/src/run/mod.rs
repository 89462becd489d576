//! What the commands that serve have in common at their start: addresses, the others, upkeep.

mod gate;
mod serve;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_quota::{MemberConfig, Quota, QuotaMode, RedisStore};
use forebay_redis::RedisClient;
use forebay_stream::ServerStats;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, interval};
use tracing::{info, warn};

pub use self::gate::Gate;
pub use self::serve::Serve;
use crate::config::{QuotaConfig, VariableNotice};
use crate::memory::{self, Crowd};

/// Thousands of clients may come at once, after a restart.
const BACKLOG: u32 = 4096;
/// How often the recorder forgets samples that nobody asked for, and memory that nobody needs goes back.
const UPKEEP: Duration = Duration::from_secs(1);
/// How often memory goes back though nobody has left.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(60);

/// Why a command can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address can't be had.
    #[error("can't listen on {address} ({key}): {source}; {}", Advice { key, source })]
    Listen {
        /// `--listen` or `--admin`.
        key: &'static str,
        /// Which.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The Redis client can't be made.
    #[error("redis.url: {0}")]
    Redis(#[from] forebay_redis::RedisConnectError),
    /// The storage directory can't be used.
    #[error("storage.dir {}: {source}", dir.display())]
    Store {
        /// Which.
        dir: std::path::PathBuf,
        /// Why.
        source: forebay_shapes::OpenError,
    },
    /// The database's settings can't be used.
    #[error("database: {0}")]
    Database(#[from] forebay_replication::ManagerConfigError),
}

struct Advice<'a> {
    key: &'a str,
    source: &'a io::Error,
}

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "another program has that port, perhaps another of these: end it, or choose one with {key}"
                )
            }
            io::ErrorKind::PermissionDenied => {
                write!(f, "ports below 1024 need rights: choose a higher one with {key}")
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "this machine has no such address: see `ip addr`"),
            _ => write!(f, "choose another with {key}"),
        }
    }
}

/// Says which variables of other programs are set, and what comes of them.
pub(crate) fn announce_borrowed(notices: &[VariableNotice]) {
    for VariableNotice { variable, settings, why_not } in notices {
        match why_not {
            None => {
                info!(
                    variable,
                    settings = settings.join(", "),
                    "a variable of another program is understood"
                );
            }
            Some(why) => warn!(variable, why, "a variable of another program has no effect"),
        }
    }
}

pub(crate) async fn upkeep(metrics: PrometheusHandle, http: ServerStats) {
    let (mut ticks, mut crowd) = (interval(UPKEEP), Crowd::default());
    let mut given_back = Instant::now();
    loop {
        let now = ticks.tick().await;
        metrics.run_upkeep();
        if crowd.has_left(http.counts().open_connections) || now - given_back >= GIVE_BACK_EVERY {
            given_back = now;
            let _ = tokio::task::spawn_blocking(memory::give_back).await;
        }
    }
}

pub(crate) fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?; // past connections in TIME_WAIT don't hold a port
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|source| StartError::Listen { key, address, source })
}

/// Counts with the others, if there is a place to meet.
pub(crate) async fn join(config: &QuotaConfig, address: SocketAddr) -> Result<Quota, StartError> {
    let Some(redis) = &config.redis else { return Ok(Quota::local()) };
    let at = redis.address.to_string();
    let store = RedisStore::new(RedisClient::open(redis.clone())?, &config.namespace);
    let name = config.member.clone().unwrap_or_else(|| member_name(address));
    let member =
        MemberConfig::new(name).heartbeat_interval(config.beat).ttl(config.ttl).policy(config.policy);
    let quota = Quota::join(store, member).await;
    let status = quota.status();
    let why = status.why.unwrap_or_default();
    match status.mode {
        QuotaMode::Normal => info!(redis = %at, members = status.members, "counts with others"),
        QuotaMode::Rebuilding => {
            let ttl = config.ttl;
            warn!(redis = %at, ?ttl, why, "Redis knows of nobody yet: streams are admitted after one TTL");
        }
        QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
            let policy = config.policy.as_str();
            warn!(redis = %at, policy, why, "starts without Redis, and goes on trying");
        }
    }
    Ok(quota)
}

/// The same after a restart, and another for every instance: host and address.
pub(crate) fn member_name(address: SocketAddr) -> String {
    let system = rustix::system::uname();
    format!("{}/{address}", system.nodename().to_string_lossy())
}
