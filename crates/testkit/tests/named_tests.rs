//! Checks that every test named in the threat model and in the promises of ARCHITECTURE.md exists.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The heading of the promises in ARCHITECTURE.md.
const PROMISES: &str = "\n## Promises and their tests\n";
/// Line before the list of promises in a crate's README.
const PROMISE_LIST: &str = "\nWhat always holds:\n";

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Adds the names of all tests in a folder of sources.
fn collect_tests(dir: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(dir).expect("a folder of this repository") {
        let entry = entry.expect("an entry of the folder").path();
        if entry.is_dir() && !entry.ends_with("target") {
            collect_tests(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            tests_of(&fs::read_to_string(entry).expect("a source is text"), found);
        }
    }
}

/// Adds the names of the tests in a source. A test is the next function after a test attribute. In
/// a `seeds!` macro, each line that begins with `name:` is a test.
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

/// Returns all texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the crate, the promise and the tests of each row in the section of promises.
fn promises(architecture: &str) -> Vec<(&str, &str, &str)> {
    let (_, section) = architecture.split_once(PROMISES).expect("the section of promises");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut rows, mut crate_name) = (Vec::new(), "");
    for line in section.lines() {
        if let Some(heading) = line.strip_prefix("### crates/") {
            crate_name = heading;
        } else if let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix(" |"))
            && row != "promise | tests"
        {
            let (promise, tests) = row.split_once(" | ").unwrap_or_else(|| panic!("{row} has no tests"));
            rows.push((crate_name, promise, tests));
        }
    }
    rows
}

#[test]
fn every_test_named_in_the_threat_model_exists() {
    let (page, tests) = (page("docs/threat-model.md"), all_tests());
    // A test's name has at least four words of lower-case letters.
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
fn every_test_named_by_a_promise_exists() {
    let (architecture, tests) = (page("ARCHITECTURE.md"), all_tests());
    let rows = promises(&architecture);
    assert!(rows.len() > 50, "{rows:?}");
    for (crate_name, promise, named) in rows {
        assert!(quoted(named).next().is_some(), "crates/{crate_name}: no test is named for: {promise}");
        for name in quoted(named) {
            assert!(tests.contains(name), "crates/{crate_name}: there is no test {name} for: {promise}");
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
        let Some((_, list)) = readme.split_once(PROMISE_LIST) else { continue };
        let points = list.trim_start().lines().take_while(|line| !line.is_empty());
        let points = points.filter(|line| line.starts_with("- ")).count();
        let named = rows.iter().filter(|(of, ..)| *of == name).count();
        assert!(named >= points, "crates/{name}: {points} promises, and {named} rows in ARCHITECTURE.md");
        lists += 1;
    }
    assert_eq!(lists, 12, "READMEs with a list of what always holds");
}
