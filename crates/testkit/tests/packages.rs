//! Checks that each library can be published: metadata, licences, README, features, and files.
//!
//! `script/test` makes the packages too, but doesn't compile them.

mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::{readme_blocks, readme_program_runs};
use serde_json::Value;

use crate::workspace::workspace_packages;

/// Crates that aren't published. No package may need them.
const UNPUBLISHED: &[&str] = &["races", "forebay-testkit"];
/// Crates that an example may not need. A package doesn't depend on them.
const ONLY_FOR_TESTS: &[&str] = &["forebay_sandbox", "forebay_testkit"];

/// A crate that is published.
#[derive(Debug)]
struct PublishedCrate {
    name: String,
    folder: PathBuf,
    /// The package in the output of `cargo metadata`.
    metadata: Value,
}

impl PublishedCrate {
    fn read(&self, file: &str) -> String {
        let path = self.folder.join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns all Rust files in a folder of the crate.
    fn sources(&self, folder: &str) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![self.folder.join(folder)]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.expect("an entry of the folder").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    files.push(path);
                }
            }
        }
        files
    }

    /// Returns each feature, and whether it is on by default.
    fn features(&self) -> BTreeMap<String, bool> {
        let features = self.metadata["features"].as_object().expect("a package has a map of features");
        let defaults = features.get("default").and_then(Value::as_array);
        let is_default =
            |name: &str| defaults.is_some_and(|defaults| defaults.iter().any(|entry| entry == name));
        let names = features.keys().filter(|name| *name != "default");
        names.map(|name| (name.clone(), is_default(name))).collect()
    }

    /// Returns the files of the package.
    fn packaged_files(&self) -> Vec<PathBuf> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["package", "--list", "--offline", "--allow-dirty", "--manifest-path"]);
        let output = cargo.arg(self.folder.join("Cargo.toml")).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("paths are UTF-8").lines().map(PathBuf::from).collect()
    }
}

fn published_crates() -> Vec<PublishedCrate> {
    let published: Vec<PublishedCrate> = workspace_packages()
        .into_iter()
        .map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
            PublishedCrate {
                name: package["name"].as_str().expect("a name").to_owned(),
                folder: manifest.parent().expect("a manifest is in a folder").to_owned(),
                metadata: package,
            }
        })
        .filter(|package| !UNPUBLISHED.contains(&package.name.as_str()))
        .collect();
    assert_eq!(published.len(), 15, "{published:?}");
    published
}

/// Returns the rows of the table of features, from the text after its heading.
fn feature_table(text: &str) -> BTreeMap<String, bool> {
    let lines = text.lines().map(|line| line.trim_start_matches("//!").trim());
    let mut table =
        lines.skip_while(|line| !line.starts_with("| feature |")).take_while(|line| line.starts_with('|'));
    let (_heading, _rule) = (table.next(), table.next());
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().expect("a row has cells").trim_matches('`').to_owned();
        (name, cells.next() == Some("yes"))
    };
    table.map(row).collect()
}

#[test]
fn every_package_has_the_metadata_that_crates_io_shows() {
    for PublishedCrate { name, folder, metadata } in published_crates() {
        for key in ["description", "license", "readme", "documentation", "rust_version"] {
            assert!(metadata[key].is_string(), "{name}: no {key}");
        }
        assert!(metadata["publish"].is_null(), "{name}: publish is {}", metadata["publish"]);
        for key in ["keywords", "categories"] {
            let count = metadata[key].as_array().map_or(0, Vec::len);
            assert!((1..=5).contains(&count), "{name}: {count} {key}, and crates.io allows 1 to 5");
        }
        assert_eq!(metadata["metadata"]["docs"]["rs"]["all-features"], true, "{name}");
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let root = folder.join("../..").join(licence);
            assert_eq!(fs::read(folder.join(licence)).ok(), fs::read(root).ok(), "{name}: {licence}");
        }
    }
}

