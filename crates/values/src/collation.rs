//! Collations: how texts compare, and how letters change case.

use serde::{Deserialize, Serialize};

/// How texts compare, and how letters change case.
///
/// The enum is exhaustive: code that stores a collation must handle each variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Collation {
    /// `C` or `POSIX`: orders by bytes; only ASCII letters change case.
    C,
    /// Postgres' builtin provider (17 and newer): orders by bytes; letters change case by Unicode.
    Builtin,
    /// A collation of the C library, by name, such as `en_US.UTF-8`.
    Libc(String),
    /// A collation of ICU, by name, such as `en-US` or `und`.
    Icu(String),
    /// A nondeterministic collation: texts with different bytes may be equal.
    Nondeterministic,
}

impl Collation {
    /// Returns the collation of a row of pg_collation or pg_database. `provider` is `c`, `i` or
    /// `b`.
    pub fn of_catalog(provider: char, locale: &str, deterministic: bool) -> Self {
        match provider {
            _ if !deterministic => Collation::Nondeterministic,
            'i' => Collation::Icu(locale.to_owned()),
            'b' => Collation::Builtin,
            _ if locale == "C" || locale == "POSIX" => Collation::C,
            _ => Collation::Libc(locale.to_owned()),
        }
    }

    /// Returns whether texts have the order of their bytes.
    pub fn orders_by_bytes(&self) -> bool {
        match self {
            Collation::C | Collation::Builtin => true,
            // The order of code points, which in UTF-8 is the order of bytes.
            Collation::Libc(name) => matches!(&*name.to_ascii_lowercase(), "c.utf-8" | "c.utf8"),
            Collation::Icu(_) | Collation::Nondeterministic => false,
        }
    }

    /// Returns the name for messages.
    pub fn name(&self) -> &str {
        match self {
            Collation::C => "C",
            Collation::Builtin => "builtin",
            Collation::Libc(name) | Collation::Icu(name) => name,
            Collation::Nondeterministic => "nondeterministic",
        }
    }
}
