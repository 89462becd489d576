//! Pages that name tests: the threat model, and the promises of ARCHITECTURE.md. There are such tests.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The heading of the promises in ARCHITECTURE.md.
const PROMISES: &str = "\n## Promises and their tests\n";
/// What stands before the list of promises in a crate's README.
const ALWAYS: &str = "\nWhat always holds:\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Adds the names of all tests in a folder of sources.
fn collect_tests(dir: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(dir).expect("a folder of this repository") {
        let entry = entry.expect("an entry of it").path();
        if entry.is_dir() && !entry.ends_with("target") {
            collect_tests(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            tests_of(&fs::read_to_string(entry).expect("a source is text"), found);
        }
    }
}

/// A test is the next function after its attribute. A macro of `seeds!` makes tests of lines that begin with `name:`.
fn tests_of(source: &str, found: &mut HashSet<String>) {
    let (mut is_test, mut in_seeds) = (false, false);
    for line in source.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        in_seeds = (in_seeds || line.starts_with("seeds! {")) && line != "}";
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let name = match function.and_then(|rest| rest.split_once('(')) {
            Some((name, _)) if std::mem::take(&mut is_test) => Some(name),
            None if in_seeds => line.split_once(':').map(|(name, _)| name),
            _ => None,
        };
        found.extend(name.map(ToOwned::to_owned));
    }
}

fn all_tests() -> HashSet<String> {
    let mut found = HashSet::new();
    collect_tests(&root().join("crates"), &mut found);
    assert!(found.len() > 2_000, "only {} tests were found", found.len());
    found
}

/// What stands in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of the promises, by the crate of their heading: the promise, and its tests.
fn promises(architecture: &str) -> Vec<(&str, &str, &str)> {
    let (_, section) = architecture.split_once(PROMISES).expect("the section of promises");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut rows, mut of) = (Vec::new(), "");
    for line in section.lines() {
        if let Some(heading) = line.strip_prefix("### crates/") {
            of = heading;
        } else if let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |"))
            && row != "promise | tests"
        {
            let (promise, tests) = row.split_once(" | ").unwrap_or_else(|| panic!("{row} has no tests"));
            rows.push((of, promise, tests));
        }
    }
    rows
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let (page, tests) = (page("docs/threat-model.md"), all_tests());
    // Names of tests are sentences: several words, and nothing but words.
    let is_sentence = |name: &&str| {
        name.matches('_').count() >= 3 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let names: Vec<&str> = quoted(&page).filter(is_sentence).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(tests.contains(name), "there is no test {name}");
    }
}

#[test]
fn every_promise_names_tests_that_are_there() {
    let (architecture, tests) = (page("ARCHITECTURE.md"), all_tests());
    let rows = promises(&architecture);
    assert!(rows.len() > 50, "{rows:?}");
    for (of, promise, named) in rows {
        assert!(quoted(named).next().is_some(), "crates/{of}: no test is named for: {promise}");
        for name in quoted(named) {
            assert!(tests.contains(name), "crates/{of}: there is no test {name} for: {promise}");
        }
    }
}

#[test]
fn a_crate_has_at_least_as_many_promises_with_tests_as_its_readme_lists() {
    let architecture = page("ARCHITECTURE.md");
    let rows = promises(&architecture);
    let mut lists = 0;
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a crate's name is text");
        let Ok(readme) = fs::read_to_string(path.join("README.md")) else { continue };
        let Some((_, list)) = readme.split_once(ALWAYS) else { continue };
        let points = list.trim_start().lines().take_while(|line| !line.is_empty());
        let points = points.filter(|line| line.starts_with("- ")).count();
        let named = rows.iter().filter(|(of, ..)| *of == name).count();
        assert!(named >= points, "crates/{name}: {points} promises, and {named} rows in ARCHITECTURE.md");
        lists += 1;
    }
    assert_eq!(lists, 12, "READMEs with a list of what always holds");
}
