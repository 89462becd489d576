//! Settings of the pool of Postgres connections.

use super::support::ServeFixture;
use crate::wire::until;

#[tokio::test]
async fn lifetime_guard_window_and_watermark_of_the_pool_are_settings() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let serve = fixture
        .serve_with(&[
            ("FOREBAY_DATABASE_POOL_LIFETIME_MS", "3000"),
            ("FOREBAY_DATABASE_POOL_LIFETIME_JITTER_MS", "0"),
            ("FOREBAY_DATABASE_POOL_GUARD_WINDOW_MS", "1000"),
            ("DSQL_RESERVOIR_LOW_WATERMARK", "3"),
        ])
        .await;
    let reservoir = serve.status().await["reservoir"].clone();
    assert_eq!(reservoir["low_watermark"], 3);
    let lives = reservoir["lives"].as_array().unwrap();
    assert!(!lives.is_empty());
    for life in lives {
        // From its opening to its guard window, a connection has two of its three seconds.
        assert!(life["ends_in_ms"].as_u64().unwrap() <= 2000, "{life}");
    }
    until("the first connections are replaced", async || {
        let metrics = serve.metrics().await;
        metrics.lines().any(|line| {
            line.starts_with("forebay_reservoir_discards_total")
                && (line.contains("reason=\"replaced\"") || line.contains("reason=\"expired\""))
                && !line.ends_with(" 0")
        })
    })
    .await;
    serve.stop().await;
}
