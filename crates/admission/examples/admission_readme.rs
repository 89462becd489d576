//! The example of the README. `tests/readme.rs` compares both.
//!
//! `cargo run -p forebay-admission --example admission_readme` prints the address of the service.

#![allow(clippy::print_stdout, reason = "an example prints its address")]

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use forebay_admission::{Admission, AdmissionLayer, ApiKeys, Class, Identifier};
use forebay_quota::Quota;
use futures_util::{StreamExt, stream};
use tokio::net::TcpListener;

#[tokio::main]
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

    let open_streams = async move || admission.statistics().total_connections.to_string();
    let app = Router::new()
        .route("/chat", get(events))
        .route("/report", get(events))
        .route("/about", get(open_streams))
        .layer(layer);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// A stream that stays open. Its permit is released when the client disconnects.
async fn events() -> Body {
    Body::from_stream(stream::iter([Ok::<_, std::io::Error>("data: hello\n\n")]).chain(stream::pending()))
}
