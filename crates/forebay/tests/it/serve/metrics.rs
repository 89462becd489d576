//! The tables of `docs/metrics.md` are generated from the code, with `UPDATE_DOCS=1`.
//!
//! Names, help texts and their order are those that `describe` of each crate gives the recorder.
//! Kinds and labels are taken from the macro calls in the sources, and from `/metrics` of a running
//! server and a running gate. Each metric is in at least one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;

use super::operations::workspace;
use super::support::{ServeFixture, ShapeReader};
use crate::admin::check_metrics;
use crate::forebay_process::ForebayProcess;
use crate::generated_page::assert_section;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::scripted_upstream::ScriptedUpstream;
use crate::streaming_upstream::StreamingUpstream;
use crate::upgraded_connections::open_upgraded;
use crate::wire::{HttpConnection, until};

/// Kind of a metric, and the names of its labels.
type MetricFact = (String, BTreeSet<String>);

/// Facts by the name of the metric.
type MetricFacts = BTreeMap<String, BTreeSet<MetricFact>>;

/// Function that describes the metrics of a crate to the recorder.
type DescribeFn = fn();

/// Sections of the page, and the functions that describe their metrics.
const SECTIONS: [(&str, &[DescribeFn]); 6] = [
    ("program", &[forebay_gate::metrics::describe, forebay::metrics::describe]),
    ("shapes", &[forebay_serve::metrics::describe]),
    ("postgres", &[forebay_replication::metrics::describe]),
    ("reservoir", &[forebay_replication::reservoir::metrics::describe]),
    ("admission", &[forebay_admission::metrics::describe]),
    ("redis", &[forebay_redis::metrics::describe]),
];