#[test]
fn a_package_depends_only_on_versions_of_other_packages() {
    for PublishedCrate { name, metadata, .. } in published_crates() {
        for dependency in metadata["dependencies"].as_array().expect("a list of dependencies") {
            let ours = dependency["path"].is_string() && dependency["kind"] != "dev";
            let version = dependency["req"].as_str().expect("a requirement");
            assert!(!ours || version != "*", "{name} needs {} without a version", dependency["name"]);
        }
    }
}

#[test]
fn readmes_show_how_to_install_the_minimum_rust_version_and_all_features() {
    for package in published_crates() {
        let (name, readme) = (&package.name, package.read("README.md"));
        let commands = readme_blocks(&readme, "sh").concat();
        let installs = |line: &str| {
            (line.starts_with("cargo add ") || line.starts_with("cargo install "))
                && line.split(' ').any(|word| word == name)
        };
        assert!(commands.lines().any(installs), "{name}: no install line in\n{commands}");
        let rust = package.metadata["rust_version"].as_str().expect("a version");
        assert!(readme.contains(&format!("needs Rust {rust} or newer")), "{name}: not Rust {rust}");
        let features = package.features();
        assert_eq!(feature_table(&readme), features, "{name}: README.md");
        assert_eq!(readme.contains("The crate has no features."), features.is_empty(), "{name}");
        if name != "forebay" {
            assert_eq!(feature_table(&package.read("src/lib.rs")), features, "{name}: lib.rs");
        }
    }
}

#[test]
fn readmes_link_to_no_other_file() {
    for package in published_crates() {
        let readme = package.read("README.md");
        let links = readme.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let broken: Vec<&str> =
            links.filter(|link| !link.contains("://") && !link.starts_with('#')).collect();
        assert!(broken.is_empty(), "{}: crates.io doesn't have {broken:?}", package.name);
    }
}

#[test]
fn examples_need_no_crate_that_is_only_for_tests() {
    for package in published_crates() {
        for example in package.sources("examples") {
            let text = fs::read_to_string(&example).expect("an example");
            let of_others = ONLY_FOR_TESTS.iter().filter(|name| **name != package.name.replace('-', "_"));
            let used: Vec<_> = of_others.filter(|name| text.contains(**name)).collect();
            assert!(used.is_empty(), "{} uses {used:?}", example.display());
        }
    }
}

#[test]
fn a_package_contains_every_file_that_its_source_includes() {
    for package in published_crates() {
        let files = package.packaged_files();
        let mut included = vec!["LICENSE-MIT".into(), "LICENSE-APACHE".into(), "README.md".into()];
        for source in package.sources("src") {
            let text = fs::read_to_string(&source).expect("a source");
            let source = source.strip_prefix(&package.folder).expect("a file of the crate");
            included.push(source.to_owned());
            let calls = ["include_str!(\"", "include_bytes!(\""];
            let paths = calls.iter().flat_map(|call| text.split(call).skip(1));
            for path in paths.filter_map(|rest| rest.split('"').next()) {
                included.push(normalize(&source.with_file_name(path)));
            }
        }
        let missing: Vec<_> = included.iter().filter(|path| !files.contains(path)).collect();
        assert!(missing.is_empty(), "{}: the package lacks {missing:?}", package.name);
    }
}

/// Resolves `..` in a relative path.
fn normalize(path: &Path) -> PathBuf {
    let mut parts = Vec::new();
    for part in path {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.iter().collect()
}

#[test]
fn the_readme_of_the_sandbox_shows_the_whole_example() {
    let rest = readme_program_runs(
        include_str!("../../sandbox/README.md"),
        include_str!("../../sandbox/examples/sandbox_readme.rs"),
    );
    assert!(readme_blocks(rest, "rust").is_empty(), "only the first block is compared with the example");
}

#[test]
fn a_table_of_features_is_read_from_a_readme_and_from_a_source() {
    let readme = "# A\n\n| feature | default | effect |\n|---|---|---|\n| `a` | yes | x |\n| `b` | no | y |\n\n| c |\n";
    let expected = BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), false)]);
    assert_eq!(feature_table(readme), expected);
    let source: String = readme.lines().map(|line| format!("//! {line}\n")).collect();
    assert_eq!(feature_table(&source), expected);
    assert!(feature_table("# A\n").is_empty());
}
