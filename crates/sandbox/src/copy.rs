//! Copies of whole folders, also of one that a server writes to.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::{fs, io};

use crate::user::{User, give};

/// Copies `from` to the new folder `to`, with modes, for a user. `belongs` gets every path relative to `from`.
///
/// What vanishes meanwhile is left out. `fs::copy` shares the blocks where the file system can.
pub(crate) fn copy_folder(
    from: &Path,
    to: &Path,
    user: Option<User>,
    belongs: &dyn Fn(&Path) -> bool,
) -> io::Result<()> {
    copy_below(Path::new(""), from, to, user, belongs)
}

fn copy_below(
    relative: &Path,
    from: &Path,
    to: &Path,
    user: Option<User>,
    belongs: &dyn Fn(&Path) -> bool,
) -> io::Result<()> {
    let (source, copy) = (from.join(relative), to.join(relative));
    fs::DirBuilder::new().mode(fs::metadata(&source)?.mode()).create(&copy)?;
    give(&copy, user)?;
    for entry in fs::read_dir(&source)? {
        let entry = entry?;
        let relative = relative.join(entry.file_name());
        if !belongs(&relative) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            unless_gone(copy_below(&relative, from, to, user, belongs))?;
        } else if kind.is_file() {
            let copy = to.join(&relative);
            unless_gone(fs::copy(entry.path(), &copy).and_then(|_| give(&copy, user)))?;
        } else {
            return Err(io::Error::other(format!("{} is no plain file", entry.path().display())));
        }
    }
    Ok(())
}

fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
