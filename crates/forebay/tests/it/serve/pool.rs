//! Settings of the pool of Postgres connections.

use serde_json::Value;

use super::support::ServeFixture;
use crate::forebay_process::ForebayProcess;
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

#[tokio::test]
async fn the_variables_of_the_dsql_plugin_set_the_pool() {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY)");
    let mut command = fixture.command(&[]);
    command.env_remove("FOREBAY_DATABASE_POOL_SIZE");
    command.envs([
        ("DSQL_RESERVOIR_TARGET_READY", "6"),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "30s"),
        ("DSQL_RESERVOIR_LIFETIME_JITTER", "10s"),
        ("DSQL_RESERVOIR_GUARD_WINDOW", "5s"),
    ]);
    let serve = ForebayProcess::run(command, "server listening");
    let reservoir = async || serve.status().await["reservoir"].clone();
    let lives = |reservoir: &Value| reservoir["lives"].as_array().cloned().unwrap_or_default();
    until("the pools are full", async || lives(&reservoir().await).len() == 6).await;
    let reservoir = reservoir().await;
    assert_eq!(reservoir["target"], 6, "{reservoir}");
    for life in lives(&reservoir) {
        // At most lifetime and jitter, less the guard window. The default is eleven minutes.
        assert!(life["ends_in_ms"].as_u64().unwrap() <= 35_000, "{life}");
    }
}
