//! The shape of the gate's config file, and the sections that other commands have as well. Everything is optional; `gate.rs`
//! and `serve.rs` beside it say what is missing or wrong.
//!
//! Each key is also an environment variable: `gate.listen` is `FOREBAY_GATE_LISTEN`. Lists are parted by commas there.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::borrowed::{self, Borrowed, Misread};
use super::fields::fields_of;
use super::hidden::Hidden;
use super::opentelemetry;

/// A section and its keys, as serde sees them: nothing is listed twice.
pub(crate) type Section = (&'static str, &'static [&'static str]);

/// What the file of a command may hold.
pub(crate) trait Shape: DeserializeOwned + fmt::Debug {
    /// All sections.
    fn sections() -> Vec<Section>;

    /// What variables of other programs say. Our own are stronger, and an empty one says nothing.
    ///
    /// # Errors
    /// When a text can't be read.
    fn borrowed(variables: &[(String, String)]) -> Result<Borrowed, Misread>;
}

/// All of `forebay gate`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GateFile {
    pub(crate) gate: GateSection,
    pub(crate) http: HttpSection,
    pub(crate) admission: AdmissionSection,
    pub(crate) identity: IdentitySection,
    pub(crate) redis: RedisSection,
    pub(crate) quota: QuotaSection,
    pub(crate) admin: AdminSection,
    pub(crate) log: LogSection,
    pub(crate) otel: OtelSection,
}

impl Shape for GateFile {
    fn sections() -> Vec<Section> {
        fields_of::<GateFile>()
            .iter()
            .copied()
            .zip([fields_of::<GateSection>()].into_iter().chain(shared()))
            .collect()
    }

    fn borrowed(variables: &[(String, String)]) -> Result<Borrowed, Misread> {
        borrowed::read(variables, &[opentelemetry::KNOWN])
    }
}

/// The keys of what every command has, in the order of its sections.
pub(super) fn shared() -> [&'static [&'static str]; 8] {
    [
        fields_of::<HttpSection>(),
        fields_of::<AdmissionSection>(),
        fields_of::<IdentitySection>(),
        fields_of::<RedisSection>(),
        fields_of::<QuotaSection>(),
        fields_of::<AdminSection>(),
        fields_of::<LogSection>(),
        fields_of::<OtelSection>(),
    ]
}

/// The reverse proxy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GateSection {
    /// Where clients connect. Default `127.0.0.1:8080`: on this machine only, until told.
    pub(crate) listen: Option<String>,
    /// A PEM file with the certificate that clients see, and those that lead to an authority; read again when it changes. Default none:
    /// plain HTTP.
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// A PEM file with its key.
    pub(crate) tls_key_file: Option<PathBuf>,
    /// The service behind the gate, `http://HOST:PORT`. No default; the one thing that must be said.
    pub(crate) upstream: Option<String>,
    /// The routes that take a permit, each `METHOD PATH [CLASS]`; the first that matches counts (of a path that servers read
    /// in several ways, the one whose class has the smallest share), and its class stops where
    /// `class_percent` says. Default none, and then every request takes a permit while it runs: a limit that holds too widely
    /// is seen at once, one that holds nowhere is not.
    pub(crate) stream_routes: Option<Vec<String>>,
    /// What the upstream sees as `Host`: `preserve` (what the client asked for; the default, since apps build links and
    /// check origins with it) or `upstream`.
    pub(crate) host: Option<String>,
    /// Addresses and networks of the proxies whose word about clients counts. Default none.
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// Which header they write: `x-forwarded-for` (the default, as most do) or `forwarded` (RFC 7239). The other is never
    /// believed, since they pass it on as the client wrote it.
    pub(crate) forwarded_by: Option<String>,
    /// The header in which the upstream is told the verified user. Default none: it is told nothing.
    pub(crate) forward_user_header: Option<String>,
    /// From the start of a dial to the upstream to its end. Default 5,000: longer than one lost packet takes.
    pub(crate) connect_timeout_ms: Option<u64>,
    /// From the end of a request to the head of its response. Default 60,000: models may think before they speak.
    pub(crate) response_timeout_ms: Option<u64>,
    /// How long a client that owes its request's body may send nothing. Default 30,000; then 408.
    pub(crate) request_idle_timeout_ms: Option<u64>,
    /// How long a connection to the upstream may wait for its next request. Default 4,000: below the 5 s after which
    /// uvicorn and Node.js close theirs, so that few requests meet a closed one.
    pub(crate) upstream_idle_timeout_ms: Option<u64>,
    /// How many connections to the upstream may wait. Default 256; beyond it the oldest is closed.
    pub(crate) upstream_max_idle: Option<u32>,
    /// How many connections to the upstream may be open. Default 16,384; beyond it 503. Above the streams that admission
    /// lets in, with room for requests that are none.
    pub(crate) upstream_max_connections: Option<u32>,
    /// How long open streams may go on after SIGTERM. Default 25,000: what is left of the 30 s that Kubernetes grants is for
    /// cutting them, and for giving back what they held. New requests are answered in the first half of it at most.
    pub(crate) drain_timeout_ms: Option<u64>,
}

