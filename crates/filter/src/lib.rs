//! Where clauses, evaluated row by row as Postgres evaluates them, and an index over many of them.
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
//! assert_eq!(filter.matches(&row), Ok(None)); // NULL, as in Postgres
//! # Ok::<(), forebay_filter::FilterError>(())
//! ```
//!
//! A subquery selects a set of values ([`SubquerySet`]). The caller counts the selected rows of its
//! table ([`SetCounts`]), and evaluates the clause with these contents.
//!
//! [`Filter`] evaluates a clause. [`Index`] finds the filters that may match a row. [`Expression`]
//! is a clause that Postgres evaluates: this crate parses it, checks it and formats it as SQL.
//!
//! ```text
//! clause ──▶ syntax/ ──▶ SyntaxTree ──▶ typing/ ──▶ Expr ──▶ eval/ ◀── row (text values)
//!                           │                        │
//!                           ▼                        ▼
//!                  canonical text,           conditions ──▶ index/ ──▶ candidates
//!                  Expression
//! ```
//!
//! # Invariants and their tests
//!
//! Invariant: for every row, [`Filter::matches`] returns what Postgres returns for
//! `SELECT (clause)`: true, false, NULL or an error. [`Filter::parse`] refuses a clause for which
//! this can't be guaranteed. In rare cases this depends on the row; then [`Filter::matches`] fails.
//! Enforced by: types, operators, casts and constants follow Postgres' rules (`typing/`), and
//! the crate `forebay-values` parses, compares and computes values.
//! Out of scope: I/O, clocks and randomness. A [`Filter`] is immutable and may be shared between
//! threads.
//!
//! - Filters agree with Postgres 15 and 18 on random clauses and rows.
//!   `random_clauses_agree_with_postgres_15`, `random_clauses_agree_with_postgres_18`
//! - Comparisons of columns with a nondeterministic collation agree or are refused.
//!   `columns_with_a_nondeterministic_collation_agree_or_are_refused`
//! - Lookups in constants with 10,000 elements don't compare each. More patterns are refused.
//!   `lists_of_ten_thousand_constants_are_searched_by_containment_and_existence`,
//!   `more_than_ten_thousand_patterns_are_refused_by_name`
//! - Unsupported constructs are refused by name.
//!   `unsupported_constructs_are_named`
//! - A call is resolved among all overloads that Postgres has.
//!   `every_function_has_all_the_overloads_that_postgres_has`
//! - A condition that only Postgres can evaluate leaves undecided only rows that the other
//!   conditions don't decide.
//!   `native_operands_decide_a_row_wherever_they_can`,
//!   `letters_whose_case_depends_on_the_collation_are_undecided_on_their_rows_alone`
//! - A shape's clause never depends on the current time.
//!   `a_condition_whose_value_depends_on_the_clock_is_reported`,
//!   `a_text_of_a_row_that_means_the_current_time_is_no_date`
//! - Clauses with subqueries agree with Postgres 15 and 18 on tables full of NULLs. Without the
//!   contents of its sets, a filter is undecided. Other forms of subqueries are refused by name.
//!   `subqueries_agree_with_postgres_15`, `subqueries_agree_with_postgres_18`,
//!   `a_filter_without_contents_of_its_sets_is_undecided`,
//!   `other_forms_of_subqueries_are_refused_by_name`
//! - A search of the index finds the same filters as evaluating every filter.
//!   `random_filters_are_found_as_if_each_were_evaluated`,
//!   `a_filter_that_several_conditions_find_is_found_once`
//! - A search for equality or IN takes as many steps with 10,000 filters as with 10.
//!   `a_search_among_ten_thousand_keys_takes_as_many_steps_as_one_among_ten`
//! - Filters with subqueries are found through the sets that have the row's value, in as many steps
//!   with 10,000 sets as with 10.
//!   `filters_are_found_by_the_sets_that_have_the_row_s_value`,
//!   `a_search_among_ten_thousand_sets_takes_as_many_steps_as_one_among_ten`
//! - A set has a value while a selected row has it.
//!   `random_changes_leave_what_a_recount_finds`,
//!   `a_value_enters_with_its_first_row_and_leaves_with_its_last`
//! - An expression that many filters compare with constants is evaluated once per row.
//!   `one_expression_is_evaluated_once_for_all_of_its_filters`,
//!   `an_expression_that_fails_on_a_row_makes_its_filters_candidates`
//! - Lookups in jsonb agree with Postgres 15 and 18, under C and under ICU.
//!   `jsonb_agrees_under_every_collation`
//! - A search for ranges and prefixes takes O(log n) steps with n filters.
//!   `a_search_among_ten_thousand_intervals_visits_one_path`
//! - Comparing a column with a constant allocates no memory.
//!   `comparing_a_column_with_a_constant_allocates_nothing`
//! - A row takes memory in proportion to its size and that of the clause.
//!   `hostile_rows_and_constants_take_memory_in_proportion_to_their_size`,
//!   `constants_that_grow_without_bound_are_refused_as_postgres_does_or_by_name`
//! - No clause and no row causes a panic.
//!   `parsing_never_panics`, `matching_never_panics`,
//!   `hostile_sizes_are_refused_at_once`, `the_deepest_allowed_clause_fits_the_stack`
//!
//! # Where to look
//!
//! | topic | file |
//! |---|---|
//! | tokens, grammar, canonical text | `syntax/` |
//! | types, operators, casts, collations, constant folding | `typing/` |
//! | functions: their overloads, and their evaluation | `typing/functions/`, `eval/function.rs` |
//! | subqueries: grammar; names, sets and EXISTS | `syntax/subquery.rs`; `subquery.rs` |
//! | subqueries: types; evaluation; contents of sets | `typing/subquery.rs`; `eval/set.rs`; `set_counts.rs` |
//! | evaluation | `eval/` |
//! | conditions that only Postgres can evaluate | `postgres_rules.rs`, `typing/condition.rs` |
//! | conditions and keys that an index looks up | `conditions.rs`, `index_key.rs`, `key_expression.rs` |
//! | texts that mean the current time: in a clause; in a row | `clock_dependence.rs`; `clock_guard.rs` |
//! | hash lookups and the interval tree | `index/` |
//! | clauses and conditions that Postgres evaluates, as SQL | `expression.rs` |
//! | values: parsed, compared, computed, formatted | the crate `forebay-values` |
//! | comparison with real servers | `tests/it/agreement.rs`, `tests/it/catalog.rs` |
//!
//! # Decisions
//!
//! - This crate has its own parser: sqlparser gives prefix operators another precedence and reports
//!   no location for most errors (`syntax/mod.rs`).
//! - Values are a crate of their own, `forebay-values`: it knows nothing of clauses.
//! - If Postgres refuses a clause too, the error text equals that of Postgres. Clients receive it.

