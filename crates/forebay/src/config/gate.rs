//! Checked settings of `forebay gate`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::{AdaptiveSignals, Class, Secret};
use forebay_gate::{MAX_METRIC_LABELS, MetricLabel, MetricLabelError, StreamRoute, UpstreamConfig};
use forebay_settings::{ExplicitSettings, SettingLayers, Suggestion, ValueError, VariableNotice, nearest};
use forebay_stream::HttpServerConfig;
use http::uri::{Authority, Scheme, Uri};

use super::ConfigError;
use super::admission::AdmissionConfig;
use super::identity::{IdentityConfig, TrustedProxies};
use super::otel_config::{OtelConfig, check_otel};
use super::quota::QuotaConfig;
use super::sections::{GateSection, GateSettings, HostHeader, IdentitySection};
use super::server_settings::{check_admin, check_tls, http_config};
use crate::logging::LogConfig;
use crate::tls::TlsCertificate;

/// Checked settings of `forebay gate`. `forebay gate --example-config` explains each key.
#[derive(Debug)]
pub struct GateConfig {
    /// Address for clients.
    pub listen: SocketAddr,
    /// Certificate and key; `None`: plain HTTP.
    pub tls: Option<Arc<TlsCertificate>>,
    /// The reverse proxy.
    pub proxy: forebay_gate::Config,
    /// Time that streams may continue after the first signal.
    pub drain_timeout: Duration,
    /// Connections of clients.
    pub http: HttpServerConfig,
    /// Limits for streams.
    pub admission: AdmissionConfig,
    /// Identity methods.
    pub identity: IdentityConfig,
    /// Membership in the cluster.
    pub quota: QuotaConfig,
    /// Admin address; `None`: off.
    pub admin: Option<SocketAddr>,
    /// Password of the admin address.
    pub admin_secret: Option<Secret>,
    /// Log format and filter.
    pub log: LogConfig,
    /// Export of traces and metrics.
    pub otel: Option<OtelConfig>,
    /// Variables of other programs that are set.
    pub variable_notices: Vec<VariableNotice>,
    /// All explicit settings, to detect changes on reload.
    pub explicit_settings: ExplicitSettings,
}

impl TryFrom<SettingLayers> for GateConfig {
    type Error = ConfigError;

    fn try_from(layers: SettingLayers) -> Result<GateConfig, ConfigError> {
        Ok(check_all(GateSettings::read(&layers)?, &layers)?)
    }
}

fn check_all(settings: GateSettings, layers: &SettingLayers) -> Result<GateConfig, ValueError> {
    let GateSettings { gate, http, admin, .. } = settings;
    let proxies = TrustedProxies {
        key: "gate.trusted_proxies",
        networks: &gate.trusted_proxies,
        forwarded_by: gate.forwarded_by,
    };
    let identity = IdentityConfig::check(&settings.identity, &proxies, layers)?;
    let signals = AdaptiveSignals::StartsAndProcess;
    let admission =
        AdmissionConfig::check(settings.admission, !identity.methods.is_empty(), signals, layers)?;
    let tls = check_tls(
        ("gate.tls_cert_file", gate.tls_cert_file.as_ref()),
        ("gate.tls_key_file", gate.tls_key_file.as_ref()),
        layers,
    )?;
    let mut proxy = forebay_gate::Config::new(check_upstream(&gate, layers)?);
    proxy.stream_routes = check_routes(&gate.stream_routes, &admission, layers)?;
    proxy.preserve_host = gate.host == HostHeader::Preserve;
    proxy.is_tls = tls.is_some();
    proxy.user_headers = identity.user_headers.clone();
    proxy.metric_labels = check_metric_labels(&gate, &settings.identity, layers)?;
    proxy.forward_user_header = gate.forward_user_header;
    proxy.request_idle_timeout = gate.request_idle_timeout_ms;
    proxy.upgrade_idle_timeout = gate.upgrade_idle_timeout_ms;
    proxy.trusted_proxies = gate.trusted_proxies;
    proxy.forwarded_by = gate.forwarded_by;
    Ok(GateConfig {
        listen: gate.listen,
        proxy,
        drain_timeout: gate.drain_timeout_ms,
        // The gate enforces this timeout itself and answers 408. The HTTP server gets twice the
        // time, so that its own timeout never comes first.
        http: http_config(&http, gate.request_idle_timeout_ms * 2),
        admission,
        identity,
        quota: QuotaConfig::check(settings.redis, settings.quota, layers)?,
        tls,
        admin: check_admin(&admin, layers)?,
        admin_secret: admin.secret,
        log: LogConfig {
            format: settings.log.format,
            filter: settings.log.filter,
            stages: settings.log.stages,
        },
        otel: check_otel(&settings.otel, cfg!(feature = "otel"), layers)?,
        variable_notices: layers.notices().to_vec(),
        explicit_settings: layers.explicit_settings(),
    })
}

