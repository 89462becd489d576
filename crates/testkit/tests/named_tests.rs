//! Checks that every test that the threat model and the invariants name exists.
//!
//! The invariants of a crate are a list in its `lib.rs`, under [`INVARIANTS`]. Each item names the
//! tests that fail if the invariant is broken.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Heading of the list of invariants in a `lib.rs`.
const INVARIANTS: &str = "//! # Invariants and their tests";
/// Line before the list of guarantees in a crate's README.
const GUARANTEES: &str = "\nGuarantees:\n";
/// Crates without a list of guarantees: tools for tests and benchmarks.
const WITHOUT_GUARANTEES: &[&str] = &["sandbox", "testkit", "races"];

/// An invariant of a crate and the tests that its text names.
#[derive(Debug)]
struct Invariant {
    text: String,
    tests: Vec<String>,
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Adds the names of all tests in a folder of sources.
fn collect_tests(dir: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(dir).expect("a folder of this repository") {
        let entry = entry.expect("an entry of the folder").path();
        if entry.is_dir() && !entry.ends_with("target") {
            collect_tests(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            tests_of(&read(&entry), found);
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

/// Returns the names of tests between backticks: at least four words of lower-case letters and
/// digits.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |name: &&str| {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        name.matches('_').count() >= 3 && name.bytes().all(is_part)
    };
    text.split('`').skip(1).step_by(2).filter(is_sentence)
}

/// Returns the items of the list under [`INVARIANTS`].
fn invariants(source: &str) -> Vec<Invariant> {
    let Some((_, section)) = source.split_once(INVARIANTS) else { return Vec::new() };
    let mut items: Vec<String> = Vec::new();
    for line in section.lines().skip(1).take_while(|line| line.starts_with("//!") && !is_heading(line)) {
        if let Some(first) = line.strip_prefix("//! - ") {
            items.push(first.to_owned());
        } else if let (Some(next), Some(item)) = (line.strip_prefix("//!   "), items.last_mut()) {
            item.push(' ');
            item.push_str(next);
        }
    }
    let invariant =
        |text: String| Invariant { tests: named_tests(&text).map(ToOwned::to_owned).collect(), text };
    items.into_iter().map(invariant).collect()
}

fn is_heading(line: &str) -> bool {
    line.starts_with("//! # ")
}

/// Returns the folders of the crates that have a list of guarantees.
fn crates_with_guarantees() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("crates")).expect("the folder of the crates");
    let folders = folders.map(|entry| entry.expect("an entry of the folder").path());
    let has_guarantees = |path: &PathBuf| !WITHOUT_GUARANTEES.iter().any(|name| path.ends_with(name));
    let folders: Vec<PathBuf> = folders.filter(has_guarantees).collect();
    assert_eq!(folders.len(), 14, "{folders:?}");
    folders
}

#[test]
fn every_test_named_in_the_threat_model_exists() {
    let (page, tests) = (read(&root().join("docs/threat-model.md")), all_tests());
    let names: Vec<&str> = named_tests(&page).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(tests.contains(name), "there is no test {name}");
    }
}

#[test]
fn every_invariant_names_tests_that_exist() {
    let tests = all_tests();
    for folder in crates_with_guarantees() {
        let folder = folder.display();
        let invariants = invariants(&read(Path::new(&format!("{folder}/src/lib.rs"))));
        assert!(invariants.len() > 2, "{folder}: {invariants:?}");
        for Invariant { text, tests: named } in invariants {
            assert!(!named.is_empty(), "{folder}: no test is named for: {text}");
            for name in named {
                assert!(tests.contains(&name), "{folder}: there is no test {name} for: {text}");
            }
        }
    }
}

#[test]
fn a_crate_has_at_least_as_many_invariants_as_its_readme_has_guarantees() {
    for folder in crates_with_guarantees() {
        let readme = read(&folder.join("README.md"));
        let (_, list) = readme.split_once(GUARANTEES).unwrap_or_else(|| panic!("{folder:?}: no guarantees"));
        let lines = list.trim_start().lines().take_while(|line| !line.is_empty());
        let guarantees = lines.filter(|line| line.starts_with("- ")).count();
        let invariants = invariants(&read(&folder.join("src/lib.rs"))).len();
        assert!(invariants >= guarantees, "{folder:?}: {guarantees} guarantees, {invariants} invariants");
    }
}

#[test]
fn an_item_of_the_list_is_read_with_all_its_lines() {
    let source = "//! # Invariants and their tests\n//!\n//! Text.\n//!\n//! - First\n//!   goes on. \
                  `a_b_c_d`,\n//!   `e_f_g_h`\n//! - Second.\n//!\n//! # Next\n//! - Other.\n";
    let [first, second] = &invariants(source)[..] else { panic!("{:?}", invariants(source)) };
    assert_eq!(first.text, "First goes on. `a_b_c_d`, `e_f_g_h`");
    assert_eq!(first.tests, ["a_b_c_d", "e_f_g_h"]);
    assert_eq!((second.text.as_str(), second.tests.len()), ("Second.", 0));
}
