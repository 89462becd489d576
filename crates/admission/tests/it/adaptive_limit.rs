//! The adaptive limit: of the layer, the wait queue and classes.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_admission::{
    AdaptiveSignals, AdaptiveStatus, Admission, AdmissionLayer, Builder, Class, ClientIdentity,
    DecreaseCause, Identifier, RejectionReason, StartReport, StreamBody, StreamLimits, StreamStart,
};
use forebay_quota::Quota;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{eventually, user, within};

type TextBody = Full<Bytes>;

fn adaptive(floor: u32) -> Builder {
    Admission::builder()
        .total(100)
        .per_user(100)
        .class(Class::ANONYMOUS, 100)
        .adaptive(floor, AdaptiveSignals::StartsAndProcess)
}

fn status(admission: &Admission) -> AdaptiveStatus {
    admission.status().adaptive.unwrap()
}

/// Returns a service behind the layer. It responds with a 500 while `fails` is set.
fn service(
    admission: &Admission,
    fails: &Arc<AtomicBool>,
) -> impl Service<
    Request<Empty<Bytes>>,
    Response = Response<StreamBody<TextBody>>,
    Error = Infallible,
    Future: Send,
> + Clone {
    let fails = Arc::clone(fails);
    let respond = move |_: Request<Empty<Bytes>>| {
        let fails = fails.load(Ordering::SeqCst);
        async move {
            let mut response = Response::new(Full::from("data: hello\n\n"));
            // Times on a busy machine vary. This service always takes the same time.
            response.extensions_mut().insert(StreamStart::Answered(Duration::from_millis(5)));
            if fails {
                response.extensions_mut().insert(StreamStart::of(StatusCode::BAD_GATEWAY, Duration::ZERO));
            }
            Ok(response)
        }
    };
    AdmissionLayer::new(admission.clone(), Identifier::new()).layer(service_fn(respond))
}

fn request() -> Request<Empty<Bytes>> {
    Request::get("/").body(Empty::new()).unwrap()
}