/// Recorder that keeps name, kind and help text of each description.
#[derive(Default)]
struct DescriptionRecorder(Mutex<Vec<(String, &'static str, String)>>);

impl DescriptionRecorder {
    fn add(&self, name: &KeyName, kind: &'static str, help: &SharedString) {
        self.0.lock().push((name.as_str().to_owned(), kind, help.to_string()));
    }
}

impl Recorder for DescriptionRecorder {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.add(&name, "counter", &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.add(&name, "gauge", &help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.add(&name, "histogram", &help);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Returns the table of a section, and removes its metrics from `facts`.
fn table(describe: &[DescribeFn], facts: &mut MetricFacts) -> String {
    let recorder = DescriptionRecorder::default();
    metrics::with_local_recorder(&recorder, || describe.iter().for_each(|describe| describe()));
    let mut table = String::from("| metric | kind | labels | what |\n|---|---|---|---|\n");
    for (name, kind, help) in recorder.0.into_inner() {
        let found = facts.remove(&name).unwrap_or_else(|| panic!("{name} is described, but never set"));
        let kinds: Vec<_> = found.iter().map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds, [kind], "{name} has one kind and the same labels everywhere: {found:?}");
        let labels = found.into_iter().flat_map(|(_, labels)| labels);
        let labels = labels.map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        table += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
    }
    table
}

/// Reads every Rust file below a folder, with line breaks replaced by spaces.
fn sources(folder: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => sources(&path, texts),
            path if path.extension().is_some_and(|end| end == "rs") => {
                let text = fs::read_to_string(path).unwrap();
                texts.push(text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            _ => {}
        }
    }
}

/// Returns the constants `const NAME: &str = "value"` whose value is the name of a metric.
fn constants(text: &str) -> BTreeMap<&str, &str> {
    let found = text.split("const ").filter_map(|rest| {
        let (name, value) = rest.split_once(": &str = \"")?;
        let value = value.split('"').next()?;
        let is_name = name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_');
        let is_metric = value.starts_with("forebay_") || value.starts_with("process_");
        (is_name && is_metric).then_some((name, value))
    });
    found.collect()
}

/// Returns the arguments of a macro call, up to its closing bracket.
fn arguments(call: &str) -> &str {
    let mut depth = 1;
    let end = call.find(|letter| {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &call[..end.unwrap_or(call.len())]
}

/// Returns constant and labels of each call such as `counter!(metrics::NAME, "label" => value)`.
fn uses<'a>(text: &'a str, kind: &str) -> Vec<(&'a str, BTreeSet<String>)> {
    let mark = format!("{kind}!(");
    let calls = text.match_indices(&mark).filter(|(at, _)| !text[..*at].ends_with('_'));
    calls
        .map(|(at, _)| {
            let arguments = arguments(&text[at + mark.len()..]);
            let name = arguments.split(',').next().unwrap_or_default().trim();
            // The text before an arrow ends with the name of the label.
            let befores = arguments.match_indices("=>").map(|(at, _)| arguments[..at].trim_end());
            let labels = befores.filter_map(|before| before.strip_suffix('"')?.rsplit('"').next());
            (name.rsplit("::").next().unwrap_or(name), labels.map(str::to_owned).collect())
        })
        .collect()
}

/// Returns all metrics of the sources, with the facts of those that a macro sets by name.
fn metrics_of_sources() -> MetricFacts {
    let mut facts = MetricFacts::new();
    for one in fs::read_dir(workspace().join("crates")).unwrap() {
        let (mut texts, folder) = (Vec::new(), one.unwrap().path().join("src"));
        if !folder.is_dir() {
            continue;
        }
        sources(&folder, &mut texts);
        let names: BTreeMap<&str, &str> = texts.iter().flat_map(|text| constants(text)).collect();
        facts.extend(names.values().map(|name| ((*name).to_owned(), BTreeSet::new())));
        for kind in ["counter", "gauge", "histogram"] {
            for (constant, labels) in texts.iter().flat_map(|text| uses(text, kind)) {
                let Some(name) = names.get(constant) else { continue };
                facts.entry((*name).to_owned()).or_default().insert((kind.to_owned(), labels));
            }
        }
    }
    assert!(facts.len() > 60, "{facts:?}");
    facts
}

/// Parses `/metrics` of a process.
fn metrics_of_process(text: &str) -> MetricFacts {
    check_metrics(text);
    let mut facts = MetricFacts::new();
    let (mut name, mut kind) = ("", "");
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            (name, kind) = of.split_once(' ').unwrap();
        } else if !line.starts_with('#')
            && let Some(sample) = line.strip_prefix(name)
        {
            let labels = sample
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or("", |(labels, _)| labels);
            let labels = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
            let labels = labels.filter(|label| label != "le").collect();
            facts.entry(name.to_owned()).or_default().insert((kind.to_owned(), labels));
        }
    }
    facts
}

/// Returns `/metrics` of a server that has served a shape.
async fn scrape_serve() -> String {
    let fixture = ServeFixture::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let serve = fixture.serve().await;
    ShapeReader::new(&[("table", "items")]).catch_up(&serve).await;
    until("the snapshot is counted", async || {
        serve.metrics().await.contains(r#"forebay_serve_snapshots_total{outcome="complete"} 1"#)
    })
    .await;
    let text = serve.metrics().await;
    for line in [
        r#"forebay_serve_answers_total{route="shape",status="200"}"#,
        "forebay_store_writing 1",
        "process_open_fds ",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
    text
}

/// Returns `/metrics` of a gate that has forwarded a request.
async fn scrape_gate() -> String {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &USERS);
    drop(open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap());
    HttpConnection::fetch(gate.addr, "GET", "/", &["Host: another"], "").await; // refused: two hosts
    gate.wait_until_empty().await;
    gate.metrics().await
}

/// Returns `/metrics` of a gate that has had an upgraded connection.
async fn scrape_gate_with_upgrade() -> String {
    let origin = ScriptedUpstream::start().await;
    let gate = ForebayProcess::start_gate(&origin.url(), &[]);
    drop(open_upgraded(&origin, &gate).await);
    gate.wait_until_empty().await;
    gate.metrics().await
}

#[tokio::test]
async fn the_docs_list_every_metric_with_kind_labels_and_help_text_and_no_other() {
    let mut facts = metrics_of_sources();
    for text in [scrape_serve().await, scrape_gate().await, scrape_gate_with_upgrade().await] {
        for (name, found) in metrics_of_process(&text) {
            facts.entry(name).or_default().extend(found);
        }
    }
    let page = workspace().join("docs/metrics.md");
    for (section, describe) in SECTIONS {
        assert_section(page.to_str().unwrap(), section, &table(describe, &mut facts));
    }
    assert!(facts.is_empty(), "metrics without a line in `describe`: {:?}", facts.keys());
}
