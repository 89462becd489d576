//! Index conditions: the parts of a clause that an index can look up.
//!
//! Invariant: if the clause is true of a row, the row satisfies every condition of at least one
//! alternative. If a row satisfies every condition of an alternative without `rest`, the clause is
//! true of it.
//! Enforced by: conditions come only from operands that the clause requires to be true. If other
//! operands remain, or one could fail, `rest` is set.

mod json;

use forebay_values::{Array, Scalar, SqlValue, like};

use super::eval::json::JsonOperator;
use super::index_key::IndexKey;
use super::key_expression::KeyExpression;
use super::syntax::IsTest;
use super::typing::SqlType;
use super::typing::expr::{Binary, Comparison, Expr};

/// One way in which a clause can be true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alternative {
    /// Conditions that all hold if the clause is true in this way. Empty: any row may satisfy it.
    pub conditions: Vec<IndexCondition>,
    /// The clause has further parts: rows that satisfy the conditions must still be evaluated.
    pub rest: bool,
}

/// A condition that an index can look up. Columns are positions in the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexCondition {
    /// The column's key is one of these: `=`, IN.
    Equals {
        /// The column.
        column: usize,
        /// Sorted, without duplicates, never empty.
        keys: Vec<IndexKey>,
    },
    /// The column's key is within these bounds: `<`, `<=`, `>`, `>=`, BETWEEN.
    Range {
        /// The column.
        column: usize,
        /// Lower bound; `None` is unbounded.
        lower: Option<Bound>,
        /// Upper bound; `None` is unbounded.
        upper: Option<Bound>,
    },
    /// The column's text begins with this prefix: LIKE.
    Prefix {
        /// The column.
        column: usize,
        /// Never empty.
        prefix: String,
    },
    /// The array column has all of these elements: `@>`, `= ANY (column)`.
    Elements {
        /// The column.
        column: usize,
        /// Sorted, without duplicates, never empty.
        keys: Vec<IndexKey>,
    },
    /// The columns' values are in a subquery's set: IN (SELECT …).
    InSet {
        /// The columns.
        columns: Vec<usize>,
        /// Number of the set in [`Filter::sets`](crate::Filter::sets).
        set: usize,
    },
    /// The key of the expression's value is one of these: `lower(column) = 'a'`.
    Expression {
        /// The expression.
        expression: KeyExpression,
        /// Sorted, without duplicates, never empty.
        keys: Vec<IndexKey>,
    },
}

/// A bound of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The value.
    pub key: IndexKey,
    /// Whether the range includes the key.
    pub inclusive: bool,
}

/// Returns the alternatives of a clause; none if it is never true.
pub(super) fn of(expr: &Expr) -> Vec<Alternative> {
    match expr {
        Expr::Or(operands) => {
            let mut alternatives: Vec<_> = operands.iter().flat_map(of).collect();
            if alternatives.iter().any(|alternative| alternative.conditions.is_empty()) {
                return vec![Alternative { conditions: Vec::new(), rest: true }];
            }
            if alternatives.len() < operands.len() || !is_of_one_value(&alternatives) {
                // Postgres also evaluates the operands before the one that is true, and they may
                // fail.
                alternatives.iter_mut().for_each(|alternative| alternative.rest = true);
            }
            alternatives
        }
        Expr::And(operands) => all(operands),
        single => all(std::slice::from_ref(single)),
    }
}

fn all(operands: &[Expr]) -> Vec<Alternative> {
    let mut found = Alternative::default();
    for operand in operands {
        match simple(operand) {
            OperandNeed::Never => return Vec::new(),
            OperandNeed::Always => {}
            OperandNeed::Exactly(condition) => add(&mut found.conditions, condition),
            OperandNeed::AtLeast(condition) => {
                add(&mut found.conditions, condition);
                found.rest = true;
            }
            OperandNeed::All { conditions, rest } => {
                conditions.into_iter().for_each(|condition| add(&mut found.conditions, condition));
                found.rest |= rest;
            }
            OperandNeed::Other => found.rest = true,
        }
    }
    if found.conditions.is_empty() && operands.len() > 1 {
        // No operand has a condition: the alternatives of an OR among them can be used.
        for operand in operands.iter().filter(|operand| matches!(operand, Expr::Or(_))) {
            let mut alternatives = of(operand);
            if alternatives.iter().all(|alternative| !alternative.conditions.is_empty()) {
                alternatives.iter_mut().for_each(|alternative| alternative.rest = true);
                return alternatives;
            }
        }
    }
    vec![found]
}