#![forbid(unsafe_code)]

mod clock_dependence;
mod clock_guard;
mod conditions;
mod error;
mod eval;
mod expression;
mod index;
mod index_key;
mod key_expression;
mod postgres_rules;
mod row_verdict;
mod schema;
mod set_counts;
mod subquery;
mod syntax;
#[doc(hidden)]
pub mod tables;
mod typing;

pub use error::FilterError;
pub use expression::{EnumType, Expression};
pub use index::{Candidate, Index, SetId, SetLookup};
pub use postgres_rules::PostgresRules;
pub use row_verdict::RowVerdict;
pub use schema::{Column, ColumnType, Schema, TypeDetails, TypeKind, UserType};
pub use set_counts::{FilterSets, SetChanges, SetCounts, SetFlips, SetMiscount};
pub use subquery::{MAX_SUBQUERIES, MAX_SUBQUERY_DEPTH, SetContents, SetKey, SubquerySet, TableName};

// Conditions and keys of the index. Public only for `tests/it`, which compares them with real
// servers.
#[doc(hidden)]
pub use conditions::{Alternative, Bound, IndexCondition};
#[doc(hidden)]
pub use index_key::IndexKey;
#[doc(hidden)]
pub use key_expression::KeyExpression;

pub use forebay_values::{Collation, EvalError};

use forebay_values::Scalar;
use subquery::FindTable;
use syntax::{Subqueries, SyntaxTree};
use typing::expr::Expr;

