//! The settings of `forebay serve`, checked.

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
use super::access::{AdmissionConfig, IdentityConfig, Proxies, QuotaConfig};
use super::borrowed::VariableNotice;
use super::check::{Check, ValueError};
use super::database::{check_database, snapshots};
use super::layers::Layers;
use super::otel::{OtelConfig, check_otel};
use super::running::{check_admin, check_http, check_log, check_secret, check_tls};
use super::said::Said;
use super::serve_file::{ServeFile, ServeSection};
use super::storage::check_storage;
use crate::logging::LogConfig;
use crate::tls::TlsCertificate;

pub(super) const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3000);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 3001);
/// A page of a browser has a stream for each of its shapes.
const PER_USER: u32 = 100;
const A_YEAR_S: u32 = 365 * 24 * 60 * 60;

/// Everything that a server of shapes needs to know; `serve.example.toml` says what each bounds and why its default is what it
/// is.
#[derive(Debug)]
pub struct ServeConfig {
    /// Which database is followed, and how.
    pub manager: ManagerConfig,
    /// Where shapes are kept.
    pub store: StoreConfig,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// What clients see of us, if they come by TLS.
    pub tls: Option<Arc<TlsCertificate>>,
    /// Where operators look.
    pub admin: Option<SocketAddr>,
    /// What operators must show there.
    pub admin_secret: Option<Secret>,
    /// What clients must show; there is one if others than this machine can connect, unless the operator insisted.
    pub secret: Option<Secret>,
    /// The claim of tokens that says what their bearers may read, if a token must be shown.
    pub tokens: Option<String>,
    /// Whether the operator insisted to serve whoever comes.
    pub insecure: bool,
    /// Whether clients may delete shapes.
    pub allow_delete: bool,
    /// How long a live request waits for a change.
    pub long_poll: Duration,
    /// How often a silent event stream says that it lives.
    pub sse_keep_alive: Duration,
    /// When an event stream ends.
    pub sse_timeout: Duration,
    /// How long a cache may give what is not live without asking, in seconds.
    pub max_age_s: u32,
    /// And for how long after that, while it asks, in seconds.
    pub stale_age_s: u32,
    /// Pool connections at a time, of all instances together; `None`: as many as their pools want.
    pub max_connections: Option<u32>,
    /// Pool connections opened a second, by all instances together.
    pub connections_per_second: u32,
    /// How long a table stays in the publication after its last shape; `None`: for ever.
    pub unpublish_after: Option<Duration>,
    /// How many snapshots are taken at once: at least one, and at most as many as there are connections for them.
    pub snapshots: usize,
    /// How clients' connections are served.
    pub http: HttpServerConfig,
    /// Who may hold a stream.
    pub admission: AdmissionConfig,
    /// How this instance counts with others.
    pub quota: QuotaConfig,
    /// How a user is known.
    pub identity: IdentityConfig,
    /// How long the end may take after the first signal.
    pub drain_timeout: Duration,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces and metrics go.
    pub otel: Option<OtelConfig>,
    /// Other programs' variables that are set.
    pub borrowed: Vec<VariableNotice>,
    /// All of it as it was said, to find out later what has changed.
    pub said: Said,
    /// A page for people at `/` of the clients' address; only `forebay dev` has one.
    pub(crate) home: Option<fn() -> Response<Bytes>>,
    /// Whether slot and publication are dropped at the end, as `forebay dev` does with its own.
    pub(crate) leaves_nothing: bool,
}

impl TryFrom<Layers<ServeFile>> for ServeConfig {
    type Error = ConfigError;

    fn try_from(layers: Layers<ServeFile>) -> Result<ServeConfig, ConfigError> {
        let (borrowed, said) = (layers.notices().to_vec(), layers.said());
        let (file, origins) = layers.finish()?;
        Ok(ServeConfig { borrowed, said, ..check_all(&file, &Check { origins })? })
    }
}

