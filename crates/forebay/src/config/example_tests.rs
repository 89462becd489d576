//! Tests of the example files: they list every key, and their values are the defaults.

use std::collections::BTreeSet;
use std::path::PathBuf;

use forebay_settings::CommandDeclaration;

use super::{GateSettings, ServeSettings, gate_example, load_gate, load_serve, serve_example};
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

fn all_keys(command: CommandDeclaration) -> BTreeSet<(String, String)> {
    let paths = command.settings().map(|setting| setting.section_and_key());
    paths.map(|(section, key)| (section.to_owned(), key.to_owned())).collect()
}

#[test]
fn the_examples_list_exactly_the_known_keys() {
    let gate = CommandDeclaration::of::<GateSettings>();
    assert_eq!(keys(&with_commented_keys(&gate_example())), all_keys(gate));
    let serve = CommandDeclaration::of::<ServeSettings>();
    assert_eq!(keys(&with_commented_keys(&serve_example())), all_keys(serve));
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
    let least = "[gate]\nupstream = \"http://127.0.0.1:8000\"\n[admission]\nper_user = 3\n";
    let (example, least) = (load("gate-example", &gate_example(), gate), load("gate-least", least, gate));
    assert_eq!(example, least, "the values of the example are the defaults");
}

#[test]
fn the_example_of_the_server_is_valid_and_its_values_are_the_defaults() {
    let serve = |config| {
        let args = ServeArgs { config, ..ServeArgs::default() };
        format!("{:#?}", load_serve(args, []).unwrap())
    };
    let least = "[database]\nurl = \"postgres://forebay@127.0.0.1:5432/app\"\n[admission]\nper_user = 100\n";
    let example = load("serve-example", &serve_example(), serve);
    let least = load("serve-least", least, serve);
    assert_eq!(example, least, "the values of the example are the defaults");
}

/// A library has defaults of its own, for programs that don't set every field.
#[test]
fn the_defaults_of_the_libraries_are_the_same() {
    let url = ("DATABASE_URL".to_owned(), "postgres://me@db.test/shop".to_owned());
    let serve = load_serve(ServeArgs::default(), [url]).unwrap();
    let shapes = forebay_serve::Config::default();
    assert_eq!(format!("{:?}", serve.backend), format!("{shapes:?}"));
    let store = forebay_shapes::StoreConfig::new(&serve.store.dir);
    assert_eq!(format!("{:?}", serve.store), format!("{store:?}"));
    let mut http = forebay_stream::HttpServerConfig::default();
    http.drain_timeout = serve.drain_timeout;
    // The advice to use POST is of the shape protocol.
    http.oversized_head_json.clone_from(&serve.http.oversized_head_json);
    assert_eq!(format!("{:?}", serve.http), format!("{http:?}"));
    let url = ("FOREBAY_GATE_UPSTREAM".to_owned(), "http://127.0.0.1:8000".to_owned());
    let gate = load_gate(GateArgs::default(), [url]).unwrap();
    let upstream = forebay_gate::UpstreamConfig::new(gate.proxy.upstream.authority.clone());
    let mut proxy = forebay_gate::Config::new(upstream);
    // The library uses no header of a proxy by default. The program uses one only of trusted
    // proxies.
    proxy.forwarded_by = gate.proxy.forwarded_by;
    assert_eq!(format!("{:?}", gate.proxy), format!("{proxy:?}"));
}