#[tokio::test]
async fn a_lower_adaptive_limit_refuses_new_streams_and_keeps_open_ones() {
    let admission = adaptive(2).build(Quota::local());
    let fails = Arc::new(AtomicBool::new(false));
    let service = service(&admission, &fails);
    let open = async || service.clone().oneshot(request()).await.unwrap();
    assert_eq!(status(&admission).limit, 2);
    let mut streams = Vec::new();
    let grow = async {
        while status(&admission).limit < 8 || streams.len() < 6 {
            let stream = open().await;
            let is_admitted = stream.status() == StatusCode::OK;
            if is_admitted && streams.len() < 6 {
                streams.push(stream);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the limit rises while it is in use", grow).await;

    fails.store(true, Ordering::SeqCst);
    let shrink = async {
        while status(&admission).limit > 6 {
            drop(open().await);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within("the limit falls while streams fail", shrink).await;
    let decrease = status(&admission).last_decrease.unwrap();
    assert_eq!((decrease.cause, decrease.to < decrease.from), (DecreaseCause::Errors, true));
    assert_eq!(admission.open_streams(), 6);
    let rejection = admission.admit(user("late")).await.unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::Adaptive);
    assert_eq!(rejection.status(), StatusCode::SERVICE_UNAVAILABLE);
    let text = rejection.to_string();
    assert!(text.contains(&format!("6 of {} in use", status(&admission).limit)), "{text}");
    drop(streams);
    assert_eq!((admission.open_streams(), status(&admission).open), (0, 0));
}

#[tokio::test]
async fn a_waiting_request_gets_the_slot_that_becomes_free() {
    let admission = adaptive(1).wait(Duration::from_secs(3_600)).build(Quota::local());
    let held = admission.admit(user("ada")).await.unwrap();
    let waiting = tokio::spawn({
        let admission = admission.clone();
        async move { admission.admit(user("bob")).await }
    });
    eventually("bob waits", 1, async || admission.status().waiting).await;
    drop(held);
    let permit = within("bob's turn", waiting).await.unwrap().unwrap();
    assert_eq!(status(&admission).open, 1);
    drop(permit);
    assert_eq!(status(&admission).open, 0);
}

#[tokio::test]
async fn a_class_may_use_its_share_of_the_adaptive_limit() {
    let admission = adaptive(10).class(Class::ANONYMOUS, 50).build(Quota::local());
    let mut open = Vec::new();
    for _ in 0..5 {
        open.push(admission.admit(ClientIdentity::anonymous()).await.unwrap());
    }
    let rejection = admission.admit(ClientIdentity::anonymous()).await.unwrap_err();
    assert_eq!(rejection.reason(), RejectionReason::Headroom);
    for _ in 0..5 {
        open.push(admission.admit(user("ada")).await.unwrap());
    }
    assert_eq!(admission.admit(user("ada")).await.unwrap_err().reason(), RejectionReason::Adaptive);
}

#[tokio::test]
async fn a_refusal_of_the_users_limit_or_of_the_budget_frees_the_slot() {
    let admission = adaptive(10).per_user(1).build(Quota::local());
    let _one = admission.admit(user("ada")).await.unwrap();
    assert_eq!(admission.admit(user("ada")).await.unwrap_err().reason(), RejectionReason::UserLimit);
    assert_eq!(status(&admission).open, 1);
    // Another admission takes all units of the budget that both share.
    let quota = Quota::local();
    let other = Admission::builder().total(2).build(quota.clone());
    let admission = adaptive(2).total(2).build(quota);
    let held = [other.admit(user("ada")).await.unwrap(), other.admit(user("bob")).await.unwrap()];
    assert_eq!(admission.admit(user("eve")).await.unwrap_err().reason(), RejectionReason::Exhausted);
    assert_eq!(status(&admission).open, 0);
    drop(held);
    let _open = [admission.admit(user("eve")).await.unwrap(), admission.admit(user("eve")).await.unwrap()];
    assert_eq!(status(&admission).open, 2);
}

#[tokio::test]
async fn the_total_bounds_the_adaptive_limit() {
    let admission = adaptive(10).build(Quota::local());
    let _held = admission.admit(user("ada")).await.unwrap();
    admission.set_limits(StreamLimits { total: 1, per_user: 100 });
    assert_eq!(status(&admission).limit, 1);
    assert_eq!(admission.admit(user("bob")).await.unwrap_err().reason(), RejectionReason::Adaptive);
    assert_eq!(status(&admission).open, 1);
}

/// A service that never answers; it reports how a client that leaves counts.
#[tokio::test]
async fn a_service_reports_how_a_client_that_leaves_counts() {
    for (floor, is_adaptive) in [(Some(2), true), (None, false)] {
        let builder = Admission::builder().class(Class::ANONYMOUS, 100);
        let admission = match floor {
            Some(floor) => builder.adaptive(floor, AdaptiveSignals::StartsAndProcess),
            None => builder,
        };
        let admission = admission.build(Quota::local());
        let has_report = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&has_report);
        let respond = move |request: Request<Empty<Bytes>>| {
            let report = request.extensions().get::<StartReport>().cloned();
            seen.store(report.is_some(), Ordering::SeqCst);
            async move {
                if let Some(report) = report {
                    report.set(StreamStart::Ignored);
                }
                std::future::pending::<Result<Response<TextBody>, Infallible>>().await
            }
        };
        let service = AdmissionLayer::new(admission.clone(), Identifier::new()).layer(service_fn(respond));
        let left = tokio::time::timeout(Duration::from_millis(50), service.oneshot(request())).await;
        assert!(left.is_err());
        assert_eq!(has_report.load(Ordering::SeqCst), is_adaptive, "a report costs an allocation");
    }
}

#[tokio::test]
async fn without_it_the_status_has_none() {
    let admission = Admission::builder().build(Quota::local());
    assert_eq!(admission.status().adaptive, None);
}
