//! The Python of the workspace.

use std::path::{Path, PathBuf};

/// The interpreter in `FOREBAY_VENV`, or in `target/venv` of the workspace, which script/bootstrap makes with all that the
/// requirements.txt files in the repository name.
///
/// # Panics
/// If it isn't there.
pub fn python() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let venv = std::env::var_os("FOREBAY_VENV").map_or_else(|| workspace.join("target/venv"), PathBuf::from);
    let python = venv.join("bin/python");
    assert!(
        python.exists(),
        "no {}: run script/bootstrap, or set FOREBAY_VENV to a virtual environment with what the requirements.txt \
         files of the repository name",
        python.display()
    );
    python
}
