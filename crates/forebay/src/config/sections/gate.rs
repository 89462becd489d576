//! Settings of `[gate]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_admission::{ForwardedHeader, Network};
use forebay_gate::StreamRoute;
use forebay_settings::SettingChoice;
use http::HeaderName;

use super::EMPTY;
use crate::config::setting_types::Forebay;
use crate::config::settings_macro::settings;

/// `Host` header for the service behind the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The client's.
    Preserve,
    /// The host of the upstream URL.
    Upstream,
}

impl SettingChoice for HostHeader {
    const CHOICES: &'static [(&'static str, HostHeader)] =
        &[("preserve", HostHeader::Preserve), ("upstream", HostHeader::Upstream)];
}

impl SettingChoice<Forebay> for ForwardedHeader {
    const CHOICES: &'static [(&'static str, ForwardedHeader)] =
        &[("x-forwarded-for", ForwardedHeader::XForwardedFor), ("forwarded", ForwardedHeader::Forwarded)];
}

settings! {
    /// The reverse proxy.
    GateSection: "gate" {
        /// Address for clients. The default is reachable from this machine only.
        listen: SocketAddr = "127.0.0.1:8080", flag("--listen", "IP:PORT");

        /// PEM file with the certificate for clients and its chain. It is reloaded when it changes
        /// (within 5 s) and on SIGHUP. If the new pair is invalid, the error is logged and the old
        /// pair stays. A stream with TLS takes about 24 KiB of memory, a plain one 3 KiB. For very
        /// many streams, terminate TLS in a proxy.
        tls_cert_file: Option<PathBuf>, unset("none, plain HTTP"), example("/etc/forebay/tls.crt");

        /// PEM file with the private key of the certificate.
        tls_key_file: Option<PathBuf>, example("/etc/forebay/tls.key");

        /// URL of the service behind the gate, such as `http://127.0.0.1:8000`.
        upstream: String,
            required("set the URL of the service, such as --upstream http://127.0.0.1:8000"),
            example("http://127.0.0.1:8000"),
            flag("--upstream", "URL");

        /// Routes whose requests take a permit, each `METHOD PATH` or `METHOD PATH CLASS`, such as
        /// `POST /api/v1/stream`. `*` is any method or any one segment, `**` at the end any number
        /// of segments. GET includes HEAD, and case is ignored. The first match counts. A request
        /// to upgrade the connection (WebSocket) takes a permit on every path. A class is refused
        /// above its share in `admission.class_percent`. A path that servers interpret differently
        /// (`/a/../b`, `/a%2Fb`, `/a;b`) is matched in every interpretation, and the class with the
        /// smallest share counts. Without routes, every request takes a permit while it runs,
        /// because a missing limit would go unnoticed until an overload.
        stream_routes: Vec<StreamRoute> = EMPTY, flag("--stream-route", "ROUTE");

        /// `Host` header for the service: `preserve` (the client's, because applications build
        /// links and check origins with it) or `upstream` (the host of the URL).
        host: HostHeader = "preserve";

        /// Addresses and networks of the proxies whose headers about clients are trusted:
        /// `X-Forwarded-*`, `X-User-ID` and similar. From all other clients, these headers are
        /// dropped, and so are those that change the route behind the gate: `X-Original-URL`,
        /// `X-Rewrite-URL`, `X-HTTP-Method-Override`. If the service uses the latter, configure
        /// your proxies to drop them, too.
        trusted_proxies: Vec<Network> = EMPTY, flag("--trusted-proxy", "IP[/BITS]");

        /// Header that the trusted proxies write: `x-forwarded-for`, as most do, or `forwarded`
        /// (RFC 7239). The other one is ignored, because proxies pass it on unchanged from the
        /// client.
        forwarded_by: ForwardedHeader = "x-forwarded-for";

        /// Header that passes the verified user to the service. A client's own header of that name
        /// is dropped.
        forward_user_header: Option<HeaderName>,
            unset("none, it is not passed"),
            example("X-Verified-User");

        /// Labels of the metric `forebay_gate_outcomes_total` that are taken from request headers,
        /// each `LABEL=HEADER`, such as `model=x-model`. At most 4. The first 50 values of at
        /// most 128 bytes are kept, each once the upstream has answered a request with it. Other
        /// values count as `other`, and requests without the header as `none`. There are at most
        /// 500 combinations of values and kinds of requests. Clients can invent values, so prefer
        /// headers that your own proxy or application sets. Don't use headers with personal data;
        /// values are exported as they are.
        metric_labels: Vec<String> = EMPTY;

        /// Timeout for connecting to the service; then 504. Several addresses share it. The default
        /// is longer than the retransmission of one lost packet.
        connect_timeout_ms: Duration = 5_000;

        /// Time from the last progress of a request to the head of its response; then 504. Language
        /// models may take long before the first byte.
        response_timeout_ms: Duration = 60_000;

        /// Time without data from a client whose request body is incomplete; then 408.
        request_idle_timeout_ms: Duration = 30_000;

        /// Time without a byte in either direction of an upgraded connection, such as a WebSocket;
        /// then both sides are closed. The default is far above the pings of common libraries,
        /// 20 s.
        upgrade_idle_timeout_ms: Duration = 300_000;

        /// Time after which an idle connection to the service is closed. The default is below the 5
        /// s of uvicorn and Node.js, so that few requests use a connection that the service closes.
        upstream_idle_timeout_ms: Duration = 4_000;

        /// Maximum number of idle connections to the service. Above it, the oldest is closed.
        upstream_max_idle: u32 = 256;

        /// Maximum number of open connections to the service; above it 503. Set it above
        /// `admission.total`: other requests need connections, too.
        upstream_max_connections: u32 = 16_384, at_least(1);

        /// Time that open streams may continue after SIGTERM; then they are cut. The default is
        /// below the 30 s of Kubernetes (`terminationGracePeriodSeconds`): cutting streams and
        /// returning their permits may take up to 3 s more. While streams are open, new requests
        /// are accepted in the first half of this time.
        drain_timeout_ms: Duration = 25_000, flag("--drain-timeout-ms", "MS");
    }
}
