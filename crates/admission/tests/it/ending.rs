//! Streams that an operator ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use forebay_admission::{AdmissionLayer, EndSignal, Identifier};
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty};
use serde_json::Value;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{admission_of, by_header, within};

/// Body without data, which ends cleanly by its signal.
struct EndableBody(EndSignal);

impl Body for EndableBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_sent(cx).map(|()| None)
    }
}

fn request(thread: &str) -> Request<Empty<Bytes>> {
    Request::get("/stream").header("x-thread-id", thread).body(Empty::new()).unwrap()
}

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_ended_request_without_a_response_is_a_503_and_releases_its_permit() {
    let admission = admission_of(10, 3);
    let stalled = service_fn(|_: Request<Empty<Bytes>>| {
        std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>()
    });
    let service = AdmissionLayer::new(admission.clone(), Identifier::new()).layer(stalled);
    let call = tokio::spawn(service.oneshot(request("t-1")));
    while admission.open_streams() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(admission.end_streams("t-2", None).count(), 0, "another stream");
    let ended = admission.end_streams("t-1", None);
    assert_eq!((ended.count(), ended.wait(LIMIT).await), (1, 0));
    let response = within("the response", call).await.unwrap().unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-thread-id"]),
        (503, &"t-1".parse().unwrap())
    );
    assert!(response.headers().contains_key("retry-after") && !response.headers().contains_key("ratelimit"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["error"], "stream_ended");
    assert_eq!((admission.open_streams(), admission.statistics().total_connections), (0, 0));
}

#[tokio::test]
async fn a_body_that_waits_for_its_end_signal_releases_its_permit() {
    let admission = admission_of(10, 3);
    let endable = |request: Request<Empty<Bytes>>| {
        let signal = request.extensions().get::<EndSignal>().unwrap().clone();
        std::future::ready(Ok::<_, Infallible>(Response::new(EndableBody(signal))))
    };
    let layer = AdmissionLayer::new(admission.clone(), by_header()).route(|_| Some("GET /stream".into()));
    let service = layer.layer(service_fn(endable));
    let body = service.clone().oneshot(request("t-1")).await.unwrap().into_body();
    let _other = service.oneshot(request("t-2")).await.unwrap();
    let listed = admission.oldest_streams(1);
    assert_eq!(
        (listed[0].thread_id.to_string(), listed[0].route.as_deref()),
        ("t-1".into(), Some("GET /stream"))
    );

    // The body isn't polled yet, as if its client didn't read.
    let ended = admission.end_streams("t-1", None);
    assert_eq!((ended.count(), ended.wait(Duration::ZERO).await), (1, 1));
    let again = admission.end_streams("t-1", None);
    let read = tokio::spawn(body.collect());
    assert_eq!((again.count(), again.wait(LIMIT).await), (1, 0), "two operators may end one stream");
    assert!(within("the end", read).await.unwrap().unwrap().to_bytes().is_empty());
    assert_eq!((admission.open_streams(), admission.statistics().total_connections), (1, 1));
}
