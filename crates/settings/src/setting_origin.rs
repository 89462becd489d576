//! Origin of a setting, for errors and for the list of effective settings.

use std::fmt;
use std::path::PathBuf;

/// Origin of an explicit setting. A default has none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingOrigin {
    /// The config file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag.
    Flag(String),
}

/// Format for errors.
impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::File(path) => write!(f, "from {}", path.display()),
            SettingOrigin::Variable(name) | SettingOrigin::Flag(name) => write!(f, "from {name}"),
        }
    }
}
