//! Minimal server with `forebay_stream` and admission.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use bytes::Bytes;
use forebay_admission::{Admission, AdmissionLayer, AdmissionService, Identifier};
use forebay_quota::Quota;
use forebay_stream::{
    ClientAddr, DirectWrites, HttpServer, HttpServerConfig, Incoming, LiveBody, Tail, Topic, service_fn,
};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Either, Empty};
use tokio::net::TcpListener;
use tower_layer::Layer;

use crate::harness::ExperimentReport;
use crate::helper_process;

pub(crate) const NAME: &str = "forebay";

/// Response body: empty for a publisher, a stream for a subscriber.
type StreamBody = Either<Empty<Bytes>, Tail>;

/// Serves until the race releases this process.
pub(crate) fn serve() -> Result<ExperimentReport> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        helper_process::announce(&format!("listening {}", listener.local_addr()?))?;
        let topic = Topic::new(16);
        let service = with_admission(service_fn(move |request| respond(request, topic.clone())));
        HttpServer::new(listener, service, HttpServerConfig::default()).run(helper_process::released()).await;
        Ok(ExperimentReport::new("served"))
    })
}

/// Adds admission: 10,000 streams in total and 3 for each user, counted in this process. Each
/// subscriber is a different user, so that as many users as possible are counted.
fn with_admission<S>(service: S) -> AdmissionService<S> {
    let admission = Admission::builder().build(Quota::local());
    let identify =
        Identifier::new().trusted_proxies([IpAddr::from(Ipv4Addr::LOCALHOST).into()]).trusted_header();
    AdmissionLayer::new(admission, identify)
        .streams(|request| request.method == Method::GET)
        .peer(|extensions| extensions.get::<ClientAddr>().map(|peer| peer.0))
        .layer(service)
}

async fn respond(request: Request<Incoming>, topic: Topic) -> Response<StreamBody> {
    if request.method() == Method::POST {
        let body = request.into_body().collect().await.map_or_else(|_| Bytes::new(), |body| body.to_bytes());
        topic.publish([b"data: ", &body[..], b"\n\n"].concat());
        return Response::new(Either::Left(Empty::new()));
    }
    let writes = DirectWrites::new();
    let mut response = Response::new(Either::Right(topic.subscribe().direct(&writes)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.extensions_mut().insert(LiveBody);
    response.extensions_mut().insert(writes);
    response
}
