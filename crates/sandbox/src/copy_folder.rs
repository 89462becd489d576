//! Copies of folders, also of a folder that a server writes to.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::{fs, io};

use crate::system_user::{SystemUser, change_owner};

/// Copies `from` to the new folder `to` with its modes, owned by `user`.
///
/// `is_included` decides for each path relative to `from`. Files that vanish meanwhile are skipped.
/// `fs::copy` shares blocks if the file system can.
pub(crate) fn copy_folder(
    from: &Path,
    to: &Path,
    user: Option<SystemUser>,
    is_included: &dyn Fn(&Path) -> bool,
) -> io::Result<()> {
    copy_below(Path::new(""), from, to, user, is_included)
}

fn copy_below(
    relative: &Path,
    from: &Path,
    to: &Path,
    user: Option<SystemUser>,
    is_included: &dyn Fn(&Path) -> bool,
) -> io::Result<()> {
    let (source, copy) = (from.join(relative), to.join(relative));
    fs::DirBuilder::new().mode(fs::metadata(&source)?.mode()).create(&copy)?;
    change_owner(&copy, user)?;
    for entry in fs::read_dir(&source)? {
        let entry = entry?;
        let relative = relative.join(entry.file_name());
        if !is_included(&relative) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            ignore_not_found(copy_below(&relative, from, to, user, is_included))?;
        } else if kind.is_file() {
            let copy = to.join(&relative);
            ignore_not_found(fs::copy(entry.path(), &copy).and_then(|_| change_owner(&copy, user)))?;
        } else {
            return Err(io::Error::other(format!("{} is no plain file", entry.path().display())));
        }
    }
    Ok(())
}

fn ignore_not_found(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