fn check_all(file: &ServeFile, check: &Check) -> Result<ServeConfig, ValueError> {
    let serve = &file.serve;
    let manager = check_database(&file.database, check)?;
    let secret = check_secret("serve.secret", serve.secret.as_ref(), check)?;
    let proxies = Proxies::check(
        ("serve.trusted_proxies", serve.trusted_proxies.as_ref()),
        ("serve.forwarded_by", serve.forwarded_by.as_ref()),
        check,
    )?;
    let identity = IdentityConfig::check(&file.identity, &proxies, check)?;
    let tokens = check_tokens(serve, identity.ways.contains(&"jwt"), check)?;
    let seconds = |key, given_ms, default_s| check.duration(key, given_ms, Duration::from_secs(default_s));
    let body = seconds("serve.request_idle_timeout_ms", serve.request_idle_timeout_ms, 30)?;
    let mut http = check_http(&file.http, body, check)?;
    http.drain_timeout = seconds("serve.drain_timeout_ms", serve.drain_timeout_ms, 25)?;
    let mut admission = AdmissionConfig::check(&file.admission, PER_USER, !identity.ways.is_empty(), check)?;
    // A gate before this server may count in the same store, and the same stream must not count twice.
    admission.builder = admission.builder.name("shapes");
    let defaults = ShapeConfig::default();
    Ok(ServeConfig {
        manager,
        store: check_storage(&file.storage, check)?,
        listen: check_listen(serve, secret.is_some() || tokens.is_some(), check)?,
        tls: check_tls(
            ("serve.tls_cert_file", serve.tls_cert_file.as_ref()),
            ("serve.tls_key_file", serve.tls_key_file.as_ref()),
            check,
        )?,
        admin: check_admin(&file.admin, ADMIN, check)?,
        admin_secret: check_secret("admin.secret", file.admin.secret.as_ref(), check)?,
        allow_delete: check_delete(serve, secret.is_none() && tokens.is_some(), check)?,
        secret,
        tokens,
        insecure: serve.insecure == Some(true),
        long_poll: check.duration("serve.long_poll_ms", serve.long_poll_ms, defaults.long_poll)?,
        sse_keep_alive: check.duration(
            "serve.sse_keep_alive_ms",
            serve.sse_keep_alive_ms,
            defaults.sse_keep_alive,
        )?,
        sse_timeout: check.duration("serve.sse_timeout_ms", serve.sse_timeout_ms, defaults.sse_timeout)?,
        max_age_s: age("serve.max_age_s", serve.max_age_s, defaults.max_age_s, check)?,
        stale_age_s: age("serve.stale_age_s", serve.stale_age_s, defaults.stale_age_s, check)?,
        max_connections: file.database.max_connections.filter(|most| *most > 0),
        connections_per_second: check.count(
            "database.connections_per_second",
            file.database.connections_per_second,
            100,
        )?,
        unpublish_after: match file.database.unpublish_after_ms {
            Some(0) => None,
            given => Some(seconds("database.unpublish_after_ms", given, 600)?),
        },
        snapshots: check_snapshots(file, check)?,
        drain_timeout: http.drain_timeout,
        http,
        admission,
        quota: QuotaConfig::check(&file.redis, &file.quota, check)?,
        identity,
        log: check_log(&file.log, check)?,
        otel: check_otel(&file.otel, cfg!(feature = "otel"), check)?,
        borrowed: Vec::new(),
        said: Said::default(),
        home: None,
        leaves_nothing: false,
    })
}

/// The claim, if tokens are required.
fn check_tokens(serve: &ServeSection, has_keys: bool, check: &Check) -> Result<Option<String>, ValueError> {
    const KEY: &str = "serve.tokens";
    const CLAIM: &str = "serve.tokens_claim";
    let is_required = check.choice(KEY, serve.tokens.as_ref(), &[("off", false), ("required", true)])?;
    let claim = serve.tokens_claim.as_ref();
    match claim {
        Some(claim) if claim.trim().is_empty() => Err(check.wrong(CLAIM, claim.clone(), "must name a claim")),
        Some(claim) if !is_required => {
            let why = "has no effect unless serve.tokens is \"required\"";
            Err(check.wrong(CLAIM, claim.clone(), why))
        }
        _ if is_required && !has_keys => {
            let why = "needs a key to verify tokens with: name one of identity.jwt_secret_file, jwt_public_key_file and \
                       jwt_jwks_file";
            Err(check.wrong(KEY, serve.tokens.clone(), why))
        }
        claim => Ok(is_required.then(|| claim.map_or("shapes", String::as_str).to_owned())),
    }
}

fn check_delete(serve: &ServeSection, by_tokens_only: bool, check: &Check) -> Result<bool, ValueError> {
    let allowed = serve.allow_delete.unwrap_or(false);
    if allowed && by_tokens_only {
        let why = "has no effect: no token grants it, and there is no serve.secret to show";
        return Err(check.wrong("serve.allow_delete", "true".to_owned(), why));
    }
    Ok(allowed)
}

fn check_listen(serve: &ServeSection, has_secret: bool, check: &Check) -> Result<SocketAddr, ValueError> {
    const KEY: &str = "serve.listen";
    let address = check.address(KEY, serve.listen.as_ref(), LISTEN)?;
    if !address.ip().is_loopback() && !has_secret && serve.insecure != Some(true) {
        let why = "is beyond this machine, and whoever reaches it could read every table: set a secret in \
                   FOREBAY_SERVE_SECRET, or require tokens (serve.tokens), or choose a loopback address, or say --insecure if something before it decides \
                   who may";
        return Err(check.wrong(KEY, address.to_string(), why));
    }
    Ok(address)
}

fn age(key: &'static str, given_s: Option<u32>, default_s: u32, check: &Check) -> Result<u32, ValueError> {
    match given_s {
        Some(age) if age > A_YEAR_S => {
            Err(check.wrong(key, age.to_string(), format!("must be 0 to {A_YEAR_S} seconds")))
        }
        given => Ok(given.unwrap_or(default_s)),
    }
}

/// More than there are connections for would only fail later, when they have waited for one.
fn check_snapshots(file: &ServeFile, check: &Check) -> Result<usize, ValueError> {
    let most = snapshots(&file.database, check)?;
    let given = file.serve.snapshots;
    if given.is_some_and(|given| given > most) {
        let why =
            format!("is more than the {most} that database.pool_size has connections for: raise that, too");
        return Err(check.wrong("serve.snapshots", given.map(|given| given.to_string()), why));
    }
    Ok(check.count("serve.snapshots", given, most)? as usize)
}