/// Returns whether all conditions are complete and on one column, or on one expression. Then no
/// alternative can fail on a row for which that value is known.
fn is_of_one_value(alternatives: &[Alternative]) -> bool {
    let source = |condition: &IndexCondition| match condition {
        IndexCondition::Expression { expression, .. } => (None, Some(expression.clone())),
        other => (other.column(), None),
    };
    let is_of_several = |condition: &IndexCondition| matches!(condition, IndexCondition::InSet { columns, .. } if columns.len() > 1);
    if alternatives.iter().flat_map(|alternative| &alternative.conditions).any(is_of_several) {
        return false;
    }
    let mut sources = alternatives.iter().flat_map(|alternative| &alternative.conditions).map(source);
    let first = sources.next();
    sources.all(|source| Some(source) == first) && alternatives.iter().all(|alternative| !alternative.rest)
}

impl IndexCondition {
    /// Returns the column's position in the schema; `None` for an expression and for several
    /// columns.
    pub fn column(&self) -> Option<usize> {
        match self {
            IndexCondition::Equals { column, .. }
            | IndexCondition::Range { column, .. }
            | IndexCondition::Prefix { column, .. }
            | IndexCondition::Elements { column, .. } => Some(*column),
            IndexCondition::InSet { columns, .. } => match columns[..] {
                [column] => Some(column),
                _ => None,
            },
            IndexCondition::Expression { .. } => None,
        }
    }
}

/// Requirement of one operand of an AND on a row.
enum OperandNeed {
    Never,
    Always,
    Exactly(IndexCondition),
    AtLeast(IndexCondition),
    /// All of these. `rest`: and more.
    All {
        conditions: Vec<IndexCondition>,
        rest: bool,
    },
    Other,
}

fn simple(expr: &Expr) -> OperandNeed {
    match expr {
        Expr::Const(Some(SqlValue::Bool(true))) => OperandNeed::Always,
        Expr::Const(_) => OperandNeed::Never,
        Expr::Column { index, kind: SqlType::BOOL } => equals(*index, Scalar::Bool, &[SqlValue::Bool(true)]),
        Expr::Not(operand) => match **operand {
            Expr::Column { index, kind: SqlType::BOOL } => {
                equals(index, Scalar::Bool, &[SqlValue::Bool(false)])
            }
            _ => OperandNeed::Other,
        },
        Expr::Distinct { negated: true, ignore_blanks, operands } => match column_and_constant(operands) {
            Some((column, SqlType::Scalar(scalar), value, _)) if has_keys_for(scalar, *ignore_blanks) => {
                equals(column, scalar, std::slice::from_ref(value))
            }
            _ => expression_equals(*ignore_blanks, operands),
        },
        Expr::InSet { set, operands } => in_set(*set, operands),
        Expr::Is { negated: false, test: IsTest::True, operand } => simple(operand),
        Expr::Binary(Binary::Compare { comparison, ignore_blanks }, operands) => {
            compare(*comparison, *ignore_blanks, operands)
        }
        Expr::Binary(Binary::Like { negated: false, casing: None }, operands) => prefix(operands),
        Expr::Binary(Binary::Contains { swapped, ignore_blanks }, operands) => {
            let (whole, part) = if *swapped { (1, 0) } else { (0, 1) };
            match (&operands[whole], &operands[part]) {
                (
                    Expr::Column { index, kind: SqlType::Array(scalar) },
                    Expr::Const(Some(SqlValue::Array(array))),
                ) if has_keys_for(*scalar, *ignore_blanks) => elements(*index, *scalar, array),
                _ => OperandNeed::Other,
            }
        }
        Expr::Binary(Binary::Json(JsonOperator::Contains { swapped }), operands) => {
            let (whole, part) = if *swapped { (1, 0) } else { (0, 1) };
            match &operands[part] {
                Expr::Const(Some(SqlValue::Json(part))) => json::contains(&operands[whole], part),
                _ => OperandNeed::Other,
            }
        }
        Expr::Quantified {
            operator: Binary::Compare { comparison: Comparison::Equal, ignore_blanks },
            all: false,
            operands,
            ..
        } => any(*ignore_blanks, operands),
        _ => OperandNeed::Other,
    }
}