/// Returns the routes with the shares of their classes. A class without a share would have no
/// effect, and a typo would go unnoticed.
fn check_routes(
    routes: &[StreamRoute],
    admission: &AdmissionConfig,
    layers: &SettingLayers,
) -> Result<Vec<(StreamRoute, u8)>, ValueError> {
    let classes = || admission.builder.classes();
    let check = |route: &StreamRoute| {
        let Some(class) = route.class() else { return Ok((route.clone(), 100)) };
        if classes().any(|known| known == class) {
            return Ok((route.clone(), admission.share(class)));
        }
        let known: Vec<&str> = classes().map(Class::as_str).collect();
        let suggestion = Suggestion(nearest(class.as_str(), known.iter().copied()));
        let why = format!(
            "has the class `{}`, which has no share{suggestion}; add it to admission.class_percent, which has `{}`",
            class.as_str(),
            known.join("`, `"),
        );
        Err(layers.error("gate.stream_routes", route.to_string(), why))
    };
    routes.iter().map(check).collect()
}

/// Checks the labels of metrics. None may be read from a header with a user id or a key.
fn check_metric_labels(
    gate: &GateSection,
    identity: &IdentitySection,
    layers: &SettingLayers,
) -> Result<Vec<MetricLabel>, ValueError> {
    const KEY: &str = "gate.metric_labels";
    let private = [&identity.user_header, &identity.api_key_header, &gate.forward_user_header];
    let mut labels: Vec<MetricLabel> = Vec::new();
    for text in &gate.metric_labels {
        let error = |why: String| layers.error(KEY, text.clone(), why);
        let label: MetricLabel = text.parse().map_err(|why: MetricLabelError| error(why.to_string()))?;
        if private.into_iter().flatten().any(|header| header == label.header()) {
            return Err(error("has a header with a user or a key, which don't belong in metrics".to_owned()));
        }
        if labels.iter().any(|other| other.name() == label.name()) {
            return Err(error(format!("is the second label with the name `{}`", label.name())));
        }
        labels.push(label);
    }
    if labels.len() > MAX_METRIC_LABELS {
        let why = format!("has {} labels: at most {MAX_METRIC_LABELS} are allowed", labels.len());
        return Err(layers.error(KEY, None, why));
    }
    Ok(labels)
}

fn check_upstream(gate: &GateSection, layers: &SettingLayers) -> Result<UpstreamConfig, ValueError> {
    const KEY: &str = "gate.upstream";
    let (url, listen) = (&gate.upstream, gate.listen);
    let authority = check_url(url).map_err(|why| layers.error(KEY, url.clone(), why))?;
    let upstream_port = authority.port_u16().unwrap_or(80);
    let own = |ip: std::net::IpAddr| ip == listen.ip() || (listen.ip().is_unspecified() && ip.is_loopback());
    let host = authority.host().trim_matches(['[', ']']);
    let same = host.parse().is_ok_and(own) || (host == "localhost" && own(Ipv4Addr::LOCALHOST.into()));
    if same && upstream_port == listen.port() {
        let why = format!("is the gate's own address ({listen}): requests would loop");
        return Err(layers.error(KEY, url.clone(), why));
    }
    let mut upstream = UpstreamConfig::new(authority);
    upstream.connect_timeout = gate.connect_timeout_ms;
    upstream.response_timeout = gate.response_timeout_ms;
    upstream.idle_timeout = gate.upstream_idle_timeout_ms;
    upstream.max_connections = gate.upstream_max_connections as usize;
    upstream.max_idle = gate.upstream_max_idle as usize;
    Ok(upstream)
}

