//! Where a setting was written.

use std::fmt;
use std::path::PathBuf;

/// Where a setting was written; one that has none is a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the config file.
    File(PathBuf),
    /// In the environment.
    Variable(String),
    /// On the command line.
    Flag(String),
}

/// As complaints say it.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => write!(f, "from {}", path.display()),
            Origin::Variable(name) | Origin::Flag(name) => write!(f, "from {name}"),
        }
    }
}
