//! Alerts, dashboard and runbook agree with each other and with the documented metrics.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_admission::{RejectionReason, State};

/// Returns the root of the repository.
pub(super) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads a file of the repository.
pub(super) fn file(name: &str) -> String {
    fs::read_to_string(workspace().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names of metrics in a text, without the suffixes of histograms.
fn metric_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| {
        word.starts_with("forebay_") || matches!(*word, "process_open_fds" | "process_max_fds")
    });
    let base = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        histogram.filter(|name| name.ends_with("_seconds")).unwrap_or(word).to_owned()
    };
    // Names of crates look the same.
    let is_crate =
        |name: &String| matches!(name.as_str(), "forebay_serve" | "forebay_gate" | "forebay_admission");
    ours.map(base).filter(|name| !is_crate(name)).collect()
}

/// Returns the metrics in `docs/metrics.md`.
fn documented() -> BTreeSet<String> {
    file("docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn promtool_accepts_the_recording_rules_for_the_dsql_plugin() {
    check_rules("dsql-metrics.yml", "dsql-metrics.test.yml");
}

#[test]
fn promtool_accepts_the_alerts_and_the_runbook_has_them_all() {
    check_rules("alerts.yml", "alerts.test.yml");
    let (alerts, runbook) = (file("ops/alerts.yml"), file("docs/operations.md"));
    let alerts: Vec<_> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect();
    let sections: Vec<_> =
        runbook.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    assert_eq!(alerts, sections, "alerts and sections have the same order");
    assert!(!alerts.is_empty());
}

#[test]
fn each_alert_is_tested_to_fire_and_to_stay_quiet() {
    let (alerts, tests) = (file("ops/alerts.yml"), file("ops/alerts.test.yml"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("        alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&fires), "{alert} has no test in which it fires");
        let quiet = format!("alertname: {alert}, exp_alerts: []");
        assert!(tests.contains(&quiet), "{alert} has no test in which it stays quiet");
    }
}

#[test]
fn alerts_name_states_and_reasons_that_exist() {
    let alerts = file("ops/alerts.yml");
    let named = |metric: &str| -> BTreeSet<String> {
        let start = format!("{metric}{{");
        let selectors = alerts.split(start.as_str()).skip(1);
        let values = selectors.map(|rest| rest.split('"').nth(1).unwrap());
        values.flat_map(|values| values.split('|')).map(str::to_owned).collect()
    };
    let states: BTreeSet<_> = State::ALL.map(|state| state.as_str().to_owned()).into();
    let reasons: BTreeSet<_> = RejectionReason::ALL.map(|reason| reason.as_str().to_owned()).into();
    for (metric, known) in
        [("forebay_admission_health_state", states), ("forebay_admission_rejected_total", reasons)]
    {
        let named = named(metric);
        assert!(!named.is_empty() && named.is_subset(&known), "{metric}: {named:?} of {known:?}");
    }
}

/// Checks rules and runs their tests with promtool.
fn check_rules(rules: &str, tests: &str) {
    for (command, file) in [("check", rules), ("test", tests)] {
        let mut promtool = Command::new("promtool");
        promtool.args([command, "rules", file]).current_dir(workspace().join("ops"));
        let output = promtool.output().expect("promtool is installed (Debian: prometheus)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn alerts_dashboard_and_runbook_name_only_documented_metrics() {
    let documented = documented();
    let sources = [
        "ops/alerts.yml",
        "ops/alerts.test.yml",
        "ops/dsql-metrics.yml",
        "ops/dsql-metrics.test.yml",
        "ops/grafana.json",
        "docs/operations.md",
    ];
    for source in sources {
        let used = metric_names(&file(source));
        let missing: Vec<_> = used.difference(&documented).collect();
        assert!(!used.is_empty() && missing.is_empty(), "{source} names {missing:?}");
    }
    serde_json::from_str::<serde_json::Value>(&file("ops/grafana.json")).expect("the dashboard is JSON");
}