/// How clients' connections are served.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpSection {
    /// How many may be open; more are closed at once. Default 16,384.
    pub(crate) max_connections: Option<u32>,
    /// From the first wait for a request's head to its end. Default 10,000: what a slow-loris client may cost.
    pub(crate) header_timeout_ms: Option<u64>,
    /// How large a request's head may be; beyond it 431. Default 32,768, four times what common servers take; 8,192 to
    /// 16 Mi.
    pub(crate) max_header_bytes: Option<u32>,
    /// How many headers it may have; beyond it 431. Default 100; at most 1,024, since each request has room for all of them.
    pub(crate) max_headers: Option<u32>,
    /// How long a client may take none of what is written to it, before it is closed. Default 30,000.
    pub(crate) write_timeout_ms: Option<u64>,
    /// How long a connection may wait for its next request. Default 60,000.
    pub(crate) idle_timeout_ms: Option<u64>,
    /// How long a connection without a request stays open after SIGTERM, for a request that is on its way. Default 500; at most half
    /// of the time that the server has to close.
    pub(crate) drain_grace_ms: Option<u64>,
}

/// Who may hold a stream.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdmissionSection {
    /// Streams in the whole cluster. Default 10,000; the next gets 503.
    pub(crate) total: Option<u32>,
    /// Streams of one user in the whole cluster. Default 3 at a gate, 100 where shapes are served, since a page has one for each
    /// shape; the next gets 429. It needs an identity, below.
    pub(crate) per_user: Option<u32>,
    /// From which part of the total on the state is `degraded`. Default 70, early enough to add machines.
    pub(crate) degraded_percent: Option<u8>,
    /// From which part of the total on the state is `critical`. Default 90.
    pub(crate) critical_percent: Option<u8>,
    /// From which part of the total on visitors of a class, or whoever asks for a route of it, are refused, so that the rest
    /// is left for others; of the visitor's and the route's, the smaller part holds. Default `anonymous` 90 if users can be
    /// known, 100 if nobody can; all other classes 100.
    pub(crate) class_percent: Option<BTreeMap<String, u8>>,
    /// How long a visitor may wait for a place before the 503. Default 0: not at all.
    pub(crate) wait_ms: Option<u64>,
    /// How many may wait. Default 1,024; more are refused at once.
    pub(crate) max_waiting: Option<u32>,
    /// How many of one user may wait. Default 8.
    pub(crate) max_waiting_per_user: Option<u32>,
    /// Beyond which part of the memory that it may have this process takes no new streams. Default 95; 0 for no bound.
    pub(crate) max_memory_percent: Option<u8>,
    /// Beyond which part of its CPUs, over 5 s, it takes no new streams. Default none: busy is not overloaded.
    pub(crate) max_cpu_percent: Option<u8>,
}

