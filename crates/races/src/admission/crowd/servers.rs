//! Servers: an axum service with and without the admission layer, and `forebay gate`. Each has its
//! own process.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use axum::serve::ListenerExt;
use forebay::cli::GateArgs;
use forebay::signals::Signals;
use forebay::{GateServer, config, descriptors, logging, memory, metrics};
use forebay_admission::{Admission, AdmissionLayer, Identifier};
use forebay_quota::{MemberConfig, Quota, RedisStore};
use futures_util::{StreamExt, stream};
use http::Extensions;
use tokio::net::TcpListener;

use crate::harness::ExperimentReport;
use crate::helper_process;

/// First event of each stream, and the only one.
pub(crate) const EVENT: &str = "data: hello\n\n";
/// Maximum number of streams for each user.
pub(crate) const PER_USER: u32 = 3;

/// Serves with the admission layer until the race releases this process.
pub(crate) fn with_layer(redis: &str, namespace: &str, total: u32) -> Result<ExperimentReport> {
    serve(async |router| {
        let quota = Quota::join(RedisStore::open(redis, namespace)?, MemberConfig::new("racer")).await;
        let admission = Admission::builder().total(total).per_user(PER_USER).build(quota);
        let proxies = [IpAddr::from(Ipv4Addr::LOCALHOST).into()];
        let identify = Identifier::new().trusted_proxies(proxies).trusted_header();
        let peer = |extensions: &Extensions| {
            extensions.get().map(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| *peer)
        };
        Ok(router.layer(AdmissionLayer::new(admission, identify).peer(peer)))
    })
}

/// Serves without admission until the race releases this process.
pub(crate) fn upstream() -> Result<ExperimentReport> {
    serve(async |router| Ok(router))
}

fn serve(add_layers: impl AsyncFnOnce(Router) -> Result<Router>) -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let router = add_layers(Router::new().route("/", get(events))).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let listener = listener.tap_io(|socket| {
            let _ = socket.set_nodelay(true); // fails only if the client is gone
        });
        helper_process::announce(&format!("listening {address}"))?;
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::select! {
            served = axum::serve(listener, service) => served?,
            () = helper_process::released() => {}
        }
        Ok(ExperimentReport::new("served"))
    })
}

/// Responds with a stream that stays open after its first event.
async fn events() -> Body {
    Body::from_stream(stream::iter([Ok::<_, Infallible>(EVENT)]).chain(stream::pending()))
}

/// Runs `forebay gate` until the race releases this process. Its settings are the defaults, except
/// for those below.
pub(crate) fn gate(upstream: &str, redis: &str, namespace: &str, total: &str) -> Result<ExperimentReport> {
    // The program `forebay` does the same.
    memory::tune_allocator();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, forebay_sandbox::free_port()));
    let settings = [
        ("FOREBAY_GATE_UPSTREAM", format!("http://{upstream}")),
        ("FOREBAY_GATE_LISTEN", address.to_string()),
        ("FOREBAY_GATE_TRUSTED_PROXIES", "127.0.0.1".to_owned()),
        ("FOREBAY_IDENTITY_USER_HEADER", "X-User-ID".to_owned()),
        ("FOREBAY_ADMISSION_TOTAL", total.to_owned()),
        ("FOREBAY_ADMISSION_PER_USER", PER_USER.to_string()),
        ("FOREBAY_REDIS_URL", redis.to_owned()),
        ("FOREBAY_REDIS_NAMESPACE", namespace.to_owned()),
        ("FOREBAY_ADMIN_LISTEN", "off".to_owned()),
        ("FOREBAY_LOG_FILTER", "off".to_owned()), // a full gate is an error,
    ];
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value));
    let config = config::load_gate(GateArgs::default(), settings).context("loading the settings")?;
    logging::init(&config.log)?;
    let (descriptors, recorder) = (descriptors::raise_limit(), metrics::install()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::catch()?;
        let gate = GateServer::start(config, recorder, descriptors).await?;
        helper_process::announce(&format!("listening {address}"))?;
        tokio::select! {
            _ = gate.run(signals) => {}
            () = helper_process::released() => {}
        }
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(ExperimentReport::new("served"))
}
