//! Resolution of operators and functions by Postgres' rules (parse_oper.c, parse_func.c), over the
//! rows of `catalog.rs` and `functions/`.

use forebay_values::Scalar;

use super::catalog::{self, OperandType, Operator};
use super::expr::Comparison;
use super::polymorphic;
use super::sql_type::{Category, SqlType};

/// Result of operator resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorResolution {
    Found { left: SqlType, right: SqlType, result: Scalar },
    None,
    Ambiguous,
}

/// Result of a choice among rows.
pub(crate) enum Resolution<R> {
    Found(R),
    None,
    Ambiguous,
}

pub(crate) fn binary(name: &str, left: SqlType, right: SqlType) -> OperatorResolution {
    if let Some(resolution) = comparison_of_one_type(name, left, right) {
        return resolution;
    }
    let rows = catalog::binary(name);
    if let Some(exact) = exact(&rows, left, right) {
        return found(exact, left, right);
    }
    let rows = rows.into_iter().map(|row| (vec![row.left, row.right], row)).collect();
    match choose(rows, &[left, right]) {
        Resolution::Found((_, chosen)) => found(chosen, left, right),
        Resolution::None => OperatorResolution::None,
        Resolution::Ambiguous => OperatorResolution::Ambiguous,
    }
}

/// Resolves comparisons of enums, ranges and multiranges: both operands have one type (anyenum,
/// anyrange, anymultirange).
/// `None`: neither operand is one.
fn comparison_of_one_type(name: &str, left: SqlType, right: SqlType) -> Option<OperatorResolution> {
    let is_polymorphic = |kind: SqlType| {
        matches!(kind, SqlType::Scalar(scalar)
            if scalar.is_enum() || scalar.range_element().is_some() || scalar.multirange_range().is_some())
    };
    Comparison::of(name)?;
    let kind = match (left, right) {
        _ if !is_polymorphic(left) && !is_polymorphic(right) => return None,
        (SqlType::Unknown, kind) | (kind, SqlType::Unknown) => kind,
        _ if left == right => left,
        _ => return Some(OperatorResolution::None),
    };
    Some(OperatorResolution::Found { left: kind, right: kind, result: Scalar::Bool })
}

/// Resolves a prefix operator.
pub(crate) fn prefix(name: &str, operand: SqlType) -> OperatorResolution {
    let found = |scalar| OperatorResolution::Found {
        left: SqlType::Scalar(scalar),
        right: SqlType::Scalar(scalar),
        result: scalar,
    };
    let rows: Vec<_> =
        catalog::prefix(name).iter().map(|&scalar| (vec![OperandType::Scalar(scalar)], scalar)).collect();
    if let Some((_, exact)) = rows.iter().find(|(slots, _)| is_exact(slots, &[operand])) {
        return found(*exact);
    }
    match choose(rows, &[operand]) {
        Resolution::Found((_, chosen)) => found(chosen),
        Resolution::None => OperatorResolution::None,
        Resolution::Ambiguous => OperatorResolution::Ambiguous,
    }
}

fn found(operator: Operator, left: SqlType, right: SqlType) -> OperatorResolution {
    let types = polymorphic::solve(&[operator.left, operator.right], &[left, right]).unwrap_or_default();
    match (types.actual(operator.left, left), types.actual(operator.right, right)) {
        (Some(left), Some(right)) => OperatorResolution::Found { left, right, result: operator.result },
        _ => OperatorResolution::None,
    }
}

/// Returns the row for exactly these types. An untyped constant is taken to have the other
/// operand's type.
fn exact(rows: &[Operator], left: SqlType, right: SqlType) -> Option<Operator> {
    let both = match (left, right) {
        (SqlType::Unknown, right) => [right, right],
        (left, SqlType::Unknown) => [left, left],
        (left, right) => [left, right],
    };
    rows.iter().find(|row| is_exact(&[row.left, row.right], &both)).copied()
}

/// Returns whether the slots have exactly these types.
pub(crate) fn is_exact(slots: &[OperandType], given: &[SqlType]) -> bool {
    slots.iter().zip(given).all(|(slot, given)| slot.is(*given))
}

/// Chooses the row that Postgres takes for these types. Each row comes with its operands' types
/// (func_match_argtypes, func_select_candidate).
pub(crate) fn choose<R>(
    mut rows: Vec<(Vec<OperandType>, R)>,
    given: &[SqlType],
) -> Resolution<(Vec<OperandType>, R)> {
    rows.retain(|(slots, _)| accept(slots, given));
    if rows.is_empty() {
        return Resolution::None;
    }
    for narrow in [keep_exact, keep_preferred, keep_category, keep_known] {
        if rows.len() == 1 {
            break;
        }
        // The last two rules are about untyped constants.
        let chosen = narrow(&rows.iter().map(|(slots, _)| &slots[..]).collect::<Vec<_>>(), given);
        let mut position = 0;
        rows.retain(|_| {
            position += 1;
            chosen.get(position - 1) == Some(&true)
        });
    }
    match rows.pop() {
        Some(row) if rows.is_empty() => Resolution::Found(row),
        _ => Resolution::Ambiguous,
    }
}

