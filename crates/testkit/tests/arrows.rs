//! Checks that the crates depend on each other only as the table of ARCHITECTURE.md allows.

mod workspace;

use std::path::Path;

use serde_json::Value;

use crate::workspace::workspace_packages;

/// Each crate, by its folder under `crates/`, and the crates that it may depend on.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("redis", &[]),
    ("quota", &["redis"]),
    ("admission", &["quota", "redis"]),
    ("reservoir", &["quota"]),
    ("pgoutput", &[]),
    ("replication", &["pgoutput", "reservoir"]),
    ("values", &[]),
    ("filter", &["values"]),
    ("shapes", &["filter", "pgoutput"]),
    ("stream", &[]),
    ("settings", &[]),
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
            "settings",
            "serve",
            "gate",
            "sandbox",
        ],
    ),
    ("testkit", &["sandbox"]),
];
/// Crates that the tests of any crate may also use.
const FOR_TESTS: &[&str] = &["sandbox", "testkit"];
/// Crates that may depend on any other crate. No crate may depend on them.
const UNRESTRICTED: &[&str] = &["races"];

#[derive(Debug)]
struct CrateDependency {
    from: String,
    to: String,
    for_tests: bool,
}

/// Returns a text for each dependency that isn't allowed, and for each crate without a row.
fn violations(crates: &[String], dependencies: &[CrateDependency]) -> Vec<String> {
    let row = |name: &str| ALLOWED_DEPENDENCIES.iter().find(|(from, _)| *from == name).map(|(_, to)| *to);
    let unrestricted = |name: &str| UNRESTRICTED.contains(&name);
    let unknown = crates.iter().filter(|name| row(name).is_none() && !unrestricted(name));
    let unknown = unknown.map(|name| format!("crates/{name} has no row in the table of dependencies"));
    let forbidden = dependencies.iter().filter(|dependency| {
        let allowed = row(&dependency.from).unwrap_or_default().contains(&dependency.to.as_str());
        let in_tests = dependency.for_tests && FOR_TESTS.contains(&dependency.to.as_str());
        !(allowed || in_tests || unrestricted(&dependency.from))
    });
    let forbidden = forbidden.map(|CrateDependency { from, to, for_tests }| {
        let kind = if *for_tests { "tests of " } else { "" };
        format!("{kind}crates/{from} may not depend on crates/{to}")
    });
    unknown.chain(forbidden).collect()
}

#[test]
fn every_dependency_between_crates_is_in_the_table() {
    let (crates, dependencies) = read_workspace();
    assert!(crates.iter().any(|name| name == "testkit"), "found {crates:?}");
    let violations = violations(&crates, &dependencies);
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn a_forbidden_dependency_is_reported() {
    let dependency =
        |from: &str, to: &str, for_tests| CrateDependency { from: from.into(), to: to.into(), for_tests };
    let check = |crates: &[&str], dependencies: &[CrateDependency]| {
        let crates: Vec<_> = crates.iter().map(ToString::to_string).collect();
        violations(&crates, dependencies)
    };
    assert_eq!(
        check(&["redis"], &[dependency("redis", "quota", false)]),
        ["crates/redis may not depend on crates/quota"]
    );
    assert_eq!(
        check(&["quota"], &[dependency("quota", "testkit", false)]),
        ["crates/quota may not depend on crates/testkit"]
    );
    assert_eq!(
        check(&["shapes"], &[dependency("shapes", "redis", true)]),
        ["tests of crates/shapes may not depend on crates/redis"]
    );
    assert_eq!(
        check(&["forebay"], &[dependency("forebay", "races", false)]),
        ["crates/forebay may not depend on crates/races"]
    );
    assert_eq!(
        check(&["gate"], &[dependency("gate", "serve", false)]),
        ["crates/gate may not depend on crates/serve"]
    );
    assert_eq!(check(&["unknown"], &[]), ["crates/unknown has no row in the table of dependencies"]);

    let allowed = [
        dependency("quota", "redis", false),
        dependency("quota", "testkit", true),
        dependency("races", "redis", false),
    ];
    assert!(check(&["quota", "redis", "races"], &allowed).is_empty());
}

/// Returns the folders of all crates, and the dependencies between them.
fn read_workspace() -> (Vec<String>, Vec<CrateDependency>) {
    let (mut crates, mut dependencies) = (Vec::new(), Vec::new());
    for package in workspace_packages() {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a package has a manifest"));
        let from = folder(manifest.parent().expect("a manifest is in a folder"));
        for entry in list(&package["dependencies"]) {
            if let Some(path) = entry["path"].as_str() {
                let for_tests = entry["kind"] == "dev";
                dependencies.push(CrateDependency {
                    from: from.clone(),
                    to: folder(Path::new(path)),
                    for_tests,
                });
            }
        }
        crates.push(from);
    }
    (crates, dependencies)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("cargo's metadata has lists here")
}

fn folder(path: &Path) -> String {
    path.file_name().expect("a crate is in a folder").to_string_lossy().into_owned()
}
