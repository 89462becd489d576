//! Checked settings of `forebay serve`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::{AdaptiveSignals, Secret};
use forebay_replication::{ManagerConfig, max_snapshots};
use forebay_settings::{ExplicitSettings, SettingLayers, ValueError, VariableNotice};
use forebay_shapes::StoreConfig;
use forebay_stream::HttpServerConfig;

use super::ConfigError;
use super::admission::AdmissionConfig;
use super::database::check_database;
use super::identity::{IdentityConfig, TrustedProxies};
use super::otel_config::{OtelConfig, check_otel};
use super::quota::QuotaConfig;
use super::sections::{ServeSection, ServeSettings, TokenMode};
use super::server_settings::{check_admin, check_tls, http_config};
use super::storage::store_config;
use crate::logging::LogConfig;
use crate::tls::TlsCertificate;

/// Time limit of a request body, as a multiple of the read timeout. Bodies are small.
const BODY_TIMEOUT_FACTOR: u32 = 4;

/// Checked settings of `forebay serve`. `forebay serve --example-config` explains each key.
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
    /// Whether an address that other machines can reach is allowed without a secret.
    pub insecure: bool,
    /// Whether clients may delete shapes.
    pub allow_delete: bool,
    /// The shape protocol.
    pub backend: forebay_serve::Config,
    /// Maximum number of pool connections of all instances; `None`: only the pool sizes limit them.
    pub max_connections: Option<u32>,
    /// Maximum number of pool connections that all instances together open in a second.
    pub connections_per_second: u32,
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
    /// Whether the process exits when an operator must act before the database can be followed.
    pub exit_when_unfit: bool,
    /// Whether the slot and the publication are dropped at shutdown. `forebay dev` always does.
    pub drop_slot_on_shutdown: bool,
}

impl TryFrom<SettingLayers> for ServeConfig {
    type Error = ConfigError;

    fn try_from(layers: SettingLayers) -> Result<ServeConfig, ConfigError> {
        Ok(check_all(ServeSettings::read(&layers)?, &layers)?)
    }
}

fn check_all(settings: ServeSettings, layers: &SettingLayers) -> Result<ServeConfig, ValueError> {
    let ServeSettings { database, serve, http, admin, .. } = settings;
    let manager = check_database(&database, layers)?;
    let max_connections = Some(database.max_connections).filter(|most| *most > 0);
    let most_snapshots = max_snapshots(manager.outline().pool_size, max_connections);
    let proxies = TrustedProxies {
        key: "serve.trusted_proxies",
        networks: &serve.trusted_proxies,
        forwarded_by: serve.forwarded_by,
    };
    let identity = IdentityConfig::check(&settings.identity, &proxies, layers)?;
    let mut backend = backend_config(&serve, check_snapshots(serve.snapshots, most_snapshots, layers)?);
    backend.unpublish_after = Some(database.unpublish_after_ms).filter(|time| !time.is_zero());
    backend.tokens_claim = check_tokens(&serve, identity.methods.contains(&"jwt"), layers)?;
    let has_tokens = backend.tokens_claim.is_some();
    let mut http = http_config(&http, serve.request_idle_timeout_ms);
    http.drain_timeout = serve.drain_timeout_ms;
    // A long-poll's response begins with the next change, so its time says nothing about the load.
    let signals = AdaptiveSignals::Process;
    let mut admission =
        AdmissionConfig::check(settings.admission, !identity.methods.is_empty(), signals, layers)?;
    // A gate in front of this server may use the same Redis. The separate name prevents that a
    // stream counts twice, once for the gate and once for this server.
    admission.builder = admission.builder.name("shapes");
    Ok(ServeConfig {
        manager,
        store: store_config(settings.storage),
        listen: check_listen(&serve, has_tokens, layers)?,
        tls: check_tls(
            ("serve.tls_cert_file", serve.tls_cert_file.as_ref()),
            ("serve.tls_key_file", serve.tls_key_file.as_ref()),
            layers,
        )?,
        admin: check_admin(&admin, layers)?,
        admin_secret: admin.secret,
        allow_delete: check_delete(&serve, has_tokens, layers)?,
        insecure: serve.insecure,
        backend,
        max_connections,
        connections_per_second: database.connections_per_second,
        secret: serve.secret,
        drain_timeout: http.drain_timeout,
        http,
        admission,
        quota: QuotaConfig::check(settings.redis, settings.quota, layers)?,
        identity,
        log: LogConfig {
            format: settings.log.format,
            filter: settings.log.filter,
            stages: settings.log.stages,
        },
        otel: check_otel(&settings.otel, cfg!(feature = "otel"), layers)?,
        variable_notices: layers.notices().to_vec(),
        explicit_settings: layers.explicit_settings(),
        exit_when_unfit: database.exit_when_unfit,
        drop_slot_on_shutdown: database.drop_slot_on_shutdown,
    })
}

