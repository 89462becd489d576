//! Verdict on a row: whether it satisfies a clause.

/// Whether a row satisfies a clause; see [`Filter::judge`](crate::Filter::judge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowVerdict {
    /// The clause is true of the row.
    Match,
    /// The clause is false or NULL, or it fails on the row.
    NoMatch,
    /// Only Postgres can tell.
    Undecided,
}
