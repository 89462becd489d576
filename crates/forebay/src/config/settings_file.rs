//! The trait of config files, and the sections that `forebay gate` and `forebay serve` both have.
//!
//! Every key is optional here. `gate.rs` and `serve.rs` report missing and invalid values.
//!
//! Each key is also an environment variable: `gate.listen` is `FOREBAY_GATE_LISTEN`. Commas
//! separate the items of a list.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::field_names::field_names;
use super::imported_variables::{ImportedSettings, UnreadableVariable};
use super::secret_text::SecretText;

/// Name and keys of a section. The keys come from serde, so that they are listed only once.
pub(crate) type SectionKeys = (&'static str, &'static [&'static str]);

/// A config file of a command.
pub(crate) trait SettingsFile: DeserializeOwned + fmt::Debug {
    /// Returns all sections with their keys.
    fn sections() -> Vec<SectionKeys>;

    /// Returns the settings from variables of other programs. `FOREBAY_` variables override them.
    /// An empty variable is ignored.
    ///
    /// # Errors
    /// Fails if a value can't be parsed.
    fn import_variables(variables: &[(String, String)]) -> Result<ImportedSettings, UnreadableVariable>;
}

/// Returns the keys of the sections that every command has, in the order of the sections.
pub(super) fn common_sections() -> [&'static [&'static str]; 8] {
    [
        field_names::<HttpSection>(),
        field_names::<AdmissionSection>(),
        field_names::<IdentitySection>(),
        field_names::<RedisSection>(),
        field_names::<QuotaSection>(),
        field_names::<AdminSection>(),
        field_names::<LogSection>(),
        field_names::<OtelSection>(),
    ]
}

/// Connections of clients.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpSection {
    /// Maximum number of open client connections. Above it, a new connection gets 503 and is
    /// closed; with TLS, it is closed without a response. Default 16,384.
    pub(crate) max_connections: Option<u32>,
    /// Time in which the head of a request must arrive. Default 10,000: it bounds what a slow-loris
    /// client costs.
    pub(crate) header_timeout_ms: Option<u64>,
    /// Maximum size of the head of a request; above it 431. Default 32,768, four times the limit of
    /// common servers. Allowed: 8,192 to 16 Mi.
    pub(crate) max_header_bytes: Option<u32>,
    /// Maximum number of headers of a request; above it 431. Default 100. At most 1,024, because
    /// each request allocates space for all of them.
    pub(crate) max_headers: Option<u32>,
    /// Time after which a client that reads nothing of its response is disconnected. Default
    /// 30,000.
    pub(crate) write_timeout_ms: Option<u64>,
    /// Time after which an idle connection is closed. Default 60,000.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// Time that an idle connection stays open after SIGTERM, for a request that is already on the
    /// way. Default 500. At most half of the time that the server has to close.
    pub(crate) drain_grace_ms: Option<u64>,
}

/// Limits for streams.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdmissionSection {
    /// Maximum number of streams in the cluster. Default 10,000; above it 503.
    pub(crate) total: Option<u32>,
    /// Maximum number of streams of one user in the cluster; above it 429. It needs a method in
    /// `[identity]`. Default 3 for a gate, 100 for `forebay serve`, where a web page has one stream
    /// for each shape.
    pub(crate) per_user: Option<u32>,
    /// Share of the total from which the state is `degraded`. Default 70, early enough to add
    /// machines.
    pub(crate) degraded_percent: Option<u8>,
    /// Share of the total from which the state is `critical`. Default 90.
    pub(crate) critical_percent: Option<u8>,
    /// Share of the total above which requests of a class are refused, so that the rest is left for
    /// other classes. A user or a route has a class. If both have one, the smaller share counts.
    /// Default `anonymous` 90 if an identity method is configured, else 100; all other classes 100.
    pub(crate) class_percent: Option<BTreeMap<String, u8>>,
    /// Time that a request may wait for a permit; then 503. Default 0: it does not wait.
    pub(crate) wait_ms: Option<u64>,
    /// Maximum number of waiting requests. Default 1,024. Further ones are refused at once.
    pub(crate) max_waiting: Option<u32>,
    /// Maximum number of waiting requests of one user. Default 8.
    pub(crate) max_waiting_per_user: Option<u32>,
    /// Share of the available memory above which this process refuses new streams. Default 95; 0 is
    /// no limit.
    pub(crate) max_memory_percent: Option<u8>,
    /// Share of the available CPU time, over 5 s, above which this process refuses new streams.
    /// Default none: a busy process is not yet overloaded.
    pub(crate) max_cpu_percent: Option<u8>,
}

