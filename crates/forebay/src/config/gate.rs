//! The settings of `forebay gate`, checked.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_admission::{Builder, Class, ForwardedBy, Network, Secret};
use forebay_gate::{StreamRoute, UpstreamConfig};
use forebay_stream::HttpServerConfig;
use http::header::HeaderName;
use http::uri::{Authority, Scheme, Uri};

use super::ConfigError;
use super::access::{AdmissionConfig, IdentityConfig, Proxies, QuotaConfig};
use super::borrowed::VariableNotice;
use super::check::{Check, ValueError};
use super::file::{GateFile, GateSection};
use super::layers::{Layers, Meant};
use super::nearest::nearest;
use super::otel::{OtelConfig, check_otel};
use super::running::{check_admin, check_http, check_log, check_secret, check_tls};
use super::said::Said;
use crate::logging::LogConfig;
use crate::tls::TlsCertificate;

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);

/// Everything that a gate needs to know; `gate.example.toml` says what each bounds and why its default is what it is.
#[derive(Debug)]
pub struct GateConfig {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// What clients see of us, if they come by TLS.
    pub tls: Option<Arc<TlsCertificate>>,
    /// The service behind.
    pub upstream: UpstreamConfig,
    /// Which requests take a permit; none named: all.
    pub stream_routes: Vec<StreamRoute>,
    /// The upstream sees the client's `Host`, not its own.
    pub preserve_host: bool,
    /// Proxies whose word about clients counts.
    pub trusted_proxies: Vec<Network>,
    /// Which header they write.
    pub forwarded_by: ForwardedBy,
    /// Where the upstream is told the verified user.
    pub forward_user_header: Option<HeaderName>,
    /// How long a client may send nothing of a body that it owes.
    pub request_idle_timeout: Duration,
    /// How long streams may go on after the first signal.
    pub drain_timeout: Duration,
    /// How clients' connections are served.
    pub http: HttpServerConfig,
    /// Who may hold a stream.
    pub admission: AdmissionConfig,
    /// How a user is known.
    pub identity: IdentityConfig,
    /// How this instance counts with others.
    pub quota: QuotaConfig,
    /// Where operators look.
    pub admin: Option<SocketAddr>,
    /// What operators must show there.
    pub admin_secret: Option<Secret>,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces and metrics go.
    pub otel: Option<OtelConfig>,
    /// Other programs' variables that are set.
    pub borrowed: Vec<VariableNotice>,
    /// All of it as it was said, to find out later what has changed.
    pub said: Said,
}

impl TryFrom<Layers<GateFile>> for GateConfig {
    type Error = ConfigError;

    fn try_from(layers: Layers<GateFile>) -> Result<GateConfig, ConfigError> {
        let (borrowed, said) = (layers.notices().to_vec(), layers.said());
        let (file, origins) = layers.finish()?;
        let config = check_all(file, &Check { origins })?;
        Ok(GateConfig { borrowed, said, ..config })
    }
}

fn check_all(file: GateFile, check: &Check) -> Result<GateConfig, ValueError> {
    let gate = file.gate;
    let listen = check.address("gate.listen", gate.listen.as_ref(), LISTEN)?;
    let proxies = Proxies::check(
        ("gate.trusted_proxies", gate.trusted_proxies.as_ref()),
        ("gate.forwarded_by", gate.forwarded_by.as_ref()),
        check,
    )?;
    let hosts = [("preserve", true), ("upstream", false)];
    let request_idle_timeout = check.duration(
        "gate.request_idle_timeout_ms",
        gate.request_idle_timeout_ms,
        Duration::from_secs(30),
    )?;
    let forward_user_header = check.header("gate.forward_user_header", gate.forward_user_header.as_ref())?;
    let identity = IdentityConfig::check(&file.identity, &proxies, check)?;
    let admission = AdmissionConfig::check(&file.admission, 3, !identity.ways.is_empty(), check)?;
    let drain = check.duration("gate.drain_timeout_ms", gate.drain_timeout_ms, Duration::from_secs(25))?;
    Ok(GateConfig {
        listen,
        upstream: check_upstream(&gate, listen, check)?,
        stream_routes: check_routes(&gate, &admission.builder, check)?,
        preserve_host: check.choice("gate.host", gate.host.as_ref(), &hosts)?,
        forward_user_header,
        request_idle_timeout,
        drain_timeout: drain,
        // The gate keeps this deadline itself, and answers 408; the server's own is for services that don't.
        http: check_http(&file.http, request_idle_timeout * 2, check)?,
        admission,
        identity,
        quota: QuotaConfig::check(&file.redis, &file.quota, check)?,
        tls: check_tls(
            ("gate.tls_cert_file", gate.tls_cert_file.as_ref()),
            ("gate.tls_key_file", gate.tls_key_file.as_ref()),
            check,
        )?,
        admin: check_admin(&file.admin, ADMIN, check)?,
        admin_secret: check_secret("admin.secret", file.admin.secret.as_ref(), check)?,
        log: check_log(&file.log, check)?,
        otel: check_otel(&file.otel, cfg!(feature = "otel"), check)?,
        borrowed: Vec::new(),
        said: Said::default(),
        trusted_proxies: proxies.networks,
        forwarded_by: proxies.forwarded_by,
    })
}