/// Maximum length of a clause without its parameters, in bytes.
pub const MAX_CLAUSE_BYTES: usize = 1024 * 1024;

/// Maximum length of a clause in canonical form, which contains the parameters, in bytes.
pub const MAX_CANONICAL_BYTES: usize = 4 * 1024 * 1024;

/// Maximum length of all parameters of a clause together, in bytes. A parameter counts once for
/// each use.
pub const MAX_PARAM_BYTES: usize = 1024 * 1024;

/// Memory of a node of an expression, with its part of an index, in bytes: `a = 1 OR a = 2 …` takes
/// this much.
const NODE_BYTES: usize = 256;
/// Memory of constants for each byte of their text: that of a list of uuids.
const TEXT_FACTOR: usize = 8;

/// A row's values in Postgres' text format, in UTF-8.
///
/// Settings: `bytea_output = hex`, `DateStyle = ISO`, `TimeZone = UTC`, `extra_float_digits = 1`,
/// `IntervalStyle = iso_8601`.
pub trait TextRow {
    /// Returns the text of the column at this position in [`Schema::columns`]; `None` is NULL.
    fn text(&self, column: usize) -> Option<&[u8]>;
}

impl<B: AsRef<[u8]>> TextRow for &[Option<B>] {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

impl<B: AsRef<[u8]>> TextRow for Vec<Option<B>> {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

impl<B: AsRef<[u8]>, const N: usize> TextRow for [Option<B>; N] {
    fn text(&self, column: usize) -> Option<&[u8]> {
        self.get(column)?.as_ref().map(AsRef::as_ref)
    }
}

/// A where clause that can be evaluated.
#[derive(Clone, Debug)]
pub struct Filter {
    expr: Expr,
    canonical: String,
    /// `None`: the canonical text.
    postgres_sql: Option<Box<str>>,
    columns: Vec<usize>,
    needs_postgres: bool,
    nodes: usize,
    sets: Vec<SubquerySet>,
}

/// Table whose columns a clause names, and the tables around it if it is the clause of a subquery.
struct ClauseScope<'s> {
    schema: &'s Schema,
    /// The whole clause.
    text: &'s str,
    outer: Option<&'s ClauseScope<'s>>,
}

impl Filter {
    /// Parses a clause. `$1` is replaced by `params[0]`, as a constant in quotes.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub fn parse(text: &str, params: &[&str], schema: &Schema) -> Result<Filter, FilterError> {
        Filter::parse_with(text, params, schema, PostgresRules::None)
    }

    /// Parses a clause of which Postgres may evaluate some conditions. A condition is the clause
    /// itself, or an operand of AND, OR, NOT or IS TRUE.
    ///
    /// # Errors
    /// See [`FilterError`]. [`FilterError::Disallowed`]: a condition that the rules refuse.
    pub fn parse_with(
        text: &str,
        params: &[&str],
        schema: &Schema,
        rules: PostgresRules<'_>,
    ) -> Result<Filter, FilterError> {
        check_length(text, params, max_length(rules))?;
        let enums = enums([schema]);
        let mut tree = syntax::parse(text, params, schema.server_version, &enums, Subqueries::Refused)?;
        let scope = ClauseScope { schema, text, outer: None };
        Filter::of_tree(&mut tree, &scope, rules, None)
    }

