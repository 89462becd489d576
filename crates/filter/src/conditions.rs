//! What of a clause an index can use.
//!
//! Invariant: a row of which the clause is true satisfies every condition of at least one alternative; and the clause is
//! true of a row that satisfies every condition of an alternative without `rest`.
//! Kept by: a condition is taken only from what a true clause needs; everything else, and what could fail, is `rest`.

use super::key::Key;
use super::typing::expr::{Binary, Comparison, Expr};
use super::typing::{Scalar, Type};
use super::value::array::Array;
use super::value::{Value, like};

/// One way in which the clause can be true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alternative {
    /// All of them hold where the clause is true in this way. None: it may be true of any row.
    pub conditions: Vec<Condition>,
    /// Whether there is more to it: rows that satisfy the conditions must still be tried. If not, the clause is true of them.
    pub rest: bool,
}

/// What an index can look up. Columns are by their places in the schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The column's key is one of these: `=` and IN.
    Equals {
        /// The column.
        column: usize,
        /// In order, and each once; never empty.
        keys: Vec<Key>,
    },
    /// The column's key is within these bounds.
    Range {
        /// The column.
        column: usize,
        /// Not below.
        lower: Option<Bound>,
        /// Not above.
        upper: Option<Bound>,
    },
    /// The column's text begins with this: LIKE.
    Prefix {
        /// The column.
        column: usize,
        /// Never empty.
        prefix: String,
    },
    /// The array column has all of these elements: `@>` and `= ANY (column)`.
    Elements {
        /// The column.
        column: usize,
        /// In order, and each once; never empty.
        keys: Vec<Key>,
    },
}

/// An end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The value.
    pub key: Key,
    /// Whether the value itself is within.
    pub inclusive: bool,
}

