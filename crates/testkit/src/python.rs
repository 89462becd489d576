//! Python interpreter of the workspace.

use std::path::{Path, PathBuf};

/// Returns the interpreter in `FOREBAY_VENV`, or in the workspace's `target/venv`.
///
/// script/bootstrap creates that environment with the packages of all requirements.txt files.
///
/// # Panics
/// Panics if there is no interpreter.
pub fn python() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let venv = std::env::var_os("FOREBAY_VENV").map_or_else(|| workspace.join("target/venv"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "no {}: run script/bootstrap, or set FOREBAY_VENV to a virtual environment with the packages of all \
         requirements.txt files of the repository",
        python.display()
    );
    python
}
