//! Rules for conditions that only Postgres can evaluate.

use std::fmt;

use crate::expression::Expression;

/// Which conditions of a clause Postgres may evaluate in place of a filter; see
/// [`Filter::parse_with`](crate::Filter::parse_with).
#[derive(Clone, Copy, Default)]
pub enum PostgresRules<'r> {
    /// None. A clause with such a condition is refused.
    #[default]
    None,
    /// All: for a clause in canonical form that was accepted before.
    Stored,
    /// Those for which this check doesn't return why they are refused.
    Checked(&'r dyn Fn(&Expression) -> Result<(), String>),
}

impl fmt::Debug for PostgresRules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PostgresRules::None => "None",
            PostgresRules::Stored => "Stored",
            PostgresRules::Checked(_) => "Checked",
        })
    }
}
