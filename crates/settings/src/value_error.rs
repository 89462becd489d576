//! Error of an invalid value. It names the key, the value and its origin.

use std::fmt;

/// An invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}{} {why}", ValueAndOrigin { value, origin })]
pub struct ValueError {
    /// Key, as `section.key`.
    pub key: &'static str,
    /// The value; `None` if it is missing or secret.
    pub value: Option<String>,
    /// Origin of the value: the file, a variable or a flag.
    pub origin: Option<String>,
    /// The problem, and a valid value.
    pub why: String,
}

/// The value and its origin, as shown in a [`ValueError`].
struct ValueAndOrigin<'a> {
    value: &'a Option<String>,
    origin: &'a Option<String>,
}

impl fmt::Display for ValueAndOrigin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(value) = self.value {
            write!(f, " = {value:?}")?;
        }
        if let Some(origin) = self.origin {
            write!(f, " ({origin})")?;
        }
        f.write_str(if self.value.is_some() { ":" } else { "" })
    }
}
