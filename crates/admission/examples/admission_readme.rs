//! The example of the README, compiled and run; `tests/readme.rs` makes sure that they are the same.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Class, Identify};
use forebay_quota::Quota;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quota = Quota::local(); // or Quota::join(RedisStore::open(…)?, …).await, and it holds over all instances
    let admission = Admission::builder()
        .total(100) // streams in all; the next is answered with 503
        .per_user(3) // streams of one user; the next is answered with 429
        .class(Class::new("report"), 50) // stops at half of the total, and leaves the rest to others
        .build(quota);

    let identify = Identify::new().api_keys(ApiKeys::new().key("s3cr3t", "ada").key("t0p", "bob"));
    let layer = AdmissionLayer::new(admission.clone(), identify)
        .streams(|parts| parts.uri.path() != "/about") // what is no stream needs no permit
        .class(|parts| parts.uri.path().starts_with("/report").then(|| Class::new("report")));

    let app = Router::new()
        .route("/chat", get(events))
        .route("/report", get(events))
        .route("/about", get("a service"))
        .layer(layer);

    check(app, &admission).await?;
    Ok(())
}

async fn events() -> Body {
    Body::from_stream(stream::iter([Ok::<_, std::io::Error>("data: hello\n\n")]).chain(stream::pending()))
}

async fn check(app: Router, admission: &Admission) -> Result<(), Box<dyn std::error::Error>> {
    let ask = async |path: &str, key: &str| -> Result<Response<_>, Box<dyn std::error::Error>> {
        let request = Request::get(path).header("x-api-key", key).body(Body::empty())?;
        Ok(app.clone().oneshot(request).await?)
    };
    let mut open = Vec::new();
    for path in ["/chat", "/report", "/chat"] {
        open.push(ask(path, "s3cr3t").await?);
    }
    assert!(open.iter().all(|stream| stream.status() == StatusCode::OK));
    assert_eq!(ask("/chat", "s3cr3t").await?.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("/about", "s3cr3t").await?.status(), StatusCode::OK);
    assert_eq!(ask("/chat", "guessed").await?.status(), StatusCode::UNAUTHORIZED);
    open.push(ask("/chat", "t0p").await?);
    assert_eq!(admission.statistics().total_connections, 4);

    drop(open); // the permits are in the bodies
    assert_eq!(admission.statistics().total_connections, 0);
    Ok(())
}
