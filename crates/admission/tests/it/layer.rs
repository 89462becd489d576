//! The layer in front of plain tower services and of axum.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use forebay_admission::{
    Admission, AdmissionLayer, Class, Identifier, PeerAddr, ThreadId, UserId, X_THREAD_ID,
};
use forebay_quota::Quota;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{
    RawHttpClient, admission_of, by_header, by_key, refusal, serve, wait_until_released, within,
};

type TextBody = Full<Bytes>;

fn request(headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    request_to("/stream", headers)
}

fn request_to(path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let builder = Request::get(path).extension(PeerAddr("127.0.0.1:4711".parse().unwrap()));
    let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    builder.body(Empty::new()).unwrap()
}

async fn hello(_: Request<Empty<Bytes>>) -> Result<Response<TextBody>, Infallible> {
    Ok(Response::new(Full::from("data: hello\n\n")))
}

#[tokio::test]
async fn the_permit_lives_in_the_body_and_ends_with_it() {
    let admission = admission_of(10, 3);
    let service = AdmissionLayer::new(admission.clone(), by_header()).layer(service_fn(hello));
    let response = service.clone().oneshot(request(&[("x-user-id", "ada")])).await.unwrap();
    assert_eq!((response.status(), admission.open_streams()), (StatusCode::OK, 1));
    drop(response);
    assert_eq!(admission.open_streams(), 0);

    // A body that is read to its end releases the permit even before it is dropped.
    let mut body = service.oneshot(request(&[])).await.unwrap().into_body();
    assert_eq!(admission.open_streams(), 1);
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.is_none());
    assert_eq!((admission.open_streams(), admission.statistics().total_connections), (0, 0));
}

