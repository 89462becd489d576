//! The example file names every key, and says the defaults that hold.

use std::collections::BTreeSet;

use super::file::sections;
use super::{GATE_EXAMPLE, load_gate};
use crate::cli::GateArgs;

/// With the keys that are only shown.
fn whole() -> String {
    let shown = |line: &str| {
        let rest = line.strip_prefix("# ")?;
        let (key, _) = rest.split_once(" = ")?;
        key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_').then(|| rest.to_owned())
    };
    GATE_EXAMPLE.lines().map(|line| shown(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn keys(text: &str) -> BTreeSet<(String, String)> {
    let table: toml::Table = text.parse().unwrap();
    let pairs = table.iter().flat_map(|(section, keys)| {
        keys.as_table().unwrap().keys().map(move |key| (section.clone(), key.clone()))
    });
    pairs.collect()
}

#[test]
fn the_example_names_every_key_and_no_other() {
    let known = sections()
        .into_iter()
        .flat_map(|(section, keys)| keys.iter().map(move |key| (section.to_owned(), (*key).to_owned())));
    assert_eq!(keys(&whole()), known.collect());
}

#[test]
fn the_example_is_fit_to_start_with_and_says_the_defaults() {
    let path = std::env::temp_dir().join(format!("forebay-example-{}.toml", std::process::id()));
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let args = GateArgs { config: Some(path.clone()), ..GateArgs::default() };
        format!("{:#?}", load_gate(args, []).unwrap())
    };
    let example = load(GATE_EXAMPLE);
    let least = "[gate]\nupstream = \"http://127.0.0.1:8000\"\nstream_routes = [\"POST /api/v1/stream\"]\n\
                 [admission]\nper_user = 3\nclass_percent = { anonymous = 90, user = 100 }\n";
    assert_eq!(example, load(least), "what the example says is what holds without it");
    std::fs::remove_file(path).unwrap();
}