/// The alternatives; none at all if the clause is never true.
pub(super) fn of(expr: &Expr) -> Vec<Alternative> {
    match expr {
        Expr::Or(operands) => {
            let mut alternatives: Vec<_> = operands.iter().flat_map(of).collect();
            if alternatives.iter().any(|alternative| alternative.conditions.is_empty()) {
                return vec![Alternative { conditions: Vec::new(), rest: true }];
            }
            if alternatives.len() < operands.len() || !is_of_one_column(&alternatives) {
                // An operand before the one that holds is evaluated too, and may fail.
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
            Simple::Never => return Vec::new(),
            Simple::Always => {}
            Simple::Exactly(condition) => add(&mut found.conditions, condition),
            Simple::AtLeast(condition) => {
                add(&mut found.conditions, condition);
                found.rest = true;
            }
            Simple::Other => found.rest = true,
        }
    }
    if found.conditions.is_empty() && operands.len() > 1 {
        // An OR among them may do as well.
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

/// Whether a row whose column can be read can't make any of them fail.
fn is_of_one_column(alternatives: &[Alternative]) -> bool {
    let mut columns =
        alternatives.iter().flat_map(|alternative| &alternative.conditions).map(Condition::column);
    let first = columns.next();
    columns.all(|column| Some(column) == first) && alternatives.iter().all(|alternative| !alternative.rest)
}

impl Condition {
    /// The column that it is about, by its place in the schema.
    pub fn column(&self) -> usize {
        match self {
            Condition::Equals { column, .. }
            | Condition::Range { column, .. }
            | Condition::Prefix { column, .. }
            | Condition::Elements { column, .. } => *column,
        }
    }
}

/// What one operand of an AND needs.
enum Simple {
    Never,
    Always,
    Exactly(Condition),
    AtLeast(Condition),
    Other,
}

fn simple(expr: &Expr) -> Simple {
    match expr {
        Expr::Const(Some(Value::Bool(true))) => Simple::Always,
        Expr::Const(_) => Simple::Never,
        Expr::Column { index, kind: Type::BOOL } => equals(*index, Scalar::Bool, &[Value::Bool(true)]),
        Expr::Not(operand) => match **operand {
            Expr::Column { index, kind: Type::BOOL } => equals(index, Scalar::Bool, &[Value::Bool(false)]),
            _ => Simple::Other,
        },
        Expr::Distinct { negated: true, blank, operands } => match column_and_constant(operands) {
            Some((column, Type::Scalar(scalar), value, _)) if has_keys_for(scalar, *blank) => {
                equals(column, scalar, std::slice::from_ref(value))
            }
            _ => Simple::Other,
        },
        Expr::Binary(Binary::Compare { comparison, blank }, operands) => {
            compare(*comparison, *blank, operands)
        }
        Expr::Binary(Binary::Like { negated: false, casing: None }, operands) => prefix(operands),
        Expr::Binary(Binary::Contains { turned, blank }, operands) => {
            let (whole, part) = if *turned { (1, 0) } else { (0, 1) };
            match (&operands[whole], &operands[part]) {
                (
                    Expr::Column { index, kind: Type::Array(scalar) },
                    Expr::Const(Some(Value::Array(array))),
                ) if has_keys_for(*scalar, *blank) => elements(*index, *scalar, array),
                _ => Simple::Other,
            }
        }
        Expr::Quantified {
            operator: Binary::Compare { comparison: Comparison::Equal, blank },
            all: false,
            operands,
        } => any(*blank, operands),
        _ => Simple::Other,
    }
}

/// Whether keys of the column's type are equal exactly where the comparison says so. A text that is compared as a bpchar
/// has blanks in its key that don't count.
fn has_keys_for(scalar: Scalar, blank: bool) -> bool {
    blank == (scalar == Scalar::Bpchar)
}

/// The column, its type, the constant, and whether the constant stands first.
fn column_and_constant(operands: &[Expr; 2]) -> Option<(usize, Type, &Value<'static>, bool)> {
    match operands {
        [Expr::Column { index, kind }, Expr::Const(Some(value))] => Some((*index, *kind, value, false)),
        [Expr::Const(Some(value)), Expr::Column { index, kind }] => Some((*index, *kind, value, true)),
        _ => None,
    }
}

fn compare(comparison: Comparison, blank: bool, operands: &[Expr; 2]) -> Simple {
    let Some((column, Type::Scalar(scalar), value, turned)) = column_and_constant(operands) else {
        return Simple::Other;
    };
    if !has_keys_for(scalar, blank) {
        return Simple::Other;
    }
    let comparison = if turned { comparison.turned() } else { comparison };
    let bound = |inclusive| Key::of(value, scalar).map(|key| Bound { key, inclusive });
    let (lower, upper) = match comparison {
        Comparison::Equal => return equals(column, scalar, std::slice::from_ref(value)),
        Comparison::NotEqual => return Simple::Other,
        Comparison::Less => (None, bound(false)),
        Comparison::LessOrEqual => (None, bound(true)),
        Comparison::Greater => (bound(false), None),
        Comparison::GreaterOrEqual => (bound(true), None),
    };
    match lower.is_some() || upper.is_some() {
        true => Simple::Exactly(Condition::Range { column, lower, upper }),
        false => Simple::Other,
    }
}

fn equals(column: usize, scalar: Scalar, values: &[Value<'static>]) -> Simple {
    let keys: Option<Vec<_>> = values.iter().map(|value| Key::of(value, scalar)).collect();
    match keys.map(sorted) {
        Some(keys) if keys.is_empty() => Simple::Never,
        Some(keys) => Simple::Exactly(Condition::Equals { column, keys }),
        None => Simple::Other,
    }
}

fn prefix(operands: &[Expr; 2]) -> Simple {
    let [Expr::Column { index, kind: Type::Scalar(scalar) }, Expr::Const(Some(Value::Text(pattern)))] =
        operands
    else {
        return Simple::Other;
    };
    let (prefix, whole) = like::prefix(pattern);
    // The padding of a bpchar is part of what LIKE sees, and no part of its key.
    if *scalar == Scalar::Bpchar || prefix.is_empty() {
        return Simple::Other;
    }
    let condition = Condition::Prefix { column: *index, prefix };
    if whole { Simple::Exactly(condition) } else { Simple::AtLeast(condition) }
}

/// `column = ANY (constant)`, or `constant = ANY (column)`.
fn any(blank: bool, operands: &[Expr; 2]) -> Simple {
    match operands {
        [Expr::Column { index, kind: Type::Scalar(scalar) }, Expr::Const(Some(Value::Array(array)))]
            if has_keys_for(*scalar, blank) =>
        {
            let values: Vec<_> = array.items.iter().flatten().cloned().collect();
            equals(*index, *scalar, &values)
        }
        [Expr::Const(Some(value)), Expr::Column { index, kind: Type::Array(scalar) }]
            if has_keys_for(*scalar, blank) =>
        {
            elements(*index, *scalar, &Array::list(vec![Some(value.clone())]))
        }
        _ => Simple::Other,
    }
}

fn elements(column: usize, scalar: Scalar, array: &Array) -> Simple {
    if array.items.contains(&None) {
        return Simple::Never;
    }
    let keys: Option<Vec<_>> = array.items.iter().flatten().map(|value| Key::of(value, scalar)).collect();
    match keys.map(sorted) {
        Some(keys) if !keys.is_empty() => Simple::Exactly(Condition::Elements { column, keys }),
        _ => Simple::Other,
    }
}

fn sorted(mut keys: Vec<Key>) -> Vec<Key> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Ranges of one column become one.
fn add(conditions: &mut Vec<Condition>, condition: Condition) {
    let Condition::Range { column, lower, upper } = condition else {
        conditions.push(condition);
        return;
    };
    for other in conditions.iter_mut() {
        if let Condition::Range { column: same, lower: least, upper: most } = other
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
    conditions.push(Condition::Range { column, lower, upper });
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
        ];
        Schema { table: None, columns, database_collation, server_version: 15 }
    }

    /// How many conditions each alternative has, and whether there is more to it.
    fn alternatives(clause: &str) -> Vec<(usize, bool)> {
        let filter = Filter::parse(clause, &[], &schema(Collation::C)).unwrap();
        filter.conditions().iter().map(|found| (found.conditions.len(), found.rest)).collect()
    }

    #[test]
    fn a_text_that_is_compared_without_its_blanks_has_no_key_for_that() {
        for clause in [
            "t::bpchar = 'a'",
            "t::bpchar > 'a'",
            "t::bpchar IN ('a', 'b')",
            "t::bpchar IS NOT DISTINCT FROM 'a'",
            "at::bpchar[] @> '{a}'",
            "'a'::bpchar = ANY (at::bpchar[])",
        ] {
            assert_eq!(alternatives(clause), [(0, true)], "{clause}");
        }
        assert_eq!(alternatives("bp = 'a'"), [(1, false)]);
        assert_eq!(alternatives("bp IN ('a', 'b')"), [(1, false)]);
    }

    #[test]
    fn an_or_must_be_tried_where_an_operand_before_may_fail() {
        assert_eq!(alternatives("i = 1 OR i > 5"), [(1, false), (1, false)]);
        assert_eq!(alternatives("(1 / j = 1 AND i = 5) OR i = 1"), [(1, true), (1, true)]);
        assert_eq!(alternatives("(1 / j = 1 AND NULL) OR i = 1"), [(1, true)]);
        assert_eq!(alternatives("i = 1 OR j = 1"), [(1, true), (1, true)]);
    }

    #[test]
    fn texts_have_ranges_only_where_they_are_ordered_by_bytes() {
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