fn accept(slots: &[OperandType], given: &[SqlType]) -> bool {
    slots.iter().zip(given).all(|(slot, given)| slot.accepts(*given))
        && polymorphic::solve(slots, given).is_some()
}

/// Says for each row whether it has the most operands of exactly the given type.
fn keep_exact(rows: &[&[OperandType]], given: &[SqlType]) -> Vec<bool> {
    keep_best(rows, |slots| slots.iter().zip(given).filter(|(slot, given)| slot.is(**given)).count())
}

/// Says for each row whether it has the most operands that are exact or of a preferred type.
fn keep_preferred(rows: &[&[OperandType]], given: &[SqlType]) -> Vec<bool> {
    let good = |slot: &OperandType, given: SqlType| {
        slot.is(given) || (slot.is_preferred() && slot.category() == given.category())
    };
    keep_best(rows, |slots| slots.iter().zip(given).filter(|(slot, given)| good(slot, **given)).count())
}

fn keep_best(rows: &[&[OperandType]], score: impl Fn(&[OperandType]) -> usize) -> Vec<bool> {
    let best = rows.iter().map(|slots| score(slots)).max();
    rows.iter().map(|slots| Some(score(slots)) == best).collect()
}

/// Says for each row whether its types fit the categories of untyped constants. The string category
/// is preferred; otherwise all rows must share one category.
fn keep_category(rows: &[&[OperandType]], given: &[SqlType]) -> Vec<bool> {
    let all = vec![true; rows.len()];
    let mut demands = Vec::new();
    for position in (0..given.len()).filter(|&position| given[position] == SqlType::Unknown) {
        let slots: Vec<_> = rows.iter().map(|slots| slots[position]).collect();
        let strings = slots.iter().any(|slot| slot.category() == Category::String);
        let wanted = if strings { Category::String } else { slots[0].category() };
        if !strings && slots.iter().any(|slot| slot.category() != wanted) {
            return all;
        }
        let has_preferred = slots.iter().any(|slot| slot.category() == wanted && slot.is_preferred());
        demands.push((position, wanted, has_preferred));
    }
    let fits = |slots: &&[OperandType]| {
        demands.iter().all(|&(position, wanted, has_preferred)| {
            let slot = slots[position];
            slot.category() == wanted && (!has_preferred || slot.is_preferred())
        })
    };
    if rows.iter().any(fits) { rows.iter().map(fits).collect() } else { all }
}

/// Says for each row whether it accepts the one type that all typed operands have. Untyped
/// constants are taken to have that type too.
fn keep_known(rows: &[&[OperandType]], given: &[SqlType]) -> Vec<bool> {
    let mut known = given.iter().filter(|kind| **kind != SqlType::Unknown);
    let all = vec![true; rows.len()];
    match known.next() {
        Some(first) if given.contains(&SqlType::Unknown) && known.all(|kind| kind == first) => {
            rows.iter().map(|slots| accept(slots, &vec![*first; slots.len()])).collect()
        }
        _ => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Scalar::*;

    fn of(scalar: Scalar) -> SqlType {
        SqlType::Scalar(scalar)
    }

    #[track_caller]
    fn check(name: &str, left: SqlType, right: SqlType, expected: (Scalar, Scalar, Scalar)) {
        let (left_taken, right_taken, result) = expected;
        let expected = OperatorResolution::Found { left: of(left_taken), right: of(right_taken), result };
        assert_eq!(binary(name, left, right), expected);
    }

    #[test]
    fn operators_are_those_that_postgres_takes() {
        check("=", of(Int4), of(Int8), (Int4, Int8, Bool));
        check("=", of(Int4), SqlType::Unknown, (Int4, Int4, Bool));
        check("=", of(Int4), of(Numeric), (Numeric, Numeric, Bool));
        check("+", of(Int8), of(Float4), (Float8, Float4, Float8));
        check("^", of(Int4), of(Int4), (Float8, Float8, Float8));
        check("^", SqlType::Unknown, SqlType::Unknown, (Float8, Float8, Float8));
        check("=", of(Varchar), of(Bpchar), (Bpchar, Bpchar, Bool));
        check("=", of(Text), of(Bpchar), (Text, Text, Bool));
        check("=", SqlType::Unknown, SqlType::Unknown, (Text, Text, Bool));
        check("+", of(Timestamp), SqlType::Unknown, (Timestamp, Interval, Timestamp));
        check("||", SqlType::Unknown, of(Int4), (Text, Int4, Text));
        assert_eq!(binary("+", of(Date), SqlType::Unknown), OperatorResolution::Ambiguous);
        assert_eq!(binary("+", SqlType::Unknown, SqlType::Unknown), OperatorResolution::Ambiguous);
        assert_eq!(binary("=", of(Int4), of(Text)), OperatorResolution::None);
        assert_eq!(prefix("-", SqlType::Unknown), OperatorResolution::Ambiguous);
        assert_eq!(
            prefix("|/", of(Int4)),
            OperatorResolution::Found { left: of(Float8), right: of(Float8), result: Float8 }
        );
    }
}
