//! The README's example, compiled and run. `tests/readme.rs` checks that both are equal.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Class, Identifier};
use forebay_quota::Quota;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let quota = Quota::local(); // or Quota::join(RedisStore::open(…)?, …).await for limits across instances
    let admission = Admission::builder()
        .total(100) // streams in total; one more gets a 503
        .per_user(3) // streams per user; one more gets a 429
        .class(Class::new("report"), 50) // may use half of the total
        .build(quota);

    let identify = Identifier::new().api_keys(ApiKeys::new().key("s3cr3t", "ada").key("t0p", "bob"));
    let layer = AdmissionLayer::new(admission.clone(), identify)
        .streams(|parts| parts.uri.path() != "/about") // other requests need no permit
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
    let get = async |path: &str, key: &str| -> Result<Response<_>, Box<dyn std::error::Error>> {
        let request = Request::get(path).header("x-api-key", key).body(Body::empty())?;
        Ok(app.clone().oneshot(request).await?)
    };
    let mut open = Vec::new();
    for path in ["/chat", "/report", "/chat"] {
        open.push(get(path, "s3cr3t").await?);
    }
    assert!(open.iter().all(|stream| stream.status() == StatusCode::OK));
    assert_eq!(get("/chat", "s3cr3t").await?.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(get("/about", "s3cr3t").await?.status(), StatusCode::OK);
    assert_eq!(get("/chat", "guessed").await?.status(), StatusCode::UNAUTHORIZED);
    open.push(get("/chat", "t0p").await?);
    assert_eq!(admission.statistics().total_connections, 4);

    drop(open); // the bodies hold the permits
    assert_eq!(admission.statistics().total_connections, 0);
    Ok(())
}
