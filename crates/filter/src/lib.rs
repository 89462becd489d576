//! Where clauses, judged row by row exactly as Postgres would.
//!
//! Invariant: for every row, [`Filter::matches`] says what Postgres' `SELECT (clause)` says of it (true, false or NULL), or
//! fails where Postgres fails. What can't be judged so is refused by [`Filter::parse`] with an error that names it; in
//! rare cases that only the row shows (a letter on whose other case collations differ), by an error. Never a guess.
//! Kept by: types, operators, casts and constants follow Postgres' own rules (`typing/`), values its formats (`value/`);
//! `tests/it/agreement.rs` compares with real servers.
//! Not here: I/O, clocks, randomness. A filter is made once, holds no locks, and may be shared between threads.
//!
//! ```
//! use forebay_filter::{Collation, Column, Filter, Schema};
//!
//! let schema = Schema {
//!     table: Some("items".to_owned()),
//!     columns: vec![Column::new("id", 23, "int4"), Column::new("name", 25, "text")],
//!     database_collation: Collation::C,
//!     server_version: 15,
//! };
//! let filter = Filter::parse("id > $1 AND name LIKE 'a%'", &["3"], &schema)?;
//! let row: [Option<&[u8]>; 2] = [Some(b"5"), Some(b"apple")];
//! assert_eq!(filter.matches(&row), Ok(Some(true)));
//! let row: [Option<&[u8]>; 2] = [Some(b"5"), None];
//! assert_eq!(filter.matches(&row), Ok(None));
//! # Ok::<(), forebay_filter::FilterError>(())
//! ```

#![forbid(unsafe_code)]

mod conditions;
mod error;
mod eval;
mod expression;
mod index;
mod key;
mod schema;
mod syntax;
mod typing;
mod value;

pub use error::{EvalError, FilterError};
pub use expression::{EnumType, Expression};
pub use index::{Candidate, Index};
pub use schema::{Collation, Column, ColumnType, Schema, TypeKind};

// What the index looks up. Public only for `tests/it`, which compare it with real servers.
#[doc(hidden)]
pub use conditions::{Alternative, Bound, Condition};
#[doc(hidden)]
pub use key::Key;

use typing::expr::Expr;

/// The longest clause that is read, in bytes.
pub const MAX_CLAUSE_BYTES: usize = 64 * 1024;

/// A row's values as Postgres writes them, under bytea_output = hex, DateStyle = ISO, TimeZone = UTC,
/// extra_float_digits = 1, IntervalStyle = iso_8601, in UTF-8.
pub trait Row {
    /// The column's text, by its place in [`Schema::columns`]; `None` is NULL.
    fn text(&self, column: usize) -> Option<&[u8]>;
}

impl<B: AsRef<[u8]>> Row for &[Option<B>] {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

impl<B: AsRef<[u8]>> Row for Vec<Option<B>> {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

impl<B: AsRef<[u8]>, const N: usize> Row for [Option<B>; N] {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

/// A where clause, ready to judge rows.
#[derive(Clone, Debug)]
pub struct Filter {
    expr: Expr,
    canonical: String,
    columns: Vec<usize>,
}

impl Filter {
    /// Reads a clause; `$1` stands for `params[0]`, as a constant in quotes would.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn parse(text: &str, params: &[&str], schema: &Schema) -> Result<Filter, FilterError> {
        check_length(text, params)?;
        let tree = syntax::parse(text, params, schema.server_version, &[])?;
        let expr = typing::clause(&tree, text, schema)?;
        let mut columns = Vec::new();
        typing::each(&expr, &mut |expr| {
            if let Expr::Column { index, .. } = expr {
                columns.push(*index);
            }
        });
        columns.sort_unstable();
        columns.dedup();
        Ok(Filter { expr, canonical: tree.to_string(), columns })
    }

    /// Whether the row satisfies the clause; `None` is NULL.
    ///
    /// # Errors
    /// What Postgres would say of the row: see [`EvalError`].
    pub fn matches(&self, row: &dyn Row) -> Result<Option<bool>, EvalError> {
        eval::truth(&self.expr, row)
    }

    /// The clause as SQL of one form, parameters in place: the same for clauses that differ only in how they are written.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// What an index can use: a row of which the clause is true satisfies all conditions of one of these. None at all: it is
    /// never true.
    #[doc(hidden)]
    pub fn conditions(&self) -> Vec<Alternative> {
        conditions::of(&self.expr)
    }

    /// Whether Postgres may fail on a row: on a cast, arithmetic, a pattern. Comparisons never
    /// fail.
    pub fn may_fail(&self) -> bool {
        let mut may_fail = false;
        typing::each(&self.expr, &mut |expr| may_fail |= !typing::never_fails(expr));
        may_fail
    }

    /// The columns that decide, by their places in [`Schema::columns`], in order.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

fn check_length(text: &str, params: &[&str]) -> Result<(), FilterError> {
    let bytes = params.iter().fold(text.len(), |sum, param| sum.saturating_add(param.len()));
    match bytes > MAX_CLAUSE_BYTES {
        true => Err(FilterError::TooLong { bytes, limit: MAX_CLAUSE_BYTES }),
        false => Ok(()),
    }
}