/// Returns the settings of the shape protocol that are numbers and switches of `[serve]`.
fn backend_config(serve: &ServeSection, snapshots: usize) -> forebay_serve::Config {
    let mut backend = forebay_serve::Config::default();
    backend.snapshots = snapshots;
    backend.long_poll = serve.long_poll_ms;
    backend.sse_keep_alive = serve.sse_keep_alive_ms;
    backend.sse_timeout = serve.sse_timeout_ms;
    backend.max_age_s = serve.max_age_s;
    backend.stale_age_s = serve.stale_age_s;
    backend.body_timeout = BODY_TIMEOUT_FACTOR * serve.request_idle_timeout_ms;
    backend.postgres_clauses = serve.postgres_clauses;
    backend.postgres_clause_shapes = serve.postgres_clause_shapes as usize;
    backend.postgres_clause_statements_per_s = serve.postgres_clause_statements_per_s;
    backend
}

/// Returns the claim with the grants, if tokens are required.
fn check_tokens(
    serve: &ServeSection,
    has_keys: bool,
    layers: &SettingLayers,
) -> Result<Option<String>, ValueError> {
    match (serve.tokens, &serve.tokens_claim) {
        (TokenMode::Off, None) => Ok(None),
        (TokenMode::Off, Some(claim)) => {
            let why = "has no effect unless serve.tokens is \"required\"";
            Err(layers.error("serve.tokens_claim", claim.clone(), why))
        }
        (TokenMode::Required, _) if !has_keys => {
            let why = "needs a key to verify tokens: set one of identity.jwt_secret_file, jwt_public_key_file and \
                       jwt_jwks_file";
            Err(layers.error("serve.tokens", "required".to_owned(), why))
        }
        (TokenMode::Required, claim) => Ok(Some(claim.as_deref().unwrap_or("shapes").to_owned())),
    }
}

fn check_delete(serve: &ServeSection, has_tokens: bool, layers: &SettingLayers) -> Result<bool, ValueError> {
    if serve.allow_delete && has_tokens && serve.secret.is_none() {
        let why = "has no effect: tokens can't grant it, and serve.secret is not set";
        return Err(layers.error("serve.allow_delete", "true".to_owned(), why));
    }
    Ok(serve.allow_delete)
}

fn check_listen(
    serve: &ServeSection,
    has_tokens: bool,
    layers: &SettingLayers,
) -> Result<SocketAddr, ValueError> {
    let address = serve.listen;
    if !address.ip().is_loopback() && serve.secret.is_none() && !has_tokens && !serve.insecure {
        let why = "can be reached from other machines, which could read every table: set a secret in \
                   FOREBAY_SERVE_SECRET, or require tokens (serve.tokens), or use a loopback address, or use \
                   --insecure if a proxy before it controls access";
        return Err(layers.error("serve.listen", address.to_string(), why));
    }
    Ok(address)
}

/// Checks the number of concurrent snapshots. If it exceeded the connections for them, snapshots
/// would time out waiting for one.
fn check_snapshots(given: Option<u32>, most: u32, layers: &SettingLayers) -> Result<usize, ValueError> {
    match given {
        Some(given) if given > most => {
            let why = format!(
                "is more than the {most} that database.pool_size and max_connections have connections for: \
                 increase that, too"
            );
            Err(layers.error("serve.snapshots", given.to_string(), why))
        }
        given => Ok(given.unwrap_or(most) as usize),
    }
}
