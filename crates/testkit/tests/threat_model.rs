//! The threat model's claims name tests, and these are there.

use std::fs;
use std::path::{Path, PathBuf};

/// All sources of tests.
fn sources(dir: &Path, found: &mut String) {
    for entry in fs::read_dir(dir).expect("a folder of this repository") {
        let entry = entry.expect("an entry of it").path();
        if entry.is_dir() && !entry.ends_with("target") {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&fs::read_to_string(entry).expect("a source is text"));
        }
    }
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/threat-model.md")).unwrap();
    let mut all = String::new();
    sources(&root.join("crates"), &mut all);
    // Names of tests are sentences: several words, and nothing but words.
    let is_sentence = |name: &&str| {
        name.matches('_').count() >= 3 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).filter(is_sentence).collect();
    assert!(names.len() > 25, "{names:?}");
    for name in names {
        assert!(all.contains(&format!("fn {name}(")), "there is no test {name}");
    }
}
