//! Checked settings of `forebay serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_admission::Secret;
use forebay_replication::ManagerConfig;
use forebay_serve::Config as ShapeConfig;
use forebay_shapes::StoreConfig;
use forebay_stream::HttpServerConfig;
use http::Response;

use super::ConfigError;
use super::admission::AdmissionConfig;
use super::database::{check_database, max_snapshots};
use super::explicit_settings::ExplicitSettings;
use super::identity::{IdentityConfig, TrustedProxies};
use super::imported_variables::VariableNotice;
use super::otel_config::{OtelConfig, check_otel};
use super::quota::QuotaConfig;
use super::serve_file::{ServeFile, ServeSection};
use super::server_settings::{check_admin, check_http, check_log, check_secret, check_tls};
use super::setting_layers::SettingLayers;
use super::storage::check_storage;
use super::value_reader::{ValueError, ValueReader};
use crate::logging::LogConfig;
use crate::tls::TlsCertificate;

pub(super) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3001);
/// A web page has one stream for each of its shapes.
const PER_USER: u32 = 100;
const YEAR_S: u32 = 365 * 24 * 60 * 60;

/// Checked settings of `forebay serve`. `serve.example.toml` explains each key and its default.
#[derive(Debug)]
pub struct ServeConfig {
    /// Database and replication.
    pub manager: ManagerConfig,
    /// Storage of shapes.
    pub store: StoreConfig,
    /// Address for clients.
    pub listen: SocketAddr,
    /// Certificate and key; `None`: plain HTTP.
    pub tls: Option<Arc<TlsCertificate>>,
    /// Admin address; `None`: off.
    pub admin: Option<SocketAddr>,
    /// Password of the admin address.
    pub admin_secret: Option<Secret>,
    /// Secret of clients. It is set if other machines can connect, unless tokens are required or
    /// `insecure` is set.
    pub secret: Option<Secret>,
    /// Claim with the grants, if tokens are required.
    pub tokens: Option<String>,
    /// Whether an address that other machines can reach is allowed without a secret.
    pub insecure: bool,
    /// Whether clients may delete shapes.
    pub allow_delete: bool,
    /// Time that a live request waits for a change.
    pub long_poll: Duration,
    /// Interval of keep-alive messages on an event stream without changes.
    pub sse_keep_alive: Duration,
    /// Duration of an event stream.
    pub sse_timeout: Duration,
    /// `max-age` of responses that are not live, in seconds.
    pub max_age_s: u32,
    /// `stale-while-revalidate` of responses that are not live, in seconds.
    pub stale_age_s: u32,
    /// Maximum number of pool connections of all instances; `None`: only the pool sizes limit them.
    pub max_connections: Option<u32>,
    /// Maximum number of pool connections that all instances together open in a second.
    pub connections_per_second: u32,
    /// Time that a table stays in the publication after its last shape; `None`: forever.
    pub unpublish_after: Option<Duration>,
    /// Maximum number of concurrent snapshots: at least 1, at most the number of connections for
    /// them.
    pub snapshots: usize,
    /// Connections of clients.
    pub http: HttpServerConfig,
    /// Limits for streams.
    pub admission: AdmissionConfig,
    /// Membership in the cluster.
    pub quota: QuotaConfig,
    /// Identity methods.
    pub identity: IdentityConfig,
    /// Time that open requests may continue after the first signal.
    pub drain_timeout: Duration,
    /// Log format and filter.
    pub log: LogConfig,
    /// Export of traces and metrics.
    pub otel: Option<OtelConfig>,
    /// Variables of other programs that are set.
    pub variable_notices: Vec<VariableNotice>,
    /// All explicit settings, to detect changes on reload.
    pub explicit_settings: ExplicitSettings,
    /// HTML page at `/` of the clients' address; only `forebay dev` has one.
    pub(crate) home_page: Option<fn() -> Response<Bytes>>,
    /// Whether the slot and the publication are dropped at shutdown, as `forebay dev` does with its
    /// own.
    pub(crate) drops_slot_on_exit: bool,
}

impl TryFrom<SettingLayers<ServeFile>> for ServeConfig {
    type Error = ConfigError;

    fn try_from(layers: SettingLayers<ServeFile>) -> Result<ServeConfig, ConfigError> {
        let (variable_notices, explicit_settings) = (layers.notices().to_vec(), layers.explicit_settings());
        let (file, origins) = layers.finish()?;
        Ok(ServeConfig { variable_notices, explicit_settings, ..check_all(&file, &ValueReader { origins })? })
    }
}