fn check_url(url: &str) -> Result<Authority, &'static str> {
    const EXAMPLE: &str = "is not a valid URL; write one such as http://127.0.0.1:8000";
    let uri: Uri = url.parse().map_err(|_| EXAMPLE)?;
    if uri.scheme() == Some(&Scheme::HTTPS) {
        return Err(
            "is https, which the gate does not support for its upstream; run the gate next to the service, \
                    and terminate TLS in a proxy before the gate",
        );
    }
    if uri.scheme() != Some(&Scheme::HTTP) {
        return Err(EXAMPLE);
    }
    let authority = uri.authority().ok_or(EXAMPLE)?;
    if authority.as_str().contains('@') {
        return Err("contains a user; the gate sends no credentials of its own");
    }
    if authority.host().is_empty()
        || authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0)
    {
        return Err(EXAMPLE);
    }
    if uri.path_and_query().is_some_and(|path| path != "/") {
        return Err("has a path; the gate passes paths on unchanged, so remove it");
    }
    Ok(authority.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::GateArgs;
    use crate::config::load_gate;

    fn with(pairs: &[(&str, &str)]) -> Result<GateConfig, ConfigError> {
        let upstream = [("FOREBAY_GATE_UPSTREAM", "http://127.0.0.1:8000")];
        let pairs = upstream.iter().chain(pairs).map(|(name, value)| ((*name).into(), (*value).into()));
        load_gate(GateArgs::default(), pairs)
    }

    #[track_caller]
    fn assert_error(name: &str, value: &str, parts: &[&str]) {
        let error = with(&[(name, value)]).unwrap_err().to_string();
        for part in parts.iter().chain([&name]) {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn the_adaptive_floor_is_at_most_the_total() {
        let name = "FOREBAY_ADMISSION_ADAPTIVE_FLOOR";
        with(&[(name, "10000")]).unwrap();
        assert_error(name, "10001", &["must not be above admission.total, which is 10000"]);
        assert_error(name, "0", &["1"]);
    }

    #[test]
    fn the_upstream_is_the_only_required_setting() {
        let config = with(&[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:8081");
        assert_eq!(config.proxy.upstream.authority, "127.0.0.1:8000");
        assert!(config.proxy.stream_routes.is_empty() && config.proxy.preserve_host);
        let error = load_gate(GateArgs::default(), []).unwrap_err().to_string();
        assert!(error.contains("gate.upstream is missing") && error.contains("--upstream"), "{error}");
    }

    #[test]
    fn an_error_names_the_invalid_value_and_its_origin() {
        assert_error("FOREBAY_GATE_LISTEN", "localhost", &["gate.listen", "127.0.0.1:8080"]);
        assert_error("FOREBAY_GATE_HOST", "mine", &["`preserve` or `upstream`"]);
        assert_error("FOREBAY_GATE_STREAM_ROUTES", "/x", &["METHOD PATH"]);
        assert_error("FOREBAY_GATE_TRUSTED_PROXIES", "10.0.0.0/99", &["10.0.0.0/99"]);
        assert_error("FOREBAY_GATE_CONNECT_TIMEOUT_MS", "0", &["1 to 86400000"]);
        assert_error("FOREBAY_GATE_FORWARD_USER_HEADER", "a b", &["not a valid header name"]);
        assert_error("FOREBAY_HTTP_MAX_HEADERS", "0", &["1 to 1024"]);
        assert_error("FOREBAY_HTTP_MAX_HEADERS", "4294967295", &["http.max_headers", "1 to 1024"]);
        assert_error("FOREBAY_HTTP_MAX_HEADER_BYTES", "4294967295", &["8192 to 16777216"]);
        assert_error("FOREBAY_HTTP_MAX_HEADER_BYTES", "100", &["8192 to 16777216"]);
        assert_error("FOREBAY_LOG_FORMAT", "xml", &["`text` or `json`"]);
        assert_error("FOREBAY_ADMIN_LISTEN", "here", &["admin.listen", "such as 127.0.0.1:8081"]);
    }

    #[test]
    fn the_class_of_a_route_must_have_a_share() {
        let share = ("FOREBAY_ADMISSION_CLASS_PERCENT", "{ batch = 50 }");
        let routes = |routes| with(&[share, ("FOREBAY_GATE_STREAM_ROUTES", routes)]);
        let known = routes("POST /a batch, GET /b anonymous, GET /c user, GET /d").unwrap();
        assert_eq!(known.proxy.stream_routes.len(), 4);
        let error = routes("GET /d, POST /a bacth").unwrap_err().to_string();
        for part in
            ["gate.stream_routes", "POST /a bacth", "did you mean `batch`?", "admission.class_percent"]
        {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn labels_of_metrics_are_checked() {
        let labels = |text| with(&[("FOREBAY_GATE_METRIC_LABELS", text)]);
        assert!(with(&[]).unwrap().proxy.metric_labels.is_empty());
        let two = labels("model=X-Model, provider=x-provider").unwrap().proxy.metric_labels;
        assert_eq!(
            two.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["model=x-model", "provider=x-provider"]
        );
        labels("a=x-a, b=x-b, c=x-c, d=x-a").expect("four labels, two of them from one header");
        for (text, part) in [
            ("x-model", "LABEL=HEADER"),
            ("my-model=x-model", "not a label name"),
            ("outcome=x-model", "in use"),
            ("model=a b", "not a valid header name"),
            ("user=x-user-id", "don't belong in metrics"),
            ("model=x-a, model=x-b", "second label with the name `model`"),
            ("a=x-a, b=x-b, c=x-c, d=x-d, e=x-e", "5 labels: at most 4"),
        ] {
            assert_error("FOREBAY_GATE_METRIC_LABELS", text, &["gate.metric_labels", part]);
        }
        let user = ("FOREBAY_GATE_FORWARD_USER_HEADER", "X-Verified");
        let error = with(&[user, ("FOREBAY_GATE_METRIC_LABELS", "who=x-verified")]).unwrap_err().to_string();
        assert!(error.contains("don't belong in metrics"), "{error}");
    }

    #[test]
    fn an_identity_setting_without_effect_is_an_error() {
        assert_error(
            "FOREBAY_IDENTITY_CLASS_HEADER",
            "X-Class",
            &["identity.class_header", "gate.trusted_proxies"],
        );
        for (name, value) in [
            ("FOREBAY_IDENTITY_JWT_ISSUERS", "a"),
            ("FOREBAY_IDENTITY_JWT_AUDIENCES", "a"),
            ("FOREBAY_IDENTITY_JWT_USER_CLAIM", "sub"),
            ("FOREBAY_IDENTITY_JWT_CLASS_CLAIM", "tier"),
        ] {
            assert_error(name, value, &["identity.jwt_", "jwt_secret_file", "jwt_jwks_file"]);
        }
        assert_error("FOREBAY_IDENTITY_API_KEY_HEADER", "X-Key", &["identity.api_keys_file"]);
        let proxies = ("FOREBAY_GATE_TRUSTED_PROXIES", "10.0.0.0/8");
        let class = ("FOREBAY_IDENTITY_CLASS_HEADER", "X-Class");
        let error = with(&[proxies, class]).unwrap_err().to_string();
        assert!(error.contains("identity.class_header") && error.contains("identity.user_header"), "{error}");
        with(&[proxies, class, ("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID")]).unwrap();
        with(&[("FOREBAY_IDENTITY_JWT_ISSUERS", "")]).expect("an empty list has no effect");
    }

    #[test]
    fn an_invalid_upstream_is_refused() {
        for (url, part) in [
            ("127.0.0.1:8000", "is not a valid URL"),
            ("https://example.org", "https"),
            ("http://", "is not a valid URL"),
            ("http://user:secret@example.org", "contains a user"),
            ("http://example.org/api", "has a path"),
            ("http://example.org:0", "is not a valid URL"),
            ("http://127.0.0.1:8080", "own address"),
            ("http://localhost:8080/", "own address"),
        ] {
            assert_error("FOREBAY_GATE_UPSTREAM", url, &[part]);
        }
        with(&[("FOREBAY_GATE_UPSTREAM", "http://[::1]:8000/")]).unwrap();
    }

    #[test]
    fn an_admin_address_that_others_can_reach_needs_the_insecure_flag() {
        assert_error("FOREBAY_ADMIN_LISTEN", "0.0.0.0:9000", &["--insecure-admin"]);
        let open = [("FOREBAY_ADMIN_LISTEN", "0.0.0.0:9000"), ("FOREBAY_ADMIN_INSECURE", "true")];
        assert!(with(&open).is_ok());
        assert_eq!(with(&[("FOREBAY_ADMIN_LISTEN", "off")]).unwrap().admin, None);
    }
}