    /// Parses a clause that may have subqueries. `table` returns the schemas of the tables that
    /// [`subquery_tables`] names. Postgres evaluates no condition of a clause with subqueries.
    ///
    /// # Errors
    /// See [`FilterError`]. A table that `table` doesn't know is an undefined table (42P01).
    pub fn parse_with_subqueries<'t>(
        text: &str,
        params: &[&str],
        schema: &'t Schema,
        rules: PostgresRules<'_>,
        table: &dyn Fn(&TableName) -> Option<&'t Schema>,
    ) -> Result<Filter, FilterError> {
        check_length(text, params, max_length(rules))?;
        let version = schema.server_version;
        let parse = |enums: &[EnumType]| syntax::parse(text, params, version, enums, Subqueries::Allowed);
        let tables = subquery::tables(&parse(&enums([schema]))?);
        let schemas = tables.iter().filter_map(table).chain([schema]);
        // The enums of all tables may be named as types.
        let mut tree = parse(&enums(schemas))?;
        let scope = ClauseScope { schema, text, outer: None };
        Filter::of_tree(&mut tree, &scope, rules, Some(table))
    }

    /// Types a syntax tree, which is rewritten for its canonical text.
    fn of_tree(
        tree: &mut SyntaxTree,
        scope: &ClauseScope<'_>,
        rules: PostgresRules<'_>,
        find: Option<FindTable<'_, '_>>,
    ) -> Result<Filter, FilterError> {
        let ClauseScope { schema, text, .. } = scope;
        let sets = subquery::resolve(tree, scope, find)?;
        // A stored clause may be of a release without this limit.
        if !matches!(rules, PostgresRules::Stored) && syntax::has_long_operand(tree) {
            return Err(FilterError::LongOperand { limit: syntax::MAX_OPERAND_BYTES });
        }
        syntax::citext::rewrite(tree, text, schema)?;
        syntax::domain_array::rewrite(tree, schema)?;
        if syntax::weight(tree) > syntax::MAX_WEIGHT {
            return Err(FilterError::TooManyCopies);
        }
        let canonical = tree.to_string();
        check_length(&canonical, &[], MAX_CANONICAL_BYTES)?;
        let rules = if sets.is_empty() { rules } else { PostgresRules::None };
        let (expr, time_casts) = typing::clause(tree, text, schema, rules, &sets)?;
        let (mut columns, mut needs_postgres, mut nodes) = (Vec::new(), false, 0);
        typing::each(&expr, &mut |expr| {
            nodes += 1;
            match expr {
                Expr::Column { index, .. } => columns.push(*index),
                Expr::Postgres { columns: named } => {
                    columns.extend(named);
                    needs_postgres = true;
                }
                _ => {}
            }
        });
        columns.sort_unstable();
        columns.dedup();
        let postgres_sql = (!time_casts.is_empty()).then(|| {
            let mut guarded = tree.clone();
            clock_guard::guard(&mut guarded, &time_casts);
            guarded.to_string().into()
        });
        Ok(Filter { expr, canonical, postgres_sql, columns, needs_postgres, nodes, sets })
    }

    /// Evaluates the clause for a row; `None` is NULL.
    ///
    /// # Errors
    /// Fails if Postgres reports an error for the row; see [`EvalError`].
    pub fn matches(&self, row: &dyn TextRow) -> Result<Option<bool>, EvalError> {
        eval::truth(&self.expr, row, None)
    }

    /// Evaluates a clause with subqueries for a row; `None` is NULL.
    ///
    /// # Errors
    /// Fails if Postgres reports an error for the row; see [`EvalError`].
    pub fn matches_with(&self, row: &dyn TextRow, sets: &dyn SetContents) -> Result<Option<bool>, EvalError> {
        eval::truth(&self.expr, row, Some(sets))
    }

    /// Decides whether a row satisfies the clause, without Postgres where that is possible.
    ///
    /// AND is false if any operand is, and OR is true if any operand is, even if another operand
    /// fails. A row on which the clause fails otherwise doesn't satisfy it.
    pub fn judge(&self, row: &dyn TextRow) -> RowVerdict {
        self.verdict(row, None)
    }

    /// Decides whether a row satisfies a clause with subqueries; see [`Filter::judge`].
    pub fn judge_with(&self, row: &dyn TextRow, sets: &dyn SetContents) -> RowVerdict {
        self.verdict(row, Some(sets))
    }

    fn verdict(&self, row: &dyn TextRow, sets: Option<&dyn SetContents>) -> RowVerdict {
        match eval::lenient_truth(&self.expr, row, sets) {
            Ok(Some(true)) => RowVerdict::Match,
            Ok(Some(false) | None) => RowVerdict::NoMatch,
            Err(error) if error.is_undecided() => RowVerdict::Undecided,
            Err(_) => RowVerdict::NoMatch,
        }
    }

    /// Returns whether only Postgres can evaluate a condition of the clause. Without one, single
    /// rows may still be undecided.
    pub fn needs_postgres(&self) -> bool {
        self.needs_postgres
    }

    /// Returns whether the clause calls functions, which may take long on large values.
    pub fn calls_functions(&self) -> bool {
        let mut calls = false;
        typing::each(&self.expr, &mut |expr| calls |= matches!(expr, Expr::Call { .. }));
        calls
    }

    /// Returns whether [`Filter::judge`] may leave a row undecided.
    pub fn may_be_undecided(&self) -> bool {
        let mut may_be = self.needs_postgres;
        typing::each(&self.expr, &mut |expr| may_be |= typing::may_be_undecided(expr));
        may_be
    }

    /// Returns the clause as canonical SQL, with parameters replaced. Clauses that differ only in
    /// spelling have the same text.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Returns the clause as SQL for Postgres. It differs from [`Filter::canonical`] on rows with a
    /// text that means the current time where the clause casts it to a date or time, such as
    /// `today`: it fails on them.
    pub fn postgres_sql(&self) -> &str {
        self.postgres_sql.as_deref().unwrap_or(&self.canonical)
    }

    /// Returns the conditions that an index can look up. A row that satisfies the clause satisfies
    /// all conditions of at least one alternative. Without alternatives, the clause is never true.
    #[doc(hidden)]
    pub fn conditions(&self) -> Vec<Alternative> {
        conditions::of(&self.expr)
    }

    /// Returns whether evaluation may fail on a row: in a cast, arithmetic or a pattern.
    /// Comparisons never fail.
    pub fn may_fail(&self) -> bool {
        let mut may_fail = false;
        typing::each(&self.expr, &mut |expr| may_fail |= !typing::never_fails(expr));
        may_fail
    }

    /// Returns about how much memory the filter takes, together with its part of an [`Index`], in
    /// bytes.
    pub fn memory(&self) -> usize {
        let guarded = self.postgres_sql.as_ref().map_or(0, |sql| sql.len());
        let of_sets: usize = self.sets.iter().filter_map(SubquerySet::filter).map(Filter::memory).sum();
        NODE_BYTES * self.nodes + TEXT_FACTOR * self.canonical.len() + guarded + of_sets
    }

    /// Returns the sets that the clause's subqueries select, each once.
    pub fn sets(&self) -> &[SubquerySet] {
        &self.sets
    }

    /// Returns the columns that the clause refers to, as positions in [`Schema::columns`], sorted.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

