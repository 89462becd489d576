//! The packages of this workspace, as Cargo lists them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Returns the entry of each package of the workspace in the output of `cargo metadata`.
pub(crate) fn workspace_packages() -> Vec<Value> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"]).arg(manifest);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("cargo lists the packages, not {other}"),
    }
}