/// Of a class that has no share, it would count as if it named none: a slip of the pen that nobody would notice.
fn check_routes(
    gate: &GateSection,
    admission: &Builder,
    check: &Check,
) -> Result<Vec<StreamRoute>, ValueError> {
    const KEY: &str = "gate.stream_routes";
    let routes: Vec<StreamRoute> = check.list(KEY, gate.stream_routes.as_ref())?;
    for route in &routes {
        let Some(class) = route.class().filter(|class| admission.classes().all(|known| known != *class))
        else {
            continue;
        };
        let known: Vec<&str> = admission.classes().map(Class::as_str).collect();
        let meant = Meant(nearest(class.as_str(), known.iter().copied()));
        let why = format!(
            "is of the class `{}`, which has no share{meant}; give it one in admission.class_percent, which knows `{}`",
            class.as_str(),
            known.join("`, `"),
        );
        return Err(check.wrong(KEY, route.to_string(), why));
    }
    Ok(routes)
}

fn check_upstream(
    gate: &GateSection,
    listen: SocketAddr,
    check: &Check,
) -> Result<UpstreamConfig, ValueError> {
    const KEY: &str = "gate.upstream";
    let Some(url) = &gate.upstream else {
        let why = "is missing: say where the service is, such as --upstream http://127.0.0.1:8000";
        return Err(check.wrong(KEY, None, why));
    };
    let authority = check_url(url).map_err(|why| check.wrong(KEY, url.clone(), why))?;
    let upstream_port = authority.port_u16().unwrap_or(80);
    let own = |ip: std::net::IpAddr| ip == listen.ip() || (listen.ip().is_unspecified() && ip.is_loopback());
    let host = authority.host().trim_matches(['[', ']']);
    let same = host.parse().is_ok_and(own) || (host == "localhost" && own(Ipv4Addr::LOCALHOST.into()));
    if same && upstream_port == listen.port() {
        let why = format!("is the gate's own address ({listen}): it would ask itself, for ever");
        return Err(check.wrong(KEY, url.clone(), why));
    }
    let mut upstream = UpstreamConfig::new(authority);
    let duration = |key, given, default| check.duration(key, given, default);
    upstream.connect_timeout =
        duration("gate.connect_timeout_ms", gate.connect_timeout_ms, upstream.connect_timeout)?;
    upstream.response_timeout =
        duration("gate.response_timeout_ms", gate.response_timeout_ms, upstream.response_timeout)?;
    upstream.idle_timeout =
        duration("gate.upstream_idle_timeout_ms", gate.upstream_idle_timeout_ms, upstream.idle_timeout)?;
    let most = u32::try_from(upstream.max_connections).unwrap_or(u32::MAX);
    let most = check.count("gate.upstream_max_connections", gate.upstream_max_connections, most)?;
    upstream.max_connections = most as usize;
    upstream.max_idle = gate.upstream_max_idle.map_or(upstream.max_idle, |most| most as usize);
    Ok(upstream)
}

