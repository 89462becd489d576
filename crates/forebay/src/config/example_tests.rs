//! Tests of the example files: they list every key, and their values are the defaults.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::gate_file::GateFile;
use super::serve_file::ServeFile;
use super::settings_file::SettingsFile;
use super::{GATE_EXAMPLE, SERVE_EXAMPLE, load_gate, load_serve};
use crate::cli::{GateArgs, ServeArgs};

/// Returns the example with the commented keys uncommented.
fn with_commented_keys(example: &str) -> String {
    let shown = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let (key, _) = rest.split_once(" = ")?;
        key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then(|| rest.to_owned())
    };
    example.lines().map(|line| shown(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn keys(text: &str) -> BTreeSet<(String, String)> {
    let table: toml::Table = text.parse().unwrap();
    let pairs = table.iter().flat_map(|(section, keys)| {
        keys.as_table().unwrap().keys().map(move |key| (section.clone(), key.clone()))
    });
    pairs.collect()
}

fn all_keys<F: SettingsFile>() -> BTreeSet<(String, String)> {
    let sections = F::sections().into_iter();
    let pairs = sections
        .flat_map(|(section, keys)| keys.iter().map(move |key| (section.to_owned(), (*key).to_owned())));
    pairs.collect()
}

#[test]
fn the_examples_list_exactly_the_known_keys() {
    assert_eq!(keys(&with_commented_keys(GATE_EXAMPLE)), all_keys::<GateFile>());
    assert_eq!(keys(&with_commented_keys(SERVE_EXAMPLE)), all_keys::<ServeFile>());
}

/// Returns the result of `load` for a file with this text.
fn load(name: &str, text: &str, load: impl Fn(Option<PathBuf>) -> String) -> String {
    let path = std::env::temp_dir().join(format!("forebay-{name}-{}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let loaded = load(Some(path.clone()));
    std::fs::remove_file(path).unwrap();
    loaded
}

#[test]
fn the_example_of_the_gate_is_valid_and_its_values_are_the_defaults() {
    let gate = |config| {
        let args = GateArgs { config, ..GateArgs::default() };
        format!("{:#?}", load_gate(args, []).unwrap())
    };
    let least = "[gate]\nupstream = \"http://127.0.0.1:8000\"\nstream_routes = [\"POST /api/v1/stream\"]\n\
                 [admission]\nper_user = 3\nclass_percent = { anonymous = 90, user = 100 }\n";
    let (example, least) = (load("gate-example", GATE_EXAMPLE, gate), load("gate-least", least, gate));
    assert_eq!(example, least, "the values of the example are the defaults");
}

#[test]
fn the_example_of_the_server_is_valid_and_its_values_are_the_defaults() {
    let serve = |config| {
        let args = ServeArgs { config, ..ServeArgs::default() };
        format!("{:#?}", load_serve(args, []).unwrap())
    };
    let least = "[database]\nurl = \"postgres://forebay@127.0.0.1:5432/app\"\n\
                 [admission]\nper_user = 100\nclass_percent = { anonymous = 90, user = 100 }\n";
    let (example, least) = (load("serve-example", SERVE_EXAMPLE, serve), load("serve-least", least, serve));
    assert_eq!(example, least, "the values of the example are the defaults");
}