/// Returns the tables that the subqueries of a clause read, nested ones too. The clause is only
/// parsed, not typed.
///
/// # Errors
/// See [`FilterError`].
pub fn subquery_tables(
    text: &str,
    params: &[&str],
    server_version: u32,
) -> Result<Vec<TableName>, FilterError> {
    check_length(text, params, MAX_CANONICAL_BYTES)?;
    Ok(subquery::tables(&syntax::parse(text, params, server_version, &[], Subqueries::Allowed)?))
}

/// Returns the enums that a clause may name as types. Postgres finds its own types first.
fn enums<'s>(schemas: impl IntoIterator<Item = &'s Schema>) -> Vec<EnumType> {
    let is_enum = |user: &&UserType| user.labels.is_some() && Scalar::by_name(&user.name).is_none();
    let types = schemas.into_iter().flat_map(Schema::user_types).filter(is_enum);
    types.map(|user| EnumType { schema: user.schema.clone(), name: user.name.clone() }).collect()
}

/// Returns the maximum length of a clause. One in canonical form contains its parameters.
fn max_length(rules: PostgresRules<'_>) -> usize {
    match rules {
        PostgresRules::Stored => MAX_CANONICAL_BYTES,
        PostgresRules::None | PostgresRules::Checked(_) => MAX_CLAUSE_BYTES,
    }
}

fn check_length(text: &str, params: &[&str], limit: usize) -> Result<(), FilterError> {
    let bytes = params.iter().fold(0_usize, |sum, param| sum.saturating_add(param.len()));
    if text.len() > limit {
        return Err(FilterError::TooLong { bytes: text.len(), limit });
    }
    match bytes > MAX_PARAM_BYTES {
        true => Err(FilterError::ParamsTooLong { bytes, limit: MAX_PARAM_BYTES }),
        false => Ok(()),
    }
}
