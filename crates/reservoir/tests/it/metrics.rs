//! Every metric exists, has its help text and labels, and passes promtool.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::metrics::set_default_local_recorder;
use forebay_quota::RateConfig;
use forebay_reservoir::{ConnectionLimits, PostgresConnect, Reservoir, ReservoirConfig, metrics};
use forebay_sandbox::Postgres;
use forebay_testkit::{TEST_TIMEOUT, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;

const NAMES: [&str; 18] = [
    metrics::SIZE,
    metrics::CONNECTIONS,
    metrics::CHECKOUTS,
    metrics::EMPTY,
    metrics::SHORTAGES,
    metrics::DISCARDS,
    metrics::REFILLS,
    metrics::REFILL_FAILURES,
    metrics::DIAL_SECONDS,
    metrics::RETIREMENT_AGE_SECONDS,
    metrics::LINGERING,
    metrics::LONGEST_LINGERING_SECONDS,
    metrics::CLOSE_TIMEOUTS,
    metrics::WAITING,
    metrics::WAIT_SECONDS,
    metrics::LEAKS,
    metrics::SLICE,
    metrics::LOCAL_ONLY,
];

fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn every_metric_is_recorded_and_passes_promtool() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _guard = set_default_local_recorder(&recorder);
    let limits = || ConnectionLimits::local().rate(RateConfig::per_second(1e6)).connections(10);

    let connect = PostgresConnect::new(&Postgres::shared().url("postgres")).unwrap();
    let config = ReservoirConfig::new(2).service("shop").low_watermark(2).leak_after(Duration::from_secs(2));
    let reservoir = Reservoir::start(connect, config, limits()).unwrap();
    reservoir.initial_fill(TEST_TIMEOUT).await.unwrap();
    let (mut bad, held) = (reservoir.checkout().await.unwrap(), reservoir.checkout().await.unwrap());
    reservoir.checkout_within(Duration::from_millis(1)).await.unwrap_err();
    bad.mark_bad();
    drop(bad);

    let nowhere = PostgresConnect::new("postgres://app@127.0.0.1:1/none").unwrap();
    let lost = Reservoir::start(nowhere, ReservoirConfig::new(1).service("lost"), limits()).unwrap();
    let failures = "forebay_reservoir_refill_failures_total{service=\"lost\",reason=\"unreachable\"}";
    eventually("it fails", true, async || value(&page.render(), failures).is_some_and(|times| times >= 1.0))
        .await;

    let leaks = "forebay_reservoir_leaks_total{service=\"shop\"}";
    eventually("the leak is found", Some(1.0), async || value(&page.render(), leaks)).await;
    let lent = "forebay_reservoir_connections{service=\"shop\",state=\"lent\"}";
    eventually("the gauges are fresh", Some(1.0), async || value(&page.render(), lent)).await;
    eventually("the bad one is replaced", 1, async || reservoir.status().counts.ready).await;
    eventually("and counted", Some(1.0), async || {
        value(&page.render(), "forebay_reservoir_size{service=\"shop\"}")
    })
    .await;
    let text = page.render();
    for name in NAMES {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help text:\n{text}");
    }
    let expected = [
        ("forebay_reservoir_checkouts_total{service=\"shop\"}", 2.0),
        ("forebay_reservoir_empty_total{service=\"shop\"}", 1.0),
        ("forebay_reservoir_shortages_total{service=\"shop\",reason=\"all_lent\"}", 1.0),
        ("forebay_reservoir_discards_total{service=\"shop\",reason=\"bad\"}", 1.0),
        ("forebay_reservoir_discards_total{service=\"shop\",reason=\"expired\"}", 0.0),
        ("forebay_reservoir_refills_total{service=\"shop\"}", 3.0),
        ("forebay_reservoir_dial_seconds_count{service=\"shop\"}", 3.0),
        ("forebay_reservoir_retirement_age_seconds_count{service=\"shop\"}", 1.0),
        ("forebay_reservoir_wait_seconds_count{service=\"shop\"}", 1.0),
        ("forebay_reservoir_lingering{service=\"shop\"}", 0.0),
        ("forebay_reservoir_longest_lingering_seconds{service=\"shop\"}", 0.0),
        ("forebay_reservoir_close_timeouts_total{service=\"shop\"}", 0.0),
        ("forebay_reservoir_waiting_callers{service=\"shop\"}", 0.0),
        ("forebay_reservoir_local_limits_only{service=\"shop\"}", 0.0),
    ];
    for (series, count) in expected {
        assert_eq!(value(&text, series), Some(count), "{series}\n{text}");
    }
    drop((held, reservoir, lost));
    check(&text);
}

/// Runs `promtool check metrics` of Debian's package prometheus.
fn check(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there: script/bootstrap installs it");
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let output_text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output_text));
}
