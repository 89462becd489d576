//! The arrows between the crates are those of ARCHITECTURE.md, and no others.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Each crate, by its folder under `crates/`, and the crates that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("redis", &[]),
    ("quota", &["redis"]),
    ("admission", &["quota"]),
    ("reservoir", &["quota"]),
    ("pgoutput", &[]),
    ("replication", &["pgoutput", "reservoir"]),
    ("filter", &[]),
    ("shapes", &["filter", "pgoutput"]),
    ("stream", &[]),
    ("sandbox", &[]),
    ("serve", &["quota", "admission", "reservoir", "pgoutput", "replication", "filter", "shapes", "stream"]),
    ("gate", &["quota", "admission", "stream"]),
    (
        "forebay",
        &[
            "redis",
            "quota",
            "admission",
            "reservoir",
            "pgoutput",
            "replication",
            "filter",
            "shapes",
            "stream",
            "serve",
            "gate",
            "sandbox",
        ],
    ),
    ("testkit", &["sandbox"]),
];
/// What tests of any crate may use besides.
const FOR_TESTS: &[&str] = &["sandbox", "testkit"];
/// Depends on whatever it measures; nothing depends on it.
const UNBOUND: &[&str] = &["races"];

#[derive(Debug)]
struct Arrow {
    from: String,
    to: String,
    for_tests: bool,
}

/// Every broken rule, in words.
fn violations(crates: &[String], arrows: &[Arrow]) -> Vec<String> {
    let row = |name: &str| ARROWS.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    let unbound = |name: &str| UNBOUND.contains(&name);
    let unknown = crates.iter().filter(|name| row(name).is_none() && !unbound(name));
    let unknown = unknown.map(|name| format!("crates/{name} has no row in the table of arrows"));
    let forbidden = arrows.iter().filter(|arrow| {
        let allowed = row(&arrow.from).unwrap_or_default().contains(&arrow.to.as_str());
        let in_tests = arrow.for_tests && FOR_TESTS.contains(&arrow.to.as_str());
        !(allowed || in_tests || unbound(&arrow.from))
    });
    let forbidden = forbidden.map(|Arrow { from, to, for_tests }| {
        let kind = if *for_tests { "tests of " } else { "" };
        format!("{kind}crates/{from} may not depend on crates/{to}")
    });
    unknown.chain(forbidden).collect()
}

#[test]
fn every_dependency_between_our_crates_is_an_arrow_of_the_design() {
    let (crates, arrows) = read_workspace();
    assert!(crates.iter().any(|name| name == "testkit"), "found {crates:?}");
    let violations = violations(&crates, &arrows);
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn a_bad_arrow_is_caught() {
    let arrow = |from: &str, to: &str, for_tests| Arrow { from: from.into(), to: to.into(), for_tests };
    let check = |crates: &[&str], arrows: &[Arrow]| {
        let crates: Vec<_> = crates.iter().map(ToString::to_string).collect();
        violations(&crates, arrows)
    };
    assert_eq!(
        check(&["redis"], &[arrow("redis", "quota", false)]),
        ["crates/redis may not depend on crates/quota"]
    );
    assert_eq!(
        check(&["quota"], &[arrow("quota", "testkit", false)]),
        ["crates/quota may not depend on crates/testkit"]
    );
    assert_eq!(
        check(&["shapes"], &[arrow("shapes", "redis", true)]),
        ["tests of crates/shapes may not depend on crates/redis"]
    );
    assert_eq!(
        check(&["forebay"], &[arrow("forebay", "races", false)]),
        ["crates/forebay may not depend on crates/races"]
    );
    assert_eq!(
        check(&["gate"], &[arrow("gate", "serve", false)]),
        ["crates/gate may not depend on crates/serve"]
    );
    assert_eq!(check(&["novelty"], &[]), ["crates/novelty has no row in the table of arrows"]);

    let fine =
        [arrow("quota", "redis", false), arrow("quota", "testkit", true), arrow("races", "redis", false)];
    assert!(check(&["quota", "redis", "races"], &fine).is_empty());
}

fn read_workspace() -> (Vec<String>, Vec<Arrow>) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"]).arg(manifest);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");

    let (mut crates, mut arrows) = (Vec::new(), Vec::new());
    for package in list(&metadata["packages"]) {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
        let from = folder(manifest.parent().expect("a manifest is in a folder"));
        for dependency in list(&package["dependencies"]) {
            if let Some(path) = dependency["path"].as_str() {
                let for_tests = dependency["kind"] == "dev";
                arrows.push(Arrow { from: from.clone(), to: folder(Path::new(path)), for_tests });
            }
        }
        crates.push(from);
    }
    (crates, arrows)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("cargo's metadata has lists here")
}

fn folder(path: &Path) -> String {
    path.file_name().expect("a crate is in a folder").to_string_lossy().into_owned()
}