fn in_set(set: usize, operands: &[Expr]) -> OperandNeed {
    let column = |operand: &Expr| match operand {
        Expr::Column { index, .. } => *index,
        other => unreachable!("typing allows only columns: {other:?}"),
    };
    OperandNeed::Exactly(IndexCondition::InSet { columns: operands.iter().map(column).collect(), set })
}

/// Returns whether keys of the column's type are equal exactly if the comparison holds.
///
/// False for a text column that is compared as a bpchar: its key includes trailing blanks.
fn has_keys_for(scalar: Scalar, ignore_blanks: bool) -> bool {
    ignore_blanks == (scalar == Scalar::Bpchar)
}

/// Returns the column, its type, the constant, and whether the constant is the left operand.
fn column_and_constant(operands: &[Expr; 2]) -> Option<(usize, SqlType, &SqlValue<'static>, bool)> {
    match operands {
        [Expr::Column { index, kind }, Expr::Const(Some(value))] => Some((*index, *kind, value, false)),
        [Expr::Const(Some(value)), Expr::Column { index, kind }] => Some((*index, *kind, value, true)),
        _ => None,
    }
}

fn compare(comparison: Comparison, ignore_blanks: bool, operands: &[Expr; 2]) -> OperandNeed {
    let (column, scalar, value, swapped) = match column_and_constant(operands) {
        Some((column, SqlType::Scalar(scalar), value, swapped)) if has_keys_for(scalar, ignore_blanks) => {
            (column, scalar, value, swapped)
        }
        _ if comparison == Comparison::Equal => return expression_equals(ignore_blanks, operands),
        _ => return OperandNeed::Other,
    };
    let comparison = if swapped { comparison.swapped() } else { comparison };
    let bound = |inclusive| IndexKey::of(value, scalar).map(|key| Bound { key, inclusive });
    let (lower, upper) = match comparison {
        Comparison::Equal => return equals(column, scalar, std::slice::from_ref(value)),
        Comparison::NotEqual => return OperandNeed::Other,
        _ if scalar == Scalar::Jsonb => return OperandNeed::Other,
        Comparison::Less => (None, bound(false)),
        Comparison::LessOrEqual => (None, bound(true)),
        Comparison::Greater => (bound(false), None),
        Comparison::GreaterOrEqual => (bound(true), None),
    };
    match lower.is_some() || upper.is_some() {
        true => OperandNeed::Exactly(IndexCondition::Range { column, lower, upper }),
        false => OperandNeed::Other,
    }
}

/// Handles `expression = constant`.
fn expression_equals(ignore_blanks: bool, operands: &[Expr; 2]) -> OperandNeed {
    match operands {
        [Expr::Const(_), Expr::Const(_)] => OperandNeed::Other,
        [expr, Expr::Const(Some(value))] | [Expr::Const(Some(value)), expr] => {
            expression_in(expr, ignore_blanks, std::iter::once(value))
        }
        _ => OperandNeed::Other,
    }
}

fn expression_in<'v, 'a: 'v>(
    expr: &Expr,
    ignore_blanks: bool,
    values: impl Iterator<Item = &'v SqlValue<'a>>,
) -> OperandNeed {
    let keys: Option<Vec<_>> = values.map(|value| IndexKey::of_value(value, ignore_blanks)).collect();
    let Some(keys) = keys.map(sorted) else { return OperandNeed::Other };
    let Some(form) = keys.first().map(IndexKey::form) else { return OperandNeed::Other };
    if keys.iter().any(|key| key.form() != form) {
        return OperandNeed::Other;
    }
    let expression = KeyExpression::new(expr, ignore_blanks, form);
    OperandNeed::Exactly(IndexCondition::Expression { expression, keys })
}

