//! Config file of `forebay gate`.

use std::path::PathBuf;

use serde::Deserialize;

use super::field_names::field_names;
use super::imported_variables::{self, ImportedSettings, UnreadableVariable};
use super::opentelemetry_variables::OPENTELEMETRY_VARIABLES;
use super::settings_file::{
    AdminSection, AdmissionSection, HttpSection, IdentitySection, LogSection, OtelSection, QuotaSection,
    RedisSection, SectionKeys, SettingsFile, common_sections,
};

/// The whole file.
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

impl SettingsFile for GateFile {
    fn sections() -> Vec<SectionKeys> {
        field_names::<GateFile>()
            .iter()
            .copied()
            .zip([field_names::<GateSection>()].into_iter().chain(common_sections()))
            .collect()
    }

    fn import_variables(variables: &[(String, String)]) -> Result<ImportedSettings, UnreadableVariable> {
        imported_variables::import(variables, &[OPENTELEMETRY_VARIABLES])
    }
}

/// The reverse proxy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GateSection {
    /// Address for clients. Default `127.0.0.1:8080`: reachable from this machine only.
    pub(crate) listen: Option<String>,
    /// PEM file with the certificate for clients and its chain. It is reloaded when it changes.
    /// Default none: plain HTTP.
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    pub(crate) tls_key_file: Option<PathBuf>,
    /// URL of the service behind the gate, `http://HOST:PORT`. Required.
    pub(crate) upstream: Option<String>,
    /// Routes whose requests take a permit, each `METHOD PATH [CLASS]`. The first match counts. For
    /// a path that servers interpret differently, the match whose class has the smallest share
    /// counts. A class is refused above its share in `class_percent`. Default none: every request
    /// takes a permit, because a missing limit would go unnoticed until an overload.
    pub(crate) stream_routes: Option<Vec<String>>,
    /// `Host` header for the upstream: `preserve` (the client's `Host`; the default, because
    /// applications build links and check origins with it) or `upstream`.
    pub(crate) host: Option<String>,
    /// Addresses and networks of the proxies whose headers about clients are trusted. Default none.
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// Header that the trusted proxies write: `x-forwarded-for` (the default, as most do) or
    /// `forwarded` (RFC 7239). The other one is ignored, because proxies pass it on unchanged from
    /// the client.
    pub(crate) forwarded_by: Option<String>,
    /// Header that passes the verified user to the upstream. Default none: it is not passed.
    pub(crate) forward_user_header: Option<String>,
    /// Timeout for connecting to the upstream. Default 5,000: longer than the retransmission of one
    /// lost packet.
    pub(crate) connect_timeout_ms: Option<u64>,
    /// Time from the last progress of a request to the head of its response. Default 60,000:
    /// language models may take long before the first byte.
    pub(crate) response_timeout_ms: Option<u64>,
    /// Time without data from a client whose request body is incomplete. Default 30,000; then 408.
    pub(crate) request_idle_timeout_ms: Option<u64>,
    /// Time after which an idle connection to the upstream is closed. Default 4,000: below the 5 s
    /// of uvicorn and Node.js, so that few requests use a connection that the upstream closes.
    pub(crate) upstream_idle_timeout_ms: Option<u64>,
    /// Maximum number of idle connections to the upstream. Default 256. Above it, the oldest is
    /// closed.
    pub(crate) upstream_max_idle: Option<u32>,
    /// Maximum number of open connections to the upstream. Default 16,384; above it 503. Set it
    /// above `admission.total`: other requests need connections, too.
    pub(crate) upstream_max_connections: Option<u32>,
    /// Time that open streams may continue after SIGTERM. Default 25,000: Kubernetes allows 30 s,
    /// and the rest is for cutting streams and returning their permits. New requests are accepted
    /// in the first half of it, at most.
    pub(crate) drain_timeout_ms: Option<u64>,
}
