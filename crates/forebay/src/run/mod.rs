//! Start and shutdown of the servers `forebay gate` and `forebay serve`, and the parts that both
//! use: listeners, the quota, upkeep of metrics and heap.

mod gate;
mod listening_server;
mod serve;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_quota::{MemberConfig, OutagePolicy, Quota, QuotaMode, RedisStore};
use forebay_redis::RedisClient;
use forebay_stream::ServerStats;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, interval};
use tracing::{info, warn};

pub use self::gate::GateServer;
pub use self::serve::ShapeServer;
use crate::config::{QuotaConfig, VariableNotice};
use crate::memory::{self, TrimPolicy};
use forebay_admission::directory::RedisBus;

/// Length of the listen queue. Thousands of clients may reconnect at once after a restart.
const BACKLOG: u32 = 4096;
/// Interval at which the metrics recorder is drained and the heap may be trimmed.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the heap is trimmed even if no connections have closed.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Timeout of a call to a DynamoDB table.
#[cfg(feature = "aws")]
const TABLE_CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a server can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An address can't be bound.
    #[error("can't listen on {address} ({key}): {source}; {}", ListenAdvice { key, source })]
    Listen {
        /// The setting: `--listen` or `--admin`.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The Redis client can't be created.
    #[error("redis.url: {0}")]
    Redis(#[from] forebay_redis::RedisConnectError),
    /// No source of the AWS SDK has a region.
    #[error("quota.table: no AWS region found for the table {table:?}; set AWS_REGION")]
    AwsRegion {
        /// The table.
        table: String,
    },
    /// The storage directory can't be opened.
    #[error("storage.dir {}: {source}", dir.display())]
    Store {
        /// The directory.
        dir: std::path::PathBuf,
        /// The reason.
        source: forebay_shapes::OpenError,
    },
    /// The database settings are invalid.
    #[error("database: {0}")]
    Database(#[from] forebay_replication::ManagerConfigError),
}

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerEnd {
    /// A signal ended it in order.
    Stopped,
    /// A second signal ended it at once.
    Aborted,
    /// An operator must act before the database can be followed, and `database.exit_when_unfit` is
    /// set.
    Unfit,
}

/// What to do about an address that can't be bound.
struct ListenAdvice<'a> {
    key: &'a str,
    source: &'a io::Error,
}

impl fmt::Display for ListenAdvice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "another program uses that port, perhaps another instance: stop it, or choose a port with {key}"
                )
            }
            io::ErrorKind::PermissionDenied => {
                write!(f, "ports below 1024 need privileges: choose a higher one with {key}")
            }
            io::ErrorKind::AddrNotAvailable => write!(f, "this machine has no such address: see `ip addr`"),
            _ => write!(f, "choose another address with {key}"),
        }
    }
}

/// Logs which environment variables of other programs are mapped to settings, and which are
/// ignored.
pub(crate) fn log_mapped_variables(notices: &[VariableNotice]) {
    for VariableNotice { variable, settings, why_not } in notices {
        match why_not {
            None => {
                info!(variable, settings = settings.join(", "), "environment variable mapped");
            }
            Some(why) => warn!(variable, why, "environment variable ignored"),
        }
    }
}

/// Drains the metrics recorder and trims the heap, at intervals. Never returns.
pub(crate) async fn upkeep(metrics: PrometheusHandle, http: ServerStats) {
    let (mut ticks, mut trim_policy) = (interval(UPKEEP_INTERVAL), TrimPolicy::default());
    let mut trimmed = Instant::now();
    loop {
        let now = ticks.tick().await;
        metrics.run_upkeep();
        let (open, peak) = (http.counts().open_connections, http.take_peak_connections());
        if trim_policy.should_trim(open, peak) || now - trimmed >= TRIM_INTERVAL {
            trimmed = now;
            let _ = tokio::task::spawn_blocking(memory::trim_heap).await;
        }
    }
}

/// Opens a listener. `key` is the setting that an error names.
pub(crate) fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let open = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?; // connections in TIME_WAIT don't block the port
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    open().map_err(|source| StartError::Listen { key, address, source })
}

/// Joins the quota that all instances at the same Redis or DynamoDB table share. Without both, the
/// quota is local. Also returns the channels of instances at the same Redis.
pub(crate) async fn join_quota(
    config: &QuotaConfig,
    address: SocketAddr,
) -> Result<(Quota, Option<RedisBus>), StartError> {
    let name = config.member.clone().unwrap_or_else(|| member_name(address));
    let member =
        MemberConfig::new(name).heartbeat_interval(config.beat).ttl(config.ttl).policy(config.policy);
    let mut bus = None;
    let (quota, at) = match (&config.redis, &config.table) {
        (None, None) => return Ok((Quota::local(), bus)),
        (Some(redis), _) => {
            let client = RedisClient::open(redis.clone())?;
            bus = Some(RedisBus::new(client.clone(), &config.namespace));
            let store = RedisStore::new(client, &config.namespace);
            (Quota::join(store, member).await, redis.address.to_string())
        }
        #[cfg(feature = "aws")]
        (None, Some(table)) => {
            let store = crate::dynamo_table::open(table, &config.namespace).await?;
            // A call retries conflicts with other members: it needs more time than one to Redis.
            let member = member.call_timeout(TABLE_CALL_TIMEOUT);
            (Quota::join(store, member).await, format!("DynamoDB table {table}"))
        }
        // A build without the feature refuses `quota.table` earlier.
        #[cfg(not(feature = "aws"))]
        (None, Some(_)) => return Ok((Quota::local(), bus)),
    };
    let status = quota.status();
    let why = status.why.unwrap_or_default();
    match status.mode {
        QuotaMode::Normal => info!(store = %at, members = status.members, "quota joined"),
        QuotaMode::Rebuilding if config.policy == OutagePolicy::Closed => {
            let ttl = config.ttl;
            warn!(store = %at, ?ttl, why, "quota rebuilding: streams are admitted after one TTL");
        }
        QuotaMode::Rebuilding => {
            let policy = config.policy.as_str();
            info!(store = %at, policy, why, "quota joined: its counts are being rebuilt");
        }
        QuotaMode::WithinSlices | QuotaMode::Degraded(_) => {
            let policy = config.policy.as_str();
            warn!(store = %at, policy, why, "quota degraded: store unavailable, retrying");
        }
        mode => info!(store = %at, %mode, why, "quota joined"),
    }
    Ok((quota, bus))
}

/// Returns the default member name: host and address. It is the same after a restart, and differs
/// between instances.
pub(crate) fn member_name(address: SocketAddr) -> String {
    let system = rustix::system::uname();
    format!("{}/{address}", system.nodename().to_string_lossy())
}