/// Identification of users. Each method is off by default. The first method that finds a user
/// decides, in this order. Without any method, only the total limit applies. A wrong credential is
/// refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IdentitySection {
    /// File with the secret of signed tokens (HS256 and longer), at least 32 bytes. A line break at
    /// its end is ignored.
    pub(crate) jwt_secret_file: Option<PathBuf>,
    /// PEM file with the public key of signed tokens (RSA, P-256, P-384, Ed25519).
    pub(crate) jwt_public_key_file: Option<PathBuf>,
    /// File with a JSON Web Key Set. It is reloaded when it changes.
    pub(crate) jwt_jwks_file: Option<PathBuf>,
    /// Claim with the user. Default `sub`.
    pub(crate) jwt_user_claim: Option<String>,
    /// Claim with the class of the user. Default none.
    pub(crate) jwt_class_claim: Option<String>,
    /// Issuers whose tokens are accepted. Default any.
    pub(crate) jwt_issuers: Option<Vec<String>>,
    /// Audiences whose tokens are accepted. Default none: tokens with an audience are refused.
    pub(crate) jwt_audiences: Option<Vec<String>>,
    /// File with API keys, one line `SHA256 USER [CLASS]` for each. `printf %s KEY | sha256sum`
    /// prints the hash.
    pub(crate) api_keys_file: Option<PathBuf>,
    /// Header with the API key. Default `X-API-Key`.
    pub(crate) api_key_header: Option<String>,
    /// Header in which trusted proxies send the user, such as `X-User-ID`. Default none.
    pub(crate) user_header: Option<String>,
    /// Header in which trusted proxies send the class of the user. Default none.
    pub(crate) class_header: Option<String>,
    /// Identifies all other clients by their IP address (IPv6: the /64 network). Default false:
    /// many users may share an address.
    pub(crate) by_address: Option<bool>,
}

/// The Redis server that instances share.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedisSection {
    /// URL: `redis://`, `rediss://` or `unix://`. Default none: the limits of this instance are its
    /// own, counted in memory.
    pub(crate) url: Option<SecretText>,
    /// Prefix of all keys. Instances with the same namespace share their limits. Default `forebay`.
    pub(crate) namespace: Option<String>,
}

/// Membership of this instance in the cluster.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuotaSection {
    /// Name of this instance, unique in the cluster and the same after a restart. Default: host
    /// name and address. With the same name, the permits of the previous process are free at once.
    pub(crate) member: Option<String>,
    /// Behavior while Redis is unavailable: `share` (an equal part of the limit for each instance;
    /// the default), `closed` (no new streams) or `open` (no limit).
    pub(crate) policy: Option<String>,
    /// Interval of the heartbeats to Redis. Default 2,000.
    pub(crate) beat_ms: Option<u64>,
    /// Time after the last heartbeat until an instance expires and its permits are free. Default
    /// 10,000: four heartbeats may be lost.
    pub(crate) ttl_ms: Option<u64>,
}

/// The admin address, for operators.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdminSection {
    /// Address of the dashboard (`/`), `/healthz`, `/readyz`, `/metrics` and `/v1/status`; `off`
    /// for none. Default `127.0.0.1:8081` for a gate, `127.0.0.1:3001` for `forebay serve`: the
    /// port after the one for clients.
    pub(crate) listen: Option<String>,
    /// Password of the admin address, for any user name or as a bearer token. `/healthz` and the
    /// status of `/readyz` need no password; the reason in `/readyz` and everything else does.
    /// Default none: then `listen` must be a loopback address, unless `insecure` is set.
    pub(crate) secret: Option<SecretText>,
    /// Allows an address that other machines can reach, without a secret. Every client that can
    /// connect can then read the status and the metrics. Default false.
    pub(crate) insecure: Option<bool>,
}

/// The log, on standard error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// `text` (the default) or `json`.
    pub(crate) format: Option<String>,
    /// Minimum level, `error` … `trace`, or a list such as `info,forebay_serve=debug`. SIGHUP
    /// reloads it. Default `info`.
    pub(crate) filter: Option<String>,
}

/// Export of traces and metrics by OTLP over HTTP. It needs a build with the feature `otel`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OtelSection {
    /// URL of the collector, such as `http://127.0.0.1:4318`. `/v1/traces` and `/v1/metrics` are
    /// appended. Default none: nothing is sent.
    pub(crate) endpoint: Option<String>,
    /// Headers for the collector, `NAME=VALUE,NAME=VALUE`. `%XX` in values is decoded. Default
    /// none.
    pub(crate) headers: Option<SecretText>,
    /// Service name in the exported data. Default `forebay`.
    pub(crate) service_name: Option<String>,
    /// Interval of the metrics export. Default 10,000.
    pub(crate) interval_ms: Option<u64>,
    /// Percentage of the traces that start here and are sent. A trace that started elsewhere is
    /// sent if its sampled flag is set. Default 100.
    pub(crate) sample_percent: Option<f64>,
}
