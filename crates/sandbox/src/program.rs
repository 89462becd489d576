//! Search for programs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::error::StartError;

/// Returns the first program of this name on the PATH.
pub(crate) fn find(program: &'static str) -> Result<PathBuf, StartError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_program(file));
    found.ok_or_else(|| StartError::NotFound {
        program: program.to_owned(),
        searched: format!("PATH={}", path.to_string_lossy()),
    })
}

/// Returns true if the file is executable.
pub(crate) fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
