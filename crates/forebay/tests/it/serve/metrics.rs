//! `docs/metrics.md` has every metric of the code, and no other, with its kind, its labels and its words.
//!
//! Kinds and labels are read off the places in the code that set a metric, and off what a running server and a running gate tell; each metric is
//! in at least one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::operations::{file, workspace};
use super::support::{Place, Reader};
use crate::admin::check_metrics;
use crate::forebay_process::ForebayProcess;
use crate::limits::{TRUSTED, USERS, open_stream};
use crate::streaming_upstream::StreamingUpstream;
use crate::wire::{HttpConnection, until};

/// A kind, and the names of the labels.
type Fact = (String, BTreeSet<String>);

/// By the metric's name.
type Facts = BTreeMap<String, BTreeSet<Fact>>;

struct Row {
    fact: Fact,
    help: String,
}

fn documented() -> BTreeMap<String, Row> {
    let page = file("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').splitn(4, '|').map(str::trim).collect();
        let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let fact = (cells[1].to_owned(), words(cells[2]));
        (cells[0].trim_matches('`').to_owned(), Row { fact, help: cells[3].to_owned() })
    });
    rows.collect()
}

/// Every Rust file of a crate, with what rustfmt broke into lines put together again.
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

/// `const NAME: &str = "value"` of those that are metrics.
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

/// The arguments of a macro, up to the bracket that closes it.
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

/// `counter!(metrics::NAME, "label" => value, …)`, of which the constant and the labels.
fn uses<'a>(text: &'a str, kind: &str) -> Vec<(&'a str, BTreeSet<String>)> {
    let mark = format!("{kind}!(");
    let calls = text.match_indices(&mark).filter(|(at, _)| !text[..*at].ends_with('_'));
    calls
        .map(|(at, _)| {
            let arguments = arguments(&text[at + mark.len()..]);
            let name = arguments.split(',').next().unwrap_or_default().trim();
            // What stands before an arrow ends with the label's name.
            let befores = arguments.match_indices("=>").map(|(at, _)| arguments[..at].trim_end());
            let labels = befores.filter_map(|before| before.strip_suffix('"')?.rsplit('"').next());
            (name.rsplit("::").next().unwrap_or(name), labels.map(str::to_owned).collect())
        })
        .collect()
}

/// What the code says: all names, and of those that are set by name how.
fn coded() -> Facts {
    let mut facts = Facts::new();
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

/// What a process tells, with the same words as the docs.
fn told(text: &str, documented: &BTreeMap<String, Row>) -> Facts {
    check_metrics(text);
    let mut facts = Facts::new();
    let (mut name, mut kind) = ("", "");
    for line in text.lines() {
        if let Some((of, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let row = documented.get(of).unwrap_or_else(|| panic!("no {of} in docs/metrics.md"));
            assert_eq!(row.help, help, "{of}");
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            (name, kind) = of.split_once(' ').unwrap();
        } else if let Some(sample) = line.strip_prefix(name) {
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

async fn told_by_serve() -> String {
    let place = Place::new("CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items VALUES (1)");
    let serve = place.serve().await;
    Reader::new(&[("table", "items")]).catch_up(&serve).await;
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

async fn told_by_gate() -> String {
    let origin = StreamingUpstream::start().await;
    let gate = ForebayProcess::start_gate_with(&origin.url(), &TRUSTED, &USERS);
    drop(open_stream(&gate, "/", &["X-User-ID: ada"]).await.unwrap());
    HttpConnection::fetch(gate.addr, "GET", "/", &["Connection: Upgrade", "Upgrade: websocket"], "").await;
    gate.wait_until_empty().await;
    gate.metrics().await
}

#[tokio::test]
async fn the_docs_have_every_metric_with_its_kind_its_labels_and_its_words_and_no_other() {
    let documented = documented();
    let mut facts = coded();
    let names = |facts: &Facts| facts.keys().cloned().collect::<Vec<_>>();
    assert_eq!(documented.keys().cloned().collect::<Vec<_>>(), names(&facts));
    for text in [told_by_serve().await, told_by_gate().await] {
        for (name, found) in told(&text, &documented) {
            facts.entry(name).or_default().extend(found);
        }
    }
    for (name, found) in facts {
        let row = documented.get(&name).unwrap_or_else(|| panic!("no {name} in docs/metrics.md"));
        assert_eq!(found, [row.fact.clone()].into(), "{name}");
    }
}