fn check_url(url: &str) -> Result<Authority, &'static str> {
    const EXAMPLE: &str = "is no URL; write one such as http://127.0.0.1:8000";
    let uri: Uri = url.parse().map_err(|_| EXAMPLE)?;
    if uri.scheme() == Some(&Scheme::HTTPS) {
        return Err(
            "is https, which the gate does not speak to its upstream; it belongs beside the service, or \
                    behind something that ends TLS",
        );
    }
    if uri.scheme() != Some(&Scheme::HTTP) {
        return Err(EXAMPLE);
    }
    let authority = uri.authority().ok_or(EXAMPLE)?;
    if authority.as_str().contains('@') {
        return Err("has a user in it; the gate sends no credentials of its own");
    }
    if authority.host().is_empty()
        || authority.port().is_some() && authority.port_u16().is_none_or(|port| port == 0)
    {
        return Err(EXAMPLE);
    }
    if uri.path_and_query().is_some_and(|path| path != "/") {
        return Err("has a path; the gate passes paths on as they are, so leave it out");
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
    fn complains(name: &str, value: &str, parts: &[&str]) {
        let error = with(&[(name, value)]).unwrap_err().to_string();
        for part in parts.iter().chain([&name]) {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn the_upstream_alone_is_enough() {
        let config = with(&[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:8081");
        assert_eq!(config.upstream.authority, "127.0.0.1:8000");
        assert!(config.stream_routes.is_empty() && config.preserve_host);
        let error = load_gate(GateArgs::default(), []).unwrap_err().to_string();
        assert!(error.contains("gate.upstream is missing") && error.contains("--upstream"), "{error}");
    }

    #[test]
    fn a_bad_value_is_named_with_where_it_came_from() {
        complains("FOREBAY_GATE_LISTEN", "localhost", &["gate.listen", "127.0.0.1:8080"]);
        complains("FOREBAY_GATE_HOST", "mine", &["`preserve` or `upstream`"]);
        complains("FOREBAY_GATE_STREAM_ROUTES", "/x", &["METHOD PATH"]);
        complains("FOREBAY_GATE_TRUSTED_PROXIES", "10.0.0.0/99", &["10.0.0.0/99"]);
        complains("FOREBAY_GATE_CONNECT_TIMEOUT_MS", "0", &["1 to 86400000"]);
        complains("FOREBAY_GATE_FORWARD_USER_HEADER", "a b", &["no name of a header"]);
        complains("FOREBAY_HTTP_MAX_HEADERS", "0", &["1 to 1024"]);
        complains("FOREBAY_HTTP_MAX_HEADERS", "4294967295", &["http.max_headers", "1 to 1024"]);
        complains("FOREBAY_HTTP_MAX_HEADER_BYTES", "4294967295", &["8192 to 16777216"]);
        complains("FOREBAY_HTTP_MAX_HEADER_BYTES", "100", &["8192 to 16777216"]);
        complains("FOREBAY_LOG_FORMAT", "xml", &["`text` or `json`"]);
    }

    #[test]
    fn a_route_s_class_must_have_a_share() {
        let share = ("FOREBAY_ADMISSION_CLASS_PERCENT", "{ batch = 50 }");
        let routes = |routes| with(&[share, ("FOREBAY_GATE_STREAM_ROUTES", routes)]);
        let known = routes("POST /a batch, GET /b anonymous, GET /c user, GET /d").unwrap();
        assert_eq!(known.stream_routes.len(), 4);
        let error = routes("GET /d, POST /a bacth").unwrap_err().to_string();
        for part in
            ["gate.stream_routes", "POST /a bacth", "did you mean `batch`?", "admission.class_percent"]
        {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn an_identity_setting_without_effect_is_refused() {
        complains(
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
            complains(name, value, &["identity.jwt_", "jwt_secret_file", "jwt_jwks_file"]);
        }
        complains("FOREBAY_IDENTITY_API_KEY_HEADER", "X-Key", &["identity.api_keys_file"]);
        let proxies = ("FOREBAY_GATE_TRUSTED_PROXIES", "10.0.0.0/8");
        let class = ("FOREBAY_IDENTITY_CLASS_HEADER", "X-Class");
        let error = with(&[proxies, class]).unwrap_err().to_string();
        assert!(error.contains("identity.class_header") && error.contains("identity.user_header"), "{error}");
        with(&[proxies, class, ("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID")]).unwrap();
        with(&[("FOREBAY_IDENTITY_JWT_ISSUERS", "")]).expect("an empty list asks for nothing");
    }

    #[test]
    fn an_upstream_that_can_not_be_is_refused() {
        for (url, part) in [
            ("127.0.0.1:8000", "is no URL"),
            ("https://example.org", "https"),
            ("http://", "is no URL"),
            ("http://user:secret@example.org", "user in it"),
            ("http://example.org/api", "has a path"),
            ("http://example.org:0", "is no URL"),
            ("http://127.0.0.1:8080", "own address"),
            ("http://localhost:8080/", "own address"),
        ] {
            complains("FOREBAY_GATE_UPSTREAM", url, &[part]);
        }
        with(&[("FOREBAY_GATE_UPSTREAM", "http://[::1]:8000/")]).unwrap();
    }

    #[test]
    fn operators_are_not_asked_for_a_password_and_so_stay_on_this_machine() {
        complains("FOREBAY_ADMIN_LISTEN", "0.0.0.0:9000", &["--insecure-admin"]);
        let open = [("FOREBAY_ADMIN_LISTEN", "0.0.0.0:9000"), ("FOREBAY_ADMIN_INSECURE", "true")];
        assert!(with(&open).is_ok());
        assert_eq!(with(&[("FOREBAY_ADMIN_LISTEN", "off")]).unwrap().admin, None);
    }
}