#[tokio::test]
async fn the_fourth_stream_of_a_user_is_429_and_the_one_above_the_total_503() {
    let admission = admission_of(5, 3);
    let service = AdmissionLayer::new(admission.clone(), by_header()).layer(service_fn(hello));
    let get = async |id: &str| service.clone().oneshot(request(&[("x-user-id", id)])).await.unwrap();
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(get("ada").await);
    }
    let over_limit = get("ada").await;
    assert_eq!(over_limit.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(admission.statistics().total_connections, 3, "the budget was refunded");
    open.push(get("bob").await);
    open.push(get("eve").await);
    assert!(open.iter().all(|response| response.status() == StatusCode::OK));

    let full = get("bob").await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(full.headers()["content-type"], "application/problem+json");
    let seconds: u32 = full.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let body: Value = serde_json::from_slice(&full.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(body["error"], "service_unavailable");
    assert_eq!(body["details"], json!({"current": 5, "max": 5, "user_id": "bob"}));
    let body: Value =
        serde_json::from_slice(&over_limit.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(body["message"], "Too many concurrent connections. Maximum 3 allowed.");
    assert_eq!(body["details"], json!({"user_id": "ada", "current": 3, "limit": 3}));

    drop(open);
    assert_eq!(admission.statistics().total_connections, 0);
    assert_eq!(get("ada").await.status(), StatusCode::OK);
}

/// Readiness is that of the inner service: at the limit the service is ready and rejects in `call`.
#[tokio::test]
async fn at_the_limit_the_service_is_ready_and_rejects_in_call() {
    let admission = admission_of(0, 3);
    let mut service = AdmissionLayer::new(admission, Identifier::new()).layer(service_fn(hello));
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    assert_eq!(service.call(request(&[])).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_service_that_fails_or_panics_releases_the_permit() {
    let admission = admission_of(10, 3);
    let layer = AdmissionLayer::new(admission.clone(), Identifier::new());
    let failing = layer.layer(service_fn(|_: Request<Empty<Bytes>>| {
        ready(Err::<Response<TextBody>, _>(io::Error::other("no upstream")))
    }));
    assert_eq!(failing.oneshot(request(&[])).await.unwrap_err().to_string(), "no upstream");
    assert_eq!(admission.open_streams(), 0);

    let panicking =
        layer.layer(service_fn(async |_: Request<Empty<Bytes>>| -> Result<Response<TextBody>, Infallible> {
            std::panic::resume_unwind(Box::new("without a backtrace on the terminal"))
        }));
    assert!(tokio::spawn(panicking.oneshot(request(&[]))).await.unwrap_err().is_panic());
    assert_eq!((admission.open_streams(), admission.statistics().total_connections), (0, 0));
}

#[tokio::test]
async fn only_streams_need_a_permit() {
    let admission = admission_of(0, 3);
    let layer = AdmissionLayer::new(admission, by_header()).streams(|parts| parts.uri.path() == "/stream");
    let service = layer.layer(service_fn(hello));
    let plain = request_to("/about", &[("x-user-id", "ada")]);
    let response = service.clone().oneshot(plain).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().contains_key(X_THREAD_ID));
    assert_eq!(service.oneshot(request(&[])).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_route_of_a_lower_class_is_refused_where_others_are_still_admitted() {
    let (batch, chat) = (Class::new("batch"), Class::new("chat"));
    let builder = Admission::builder().total(10).class(batch.clone(), 50).class(chat.clone(), 100);
    let admission = builder.build(Quota::local());
    let layer =
        AdmissionLayer::new(admission.clone(), by_header()).class(move |parts| match parts.uri.path() {
            "/batch" => Some(batch.clone()),
            "/chat" => Some(chat.clone()),
            "/unknown" => Some(Class::new("unknown")),
            _ => None,
        });
    let service = layer.layer(service_fn(hello));
    let mut users = 0;
    let mut get = async |path: &str| {
        users += 1; // a new user for each request, because limits are per user
        let user = format!("user-{users}");
        service.clone().oneshot(request_to(path, &[("x-user-id", &user)])).await.unwrap()
    };
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(get("/batch").await);
    }
    let refused = get("/batch").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    let body: Value =
        serde_json::from_slice(&refused.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(body["details"]["current"], 5, "{body}");
    for path in ["/chat", "/stream", "/unknown", "/chat"] {
        open.push(get(path).await);
    }
    assert!(open.iter().all(|response| response.status() == StatusCode::OK));

    // Nine of ten: anonymous clients stop at 90 %, even if the route's class may use more.
    let anonymous = service.clone().oneshot(request_to("/chat", &[])).await.unwrap();
    assert_eq!(anonymous.status(), StatusCode::SERVICE_UNAVAILABLE);
    open.push(get("/chat").await);
    assert_eq!((open[9].status(), admission.open_streams()), (StatusCode::OK, 10));
    drop(open);
    assert_eq!(get("/batch").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_thread_id_is_in_request_and_response_and_the_user_in_the_request() {
    let admission = admission_of(10, 3);
    let show = async |request: Request<Empty<Bytes>>| {
        let thread = request.extensions().get::<ThreadId>().unwrap().to_string();
        assert_eq!(request.headers()[X_THREAD_ID], thread);
        let user = request.extensions().get::<UserId>().map(|user| user.id().to_owned());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(format!("{thread} {user:?}"))))
    };
    let service = AdmissionLayer::new(admission, by_header()).layer(service_fn(show));
    let text = async |headers: &[(&str, &str)]| {
        let response = service.clone().oneshot(request(headers)).await.unwrap();
        let thread = response.headers()[X_THREAD_ID].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (thread, String::from_utf8(body.to_vec()).unwrap())
    };
    let (thread, body) = text(&[("x-thread-id", "my-thread"), ("x-user-id", "ada")]).await;
    assert_eq!((thread.as_str(), body.as_str()), ("my-thread", "my-thread Some(\"ada\")"));
    let (thread, body) = text(&[]).await;
    assert_eq!((thread.len(), body), (36, format!("{thread} None")));
}

#[tokio::test]
async fn dropping_the_layers_future_at_any_point_releases_everything() {
    let admission = admission_of(10, 3);
    let layer = AdmissionLayer::new(admission.clone(), by_header());
    let stalled = layer
        .layer(service_fn(|_: Request<Empty<Bytes>>| pending::<Result<Response<TextBody>, Infallible>>()));
    let never_polled = stalled.clone().oneshot(request(&[("x-user-id", "ada")]));
    drop(never_polled);
    assert_eq!(admission.open_streams(), 0);
    for polls in 1..5 {
        let mut future = Box::pin(stalled.clone().oneshot(request(&[("x-user-id", "ada")])));
        for _ in 0..polls {
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::task::yield_now().await;
        }
        drop(future);
        wait_until_released(&admission).await;
    }
}

#[tokio::test]
async fn axum_streams_through_the_layer_on_real_sockets() {
    let admission = admission_of(4, 2);
    let server = serve(&admission, by_key(&["alice", "bob"])).await;
    let alice = [("x-api-key", "key-of-alice"), ("x-thread-id", "thread-1")];
    let (head, mut first) = RawHttpClient::get(server, "/endless", &alice).await;
    assert_eq!((head.status, head.header("x-thread-id")), (200, Some("thread-1")));
    within("an event", first.until(b"data: hello\n\n")).await;
    let (head, second) = RawHttpClient::get(server, "/endless", &alice[..1]).await;
    assert_eq!(head.status, 200);

    let (head, body) = refusal(server, "/endless", &alice).await;
    assert_eq!((head.status, body["details"]["user_id"].as_str()), (429, Some("alice")));
    assert_eq!(head.header("x-thread-id"), Some("thread-1"));
    let policy = "\"user\";q=2;qu=\"concurrent-requests\"";
    assert_eq!(head.header("ratelimit-policy"), Some(policy));

    let (head, _bob) = RawHttpClient::get(server, "/endless", &[("x-api-key", "key-of-bob")]).await;
    assert_eq!(head.status, 200);
    assert_eq!(admission.open_streams(), 3);
    let status = serde_json::to_value(admission.status()).unwrap();
    assert_eq!(status["streams"][0]["thread_id"], "thread-1");
    assert_eq!(status["streams"][0]["user"], status["streams"][1]["user"], "the same user, the same hash");
    assert_ne!(status["streams"][0]["user"], status["streams"][2]["user"]);
    // Hashes and generated thread ids are hexadecimal, so neither name can occur in them.
    for name in ["alice", "bob"] {
        assert!(!status.to_string().contains(name), "{status}");
    }
    drop((first, second, _bob));
    wait_until_released(&admission).await;
}
