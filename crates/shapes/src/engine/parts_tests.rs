//! The parts of a store in the source code.

use std::fs;
use std::path::{Path, PathBuf};

/// A part: its files, the modules of this crate that it may use, and words that it must not have.
const PARTS: [(&[&str], &[&str], &[&str]); 3] = [
    (
        &["follow"],
        &["config", "definition", "encode", "filter", "follow", "row_keys", "shape", "store::record"],
        &["Mutex", "RwLock", "tokio", "std::fs"],
    ),
    (
        &["registry.rs", "baselines.rs"],
        &[
            "baselines",
            "definition",
            "encode",
            "filter",
            "lock_order",
            "shape",
            "store::shape_files::ShapeFiles",
        ],
        &["std::fs"],
    ),
    (&["store"], &["config", "definition", "encode", "filter", "lock_order", "offset", "store"], &[]),
];

/// Returns the source files at a path, without tests.
fn sources(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap().to_string_lossy();
    if name.ends_with("tests.rs") || name.ends_with("tests") || name == "simulated" {
        return Vec::new();
    }
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap();
        return entries.flat_map(|entry| sources(&entry.unwrap().path())).collect();
    }
    vec![path.to_owned()]
}

#[test]
fn no_part_of_a_store_calls_another() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (paths, modules, forbidden) in PARTS {
        let files: Vec<_> = paths.iter().flat_map(|path| sources(&src.join(path))).collect();
        assert!(files.len() >= paths.len());
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in lines {
                for used in line.split("crate::").skip(1) {
                    let is_of = |module: &&&str| {
                        used.strip_prefix(**module).is_some_and(|rest| {
                            !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_')
                        })
                    };
                    assert!(modules.iter().any(|module| is_of(&module)), "{}: {line}", file.display());
                }
                let found = forbidden.iter().find(|word| line.contains(**word));
                assert!(found.is_none(), "{}: {line}", file.display());
            }
        }
    }
}