fn check_all(file: &ServeFile, reader: &ValueReader) -> Result<ServeConfig, ValueError> {
    let serve = &file.serve;
    let manager = check_database(&file.database, reader)?;
    let secret = check_secret("serve.secret", serve.secret.as_ref(), reader)?;
    let proxies = TrustedProxies::check(
        ("serve.trusted_proxies", serve.trusted_proxies.as_ref()),
        ("serve.forwarded_by", serve.forwarded_by.as_ref()),
        reader,
    )?;
    let identity = IdentityConfig::check(&file.identity, &proxies, reader)?;
    let tokens = check_tokens(serve, identity.methods.contains(&"jwt"), reader)?;
    let seconds = |key, given_ms, default_s| reader.duration(key, given_ms, Duration::from_secs(default_s));
    let body = seconds("serve.request_idle_timeout_ms", serve.request_idle_timeout_ms, 30)?;
    let mut http = check_http(&file.http, body, reader)?;
    http.drain_timeout = seconds("serve.drain_timeout_ms", serve.drain_timeout_ms, 25)?;
    let mut admission =
        AdmissionConfig::check(&file.admission, PER_USER, !identity.methods.is_empty(), reader)?;
    // A gate in front of this server may use the same Redis. The separate name prevents that a
    // stream counts twice, once for the gate and once for this server.
    admission.builder = admission.builder.name("shapes");
    let defaults = ShapeConfig::default();
    Ok(ServeConfig {
        manager,
        store: check_storage(&file.storage, reader)?,
        listen: check_listen(serve, secret.is_some() || tokens.is_some(), reader)?,
        tls: check_tls(
            ("serve.tls_cert_file", serve.tls_cert_file.as_ref()),
            ("serve.tls_key_file", serve.tls_key_file.as_ref()),
            reader,
        )?,
        admin: check_admin(&file.admin, ADMIN, reader)?,
        admin_secret: check_secret("admin.secret", file.admin.secret.as_ref(), reader)?,
        allow_delete: check_delete(serve, secret.is_none() && tokens.is_some(), reader)?,
        secret,
        tokens,
        insecure: serve.insecure == Some(true),
        long_poll: reader.duration("serve.long_poll_ms", serve.long_poll_ms, defaults.long_poll)?,
        sse_keep_alive: reader.duration(
            "serve.sse_keep_alive_ms",
            serve.sse_keep_alive_ms,
            defaults.sse_keep_alive,
        )?,
        sse_timeout: reader.duration("serve.sse_timeout_ms", serve.sse_timeout_ms, defaults.sse_timeout)?,
        max_age_s: check_age("serve.max_age_s", serve.max_age_s, defaults.max_age_s, reader)?,
        stale_age_s: check_age("serve.stale_age_s", serve.stale_age_s, defaults.stale_age_s, reader)?,
        max_connections: file.database.max_connections.filter(|most| *most > 0),
        connections_per_second: reader.count(
            "database.connections_per_second",
            file.database.connections_per_second,
            100,
        )?,
        unpublish_after: match file.database.unpublish_after_ms {
            Some(0) => None,
            given => Some(seconds("database.unpublish_after_ms", given, 600)?),
        },
        snapshots: check_snapshots(file, reader)?,
        drain_timeout: http.drain_timeout,
        http,
        admission,
        quota: QuotaConfig::check(&file.redis, &file.quota, reader)?,
        identity,
        log: check_log(&file.log, reader)?,
        otel: check_otel(&file.otel, cfg!(feature = "otel"), reader)?,
        variable_notices: Vec::new(),
        explicit_settings: ExplicitSettings::default(),
        home_page: None,
        drops_slot_on_exit: false,
    })
}

/// Returns the claim with the grants, if tokens are required.
fn check_tokens(
    serve: &ServeSection,
    has_keys: bool,
    reader: &ValueReader,
) -> Result<Option<String>, ValueError> {
    const KEY: &str = "serve.tokens";
    const CLAIM: &str = "serve.tokens_claim";
    let is_required = reader.choice(KEY, serve.tokens.as_ref(), &[("off", false), ("required", true)])?;
    let claim = serve.tokens_claim.as_ref();
    match claim {
        Some(claim) if claim.trim().is_empty() => {
            Err(reader.error(CLAIM, claim.clone(), "must be the name of a claim"))
        }
        Some(claim) if !is_required => {
            let why = "has no effect unless serve.tokens is \"required\"";
            Err(reader.error(CLAIM, claim.clone(), why))
        }
        _ if is_required && !has_keys => {
            let why = "needs a key to verify tokens: set one of identity.jwt_secret_file, jwt_public_key_file and \
                       jwt_jwks_file";
            Err(reader.error(KEY, serve.tokens.clone(), why))
        }
        claim => Ok(is_required.then(|| claim.map_or("shapes", String::as_str).to_owned())),
    }
}

fn check_delete(
    serve: &ServeSection,
    by_tokens_only: bool,
    reader: &ValueReader,
) -> Result<bool, ValueError> {
    let allowed = serve.allow_delete.unwrap_or(false);
    if allowed && by_tokens_only {
        let why = "has no effect: tokens can't grant it, and serve.secret is not set";
        return Err(reader.error("serve.allow_delete", "true".to_owned(), why));
    }
    Ok(allowed)
}

fn check_listen(
    serve: &ServeSection,
    has_secret: bool,
    reader: &ValueReader,
) -> Result<SocketAddr, ValueError> {
    const KEY: &str = "serve.listen";
    let address = reader.address(KEY, serve.listen.as_ref(), LISTEN)?;
    if !address.ip().is_loopback() && !has_secret && serve.insecure != Some(true) {
        let why = "can be reached from other machines, which could read every table: set a secret in \
                   FOREBAY_SERVE_SECRET, or require tokens (serve.tokens), or use a loopback address, or use \
                   --insecure if a proxy before it controls access";
        return Err(reader.error(KEY, address.to_string(), why));
    }
    Ok(address)
}

fn check_age(
    key: &'static str,
    given_s: Option<u32>,
    default_s: u32,
    reader: &ValueReader,
) -> Result<u32, ValueError> {
    match given_s {
        Some(age) if age > YEAR_S => {
            Err(reader.error(key, age.to_string(), format!("must be 0 to {YEAR_S} seconds")))
        }
        given => Ok(given.unwrap_or(default_s)),
    }
}

/// Checks the number of concurrent snapshots. If it exceeded the connections for them, snapshots
/// would time out waiting for one.
fn check_snapshots(file: &ServeFile, reader: &ValueReader) -> Result<usize, ValueError> {
    let most = max_snapshots(&file.database, reader)?;
    let given = file.serve.snapshots;
    if given.is_some_and(|given| given > most) {
        let why = format!(
            "is more than the {most} that database.pool_size has connections for: increase that, too"
        );
        return Err(reader.error("serve.snapshots", given.map(|given| given.to_string()), why));
    }
    Ok(reader.count("serve.snapshots", given, most)? as usize)
}