fn equals(column: usize, scalar: Scalar, values: &[SqlValue<'static>]) -> OperandNeed {
    let keys: Option<Vec<_>> = values.iter().map(|value| IndexKey::of(value, scalar)).collect();
    match keys.map(sorted) {
        Some(keys) if keys.is_empty() => OperandNeed::Never,
        Some(keys) => OperandNeed::Exactly(IndexCondition::Equals { column, keys }),
        None => OperandNeed::Other,
    }
}

fn prefix(operands: &[Expr; 2]) -> OperandNeed {
    let [Expr::Column { index, kind: SqlType::Scalar(scalar) }, Expr::Const(Some(SqlValue::Text(pattern)))] =
        operands
    else {
        return OperandNeed::Other;
    };
    let (prefix, whole) = like::prefix(pattern);
    // LIKE compares the padding of a bpchar, which the key does not contain.
    if *scalar == Scalar::Bpchar || prefix.is_empty() {
        return OperandNeed::Other;
    }
    let condition = IndexCondition::Prefix { column: *index, prefix };
    if whole { OperandNeed::Exactly(condition) } else { OperandNeed::AtLeast(condition) }
}

/// Handles `column = ANY (constant)`, `expression = ANY (constant)` and `constant = ANY (column)`.
fn any(ignore_blanks: bool, operands: &[Expr; 2]) -> OperandNeed {
    match operands {
        [
            Expr::Column { index, kind: SqlType::Scalar(scalar) },
            Expr::Const(Some(SqlValue::Array(array))),
        ] if has_keys_for(*scalar, ignore_blanks) => {
            let values: Vec<_> = array.items().iter().flatten().cloned().collect();
            equals(*index, *scalar, &values)
        }
        [Expr::Const(Some(value)), Expr::Column { index, kind: SqlType::Array(scalar) }]
            if has_keys_for(*scalar, ignore_blanks) =>
        {
            elements(*index, *scalar, &Array::list(vec![Some(value.clone())]))
        }
        [Expr::Const(_), _] => OperandNeed::Other,
        [expr, Expr::Const(Some(SqlValue::Array(array)))] => {
            expression_in(expr, ignore_blanks, array.items().iter().flatten())
        }
        _ => OperandNeed::Other,
    }
}

fn elements(column: usize, scalar: Scalar, array: &Array) -> OperandNeed {
    if array.items().contains(&None) {
        return OperandNeed::Never;
    }
    let keys: Option<Vec<_>> =
        array.items().iter().flatten().map(|value| IndexKey::of(value, scalar)).collect();
    match keys.map(sorted) {
        Some(keys) if !keys.is_empty() => OperandNeed::Exactly(IndexCondition::Elements { column, keys }),
        _ => OperandNeed::Other,
    }
}

fn sorted(mut keys: Vec<IndexKey>) -> Vec<IndexKey> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Adds a condition. Ranges on one column are intersected.
fn add(conditions: &mut Vec<IndexCondition>, condition: IndexCondition) {
    let IndexCondition::Range { column, lower, upper } = condition else {
        conditions.push(condition);
        return;
    };
    for other in conditions.iter_mut() {
        if let IndexCondition::Range { column: same, lower: least, upper: most } = other
            && *same == column
        {
            let tighter_lower = |bound: &Bound, least: &Bound| {
                bound.key > least.key || (bound.key == least.key && !bound.inclusive)
            };
            let tighter_upper = |bound: &Bound, most: &Bound| {
                bound.key < most.key || (bound.key == most.key && !bound.inclusive)
            };
            if let Some(bound) = lower
                && least.as_ref().is_none_or(|least| tighter_lower(&bound, least))
            {
                *least = Some(bound);
            }
            if let Some(bound) = upper
                && most.as_ref().is_none_or(|most| tighter_upper(&bound, most))
            {
                *most = Some(bound);
            }
            return;
        }
    }
    conditions.push(IndexCondition::Range { column, lower, upper });
}

#[cfg(test)]
mod tests {
    use crate::{Collation, Column, Filter, Schema};

    fn schema(database_collation: Collation) -> Schema {
        let columns = vec![
            Column::new("i", 23, "int4"),
            Column::new("j", 23, "int4"),
            Column::new("t", 25, "text"),
            Column::new("bp", 1042, "bpchar"),
            Column::new("at", 1009, "text[]"),
            Column::new("js", 3802, "jsonb"),
        ];
        Schema { table: None, columns, database_collation, server_version: 15 }
    }

    /// Returns the number of conditions of each alternative, and its `rest`.
    fn alternatives(clause: &str) -> Vec<(usize, bool)> {
        let filter = Filter::parse(clause, &[], &schema(Collation::C)).unwrap();
        filter.conditions().iter().map(|found| (found.conditions.len(), found.rest)).collect()
    }

    #[test]
    fn a_text_column_that_is_compared_as_bpchar_is_an_expression() {
        for clause in ["t::bpchar > 'a'", "at::bpchar[] @> '{a}'", "'a'::bpchar = ANY (at::bpchar[])"] {
            assert_eq!(alternatives(clause), [(0, true)], "{clause}");
        }
        for clause in ["t::bpchar = 'a'", "t::bpchar IN ('a', 'b')", "t::bpchar IS NOT DISTINCT FROM 'a'"] {
            assert_eq!(alternatives(clause), [(1, false)], "{clause}");
        }
        let filter = Filter::parse("t::bpchar = 'a'", &[], &schema(Collation::C)).unwrap();
        assert_eq!(filter.conditions()[0].conditions[0].column(), None);
        assert_eq!(alternatives("bp = 'a'"), [(1, false)]);
        assert_eq!(alternatives("bp IN ('a', 'b')"), [(1, false)]);
    }

    #[test]
    fn an_or_is_not_exact_if_an_earlier_operand_may_fail() {
        assert_eq!(alternatives("i = 1 OR i > 5"), [(1, false), (1, false)]);
        assert_eq!(alternatives("(1 / j = 1 AND i = 5) OR i = 1"), [(2, true), (1, true)]);
        assert_eq!(alternatives("lower(t) = 'a' OR lower(t) = 'b'"), [(1, false), (1, false)]);
        assert_eq!(alternatives("lower(t) = 'a' OR t = 'b'"), [(1, true), (1, true)]);
        assert_eq!(alternatives("(1 / j = 1 AND NULL) OR i = 1"), [(1, true)]);
        assert_eq!(alternatives("i = 1 OR j = 1"), [(1, true), (1, true)]);
    }

    #[test]
    fn containment_has_a_condition_for_each_member_that_is_no_container() {
        for (clause, conditions, rest) in [
            (r#"js @> '{"a": 1}'"#, 1, false),
            (r#"js @> '{"a": {"b": "x", "c": null}, "d": true}'"#, 3, false),
            (r#"js @> '{"a": {"b": "x"}, "d": []}'"#, 1, true),
            (r#"js @> '{"a": {"b": "x"}, "d": {}}'"#, 1, true),
            (r#"'{"a": 1}' <@ js"#, 1, false),
            (r#"js <@ '{"a": 1}'"#, 0, true),
            ("js @> '{}'", 0, true),
            ("js @> '[1]'", 0, true),
            (r#"js -> 'x' @> '{"a": 1}' AND i = 1"#, 2, false),
        ] {
            assert_eq!(alternatives(clause), [(conditions, rest)], "{clause}");
        }
        let deep = format!("js @> '{}1{}'", r#"{"a":"#.repeat(500), "}".repeat(500));
        assert_eq!(alternatives(&deep), [(0, true)]);
    }

    #[test]
    fn texts_have_ranges_only_under_collations_that_order_by_bytes() {
        assert_eq!(alternatives("t > 'a'"), [(1, false)]);
        for collation in [
            Collation::Libc("en_US.UTF-8".to_owned()),
            Collation::Icu("und".to_owned()),
            Collation::Nondeterministic,
        ] {
            let schema = schema(collation);
            for clause in ["t > 'a'", "t BETWEEN 'a' AND 'b'", "'a' >= t", "at > '{a}'"] {
                assert!(Filter::parse(clause, &[], &schema).is_err(), "{clause}");
            }
            let filter = Filter::parse("t COLLATE \"C\" > 'a'", &[], &schema).unwrap();
            assert!(!filter.conditions()[0].rest);
        }
    }
}
