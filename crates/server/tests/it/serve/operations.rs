//! What operators get: metrics, alerts, a dashboard and a runbook that agree with each other and with the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Place, Reader};
use crate::admin::check_metrics;
use crate::wire::until;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(name: &str) -> String {
    fs::read_to_string(workspace().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names of metrics in a text, without what Prometheus adds to those of histograms.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| {
        word.starts_with("forebay_") || matches!(*word, "process_open_fds" | "process_max_fds")
    });
    let base = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        histogram.filter(|name| name.ends_with("_seconds")).unwrap_or(word).to_owned()
    };
    // Crates have such names, too.
    let is_metric = |name: &String| !name.starts_with("forebay_server") && name != "forebay_admission";
    ours.map(base).filter(is_metric).collect()
}

/// The metrics that the code names.
fn coded() -> BTreeSet<String> {
    let crates = fs::read_dir(workspace().join("crates")).unwrap();
    let mut found = BTreeSet::new();
    for file in crates.flat_map(|one| {
        let src = one.unwrap().path().join("src");
        [src.join("metrics.rs"), src.join("serve/metrics.rs")]
    }) {
        let Ok(text) = fs::read_to_string(file) else { continue };
        let constants = text.lines().filter(|line| line.contains("const ") && line.contains(": &str = \""));
        found.extend(constants.flat_map(names));
    }
    assert!(found.len() > 60, "{found:?}");
    found
}

fn documented() -> BTreeSet<String> {
    file("docs/metrics.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_docs_have_every_metric_of_the_code_and_no_other() {
    assert_eq!(documented(), coded());
}

#[tokio::test]
async fn a_server_tells_only_of_what_is_documented_with_the_same_words() {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let serve = place.serve().await;
    Reader::new(&[("table", "items")]).catch_up(&serve).await;
    until("the snapshot is counted", async || {
        serve.metrics().await.contains(r#"forebay_serve_snapshots_total{outcome="complete"} 1"#)
    })
    .await;
    let text = serve.metrics().await;
    check_metrics(&text);
    let (docs, mut told) = (file("docs/metrics.md"), 0);
    for help in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = help.split_once(' ').unwrap();
        let kind = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap();
        let row = docs.lines().find(|line| line.starts_with(&format!("| `{name}` | {kind} |")));
        let row = row.unwrap_or_else(|| panic!("no {kind} {name} in docs/metrics.md"));
        assert!(row.ends_with(&format!("| {help} |")), "{name} is {help:?}, and in the docs: {row}");
        told += 1;
    }
    assert!(told > 40, "{told} metrics");
    for line in [
        r#"forebay_serve_answers_total{route="shape",status="200"}"#,
        "forebay_store_writing 1",
        "process_open_fds ",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[test]
fn the_alerts_are_right_and_the_runbook_has_them_all() {
    for (what, rules) in [("check", "alerts.yml"), ("test", "alerts.test.yml")] {
        let mut promtool = Command::new("promtool");
        promtool.args([what, "rules", rules]).current_dir(workspace().join("ops"));
        let output = promtool.output().expect("promtool is installed (Debian: prometheus)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let (alerts, runbook) = (file("ops/alerts.yml"), file("docs/operations.md"));
    let alerts: Vec<_> =
        alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).map(str::to_owned).collect();
    let sections: Vec<_> =
        runbook.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    assert_eq!(alerts, sections, "in the same order");
    assert!(!alerts.is_empty());
}

#[test]
fn alerts_dashboard_and_runbook_name_metrics_that_there_are() {
    let documented = documented();
    for source in ["ops/alerts.yml", "ops/alerts.test.yml", "ops/grafana.json", "docs/operations.md"] {
        let used = names(&file(source));
        let missing: Vec<_> = used.difference(&documented).collect();
        assert!(!used.is_empty() && missing.is_empty(), "{source} names {missing:?}");
    }
    serde_json::from_str::<serde_json::Value>(&file("ops/grafana.json")).expect("the dashboard is JSON");
}

/// What stands in an `as_str` for programs: the names of errors.
fn codes() -> BTreeSet<String> {
    let files = [
        "crates/server/src/serve/protocol/refusal.rs",
        "crates/server/src/gate/refusal.rs",
        "crates/server/src/gate/failure.rs",
        "crates/admission/src/rejection.rs",
        "crates/admission/src/identity/jwt.rs",
        "crates/admission/src/identity/mod.rs",
    ];
    let is_code = |word: &&str| word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    let mut found = BTreeSet::new();
    for name in files {
        let text = file(name);
        let arms = text.lines().filter_map(|line| line.split_once("=> \"")?.1.strip_suffix("\","));
        found.extend(arms.filter(is_code).map(str::to_owned));
    }
    let admin = file("crates/server/src/admin.rs");
    found.extend(admin.split('"').filter(|word| word.contains('_')).filter(is_code).map(str::to_owned));
    assert!(found.len() > 50, "{found:?}");
    found
}

#[test]
fn the_docs_have_every_error_code_and_every_endpoint() {
    let docs = file("docs/protocol.md");
    let quoted: BTreeSet<_> = docs
        .lines()
        .filter(|line| line.starts_with("| `"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect();
    let missing: Vec<_> = codes().into_iter().filter(|code| !quoted.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "docs/protocol.md lacks {missing:?}");
    let tables = docs.split("## Answers that are not 200").nth(1).expect("a section");
    let (codes, listed) = (codes(), tables.lines().filter_map(|line| line.strip_prefix("| `")));
    for code in listed.flat_map(|line| {
        line.split(" | ").next().unwrap_or_default().split(['`', ',', ' ']).collect::<Vec<_>>()
    }) {
        assert!(code.is_empty() || codes.contains(code), "nobody answers {code}");
    }
    // An arm of the admin address's match; the doc of a route.
    let sources =
        [("crates/server/src/admin.rs", "\"/"), ("crates/server/src/serve/protocol/routes.rs", "/// `/")];
    let mut paths = 0;
    for (name, mark) in sources {
        for line in file(name).lines().filter_map(|line| line.trim().strip_prefix(mark)) {
            let path = format!("/{}", line.split(['"', '`']).next().unwrap_or_default());
            assert!(quoted.contains(path.as_str()), "docs/protocol.md lacks {path}");
            paths += 1;
        }
    }
    assert!(paths >= 8, "{paths} paths");
}