/// How a user is known, each way opt-in; the first that finds one decides, in this order. Without any, only the total
/// holds. A credential that is given and wrong is refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IdentitySection {
    /// A file with the secret of signed tokens (HS256 and longer), at least 32 bytes; a line break at its end is ignored.
    pub(crate) jwt_secret_file: Option<PathBuf>,
    /// A PEM file with the public key of signed tokens (RSA, P-256, P-384, Ed25519).
    pub(crate) jwt_public_key_file: Option<PathBuf>,
    /// A JSON Web Key Set; read again when it changes.
    pub(crate) jwt_jwks_file: Option<PathBuf>,
    /// The claim that names the user. Default `sub`.
    pub(crate) jwt_user_claim: Option<String>,
    /// The claim that names the user's class. Default none.
    pub(crate) jwt_class_claim: Option<String>,
    /// Only tokens of these issuers. Default any.
    pub(crate) jwt_issuers: Option<Vec<String>>,
    /// Only tokens for these audiences. Default none, and then tokens that name an audience are refused.
    pub(crate) jwt_audiences: Option<Vec<String>>,
    /// A file with a line for each API key, `SHA256 USER [CLASS]`; `printf %s KEY | sha256sum` makes the first word.
    pub(crate) api_keys_file: Option<PathBuf>,
    /// The header that carries the key. Default `X-API-Key`.
    pub(crate) api_key_header: Option<String>,
    /// The header in which trusted proxies tell the user, such as `X-User-ID`. Default none.
    pub(crate) user_header: Option<String>,
    /// The header in which they tell the user's class. Default none.
    pub(crate) class_header: Option<String>,
    /// Takes everybody else for their address (of IPv6, its /64). Default false: behind one address may be many.
    pub(crate) by_address: Option<bool>,
}

/// Where instances meet.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedisSection {
    /// `redis://`, `rediss://` or `unix://`. Default none: this instance counts alone, in memory.
    pub(crate) url: Option<Hidden>,
    /// Instances with the same one share their limits; it begins every key. Default `forebay`.
    pub(crate) namespace: Option<String>,
}

/// How this instance takes part.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuotaSection {
    /// The stable name of this instance, its own among all. Default host name and port: after a restart the same, so that
    /// what the last process held is free at once.
    pub(crate) member: Option<String>,
    /// What holds while Redis is away: `closed`, `share` (the default) or `open`.
    pub(crate) policy: Option<String>,
    /// How often it tells Redis that it lives. Default 2,000.
    pub(crate) beat_ms: Option<u64>,
    /// How long it is believed: what a dead instance held is free after that. Default 10,000, so that four beats may be
    /// lost.
    pub(crate) ttl_ms: Option<u64>,
}

/// For operators.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdminSection {
    /// Where `/healthz`, `/readyz`, `/metrics` and `/v1/status` are. Default `127.0.0.1:8081` for a gate, `127.0.0.1:3001` for a
    /// server of shapes, beside the port for clients; `off` for nowhere.
    pub(crate) listen: Option<String>,
    /// What operators must show there, as the password of any user or as a bearer's token; all but `/healthz`, and of `/readyz` the
    /// reason, asks for it. Default none, and then only this machine is answered.
    pub(crate) secret: Option<Hidden>,
    /// Allows an address beyond this machine without a secret: whoever reaches it may read thread ids and figures. Default false.
    pub(crate) insecure: Option<bool>,
}

/// What is logged, to standard error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogSection {
    /// `text` (the default) or `json`.
    pub(crate) format: Option<String>,
    /// The least level, `error` … `trace`, or a list such as `info,forebay_serve=debug`; read again on SIGHUP. Default
    /// `info`.
    pub(crate) filter: Option<String>,
}

/// Where traces and metrics are sent, by OTLP over HTTP; only in a program that was built with the feature `otel`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OtelSection {
    /// The collector, such as `http://127.0.0.1:4318`; `/v1/traces` and `/v1/metrics` are added to it. Default none: nothing is sent.
    pub(crate) endpoint: Option<String>,
    /// What the collector must be shown, `NAME=VALUE,NAME=VALUE`; of values, `%XX` is resolved. Default none.
    pub(crate) headers: Option<Hidden>,
    /// What this service is called there. Default `forebay`.
    pub(crate) service_name: Option<String>,
    /// How often metrics are sent. Default 10,000.
    pub(crate) interval_ms: Option<u64>,
    /// How many traces that begin here are sent, in percent; one that began elsewhere is sent if it is sampled there. Default 100.
    pub(crate) sample_percent: Option<f64>,
}
