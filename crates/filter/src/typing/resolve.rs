//! Operator resolution by Postgres' rules (parse_oper.c, func_select_candidate), over the rows of
//! `catalog.rs`.

use super::catalog::{self, OperandType, Operator};
use super::expr::Comparison;
use super::sql_type::{Category, Scalar, SqlType};

/// Result of operator resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorResolution {
    Found { left: SqlType, right: SqlType, result: Scalar },
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
    let fits = |row: &Operator| accepts(row.left, left) && accepts(row.right, right);
    let candidates: Vec<_> = rows.into_iter().filter(fits).collect();
    match candidates[..] {
        [] => OperatorResolution::None,
        [only] => found(only, left, right),
        _ => match select(candidates, [left, right]) {
            Some(chosen) => found(chosen, left, right),
            None => OperatorResolution::Ambiguous,
        },
    }
}

/// Resolves comparisons of enums and of ranges: both operands have one type (anyenum, anyrange).
/// `None`: neither operand is one.
fn comparison_of_one_type(name: &str, left: SqlType, right: SqlType) -> Option<OperatorResolution> {
    let is_polymorphic = |kind: SqlType| matches!(kind, SqlType::Scalar(scalar) if scalar.is_enum() || scalar.range_element().is_some());
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
    let rows = catalog::prefix(name).iter();
    let rows = rows.map(|&scalar| Operator {
        left: OperandType::Scalar(scalar),
        right: OperandType::Scalar(scalar),
        result: scalar,
    });
    let fits: Vec<_> = rows.filter(|row| accepts(row.right, operand)).collect();
    if let Some(exact) = fits.iter().find(|row| SqlType::Scalar(row.result) == operand) {
        return found(*exact, operand, operand);
    }
    match fits[..] {
        [] => OperatorResolution::None,
        [only] => found(only, operand, operand),
        // The rules give the same result for one operand and for that operand twice.
        _ => match select(fits, [operand, operand]) {
            Some(chosen) => found(chosen, operand, operand),
            None => OperatorResolution::Ambiguous,
        },
    }
}

fn found(operator: Operator, left: SqlType, right: SqlType) -> OperatorResolution {
    let actual = |slot: OperandType, given: SqlType| match slot {
        OperandType::Scalar(scalar) => SqlType::Scalar(scalar),
        OperandType::NonArray => given,
    };
    OperatorResolution::Found {
        left: actual(operator.left, left),
        right: actual(operator.right, right),
        result: operator.result,
    }
}

/// Returns the row for exactly these types. An untyped constant is taken to have the other
/// operand's type.
fn exact(rows: &[Operator], left: SqlType, right: SqlType) -> Option<Operator> {
    let (left, right) = match (left, right) {
        (SqlType::Unknown, right) => (right, right),
        (left, SqlType::Unknown) => (left, left),
        both => both,
    };
    let is = |slot: OperandType, given: SqlType| matches!((slot, given), (OperandType::Scalar(slot), SqlType::Scalar(given)) if slot == given);
    rows.iter().find(|row| is(row.left, left) && is(row.right, right)).copied()
}

fn accepts(slot: OperandType, given: SqlType) -> bool {
    match slot {
        OperandType::Scalar(scalar) => given.casts_implicitly_to(SqlType::Scalar(scalar)),
        OperandType::NonArray => !matches!(given, SqlType::Array(_)),
    }
}

fn select(mut candidates: Vec<Operator>, given: [SqlType; 2]) -> Option<Operator> {
    let slots = |operator: &Operator| [operator.left, operator.right];
    let is = |slot: OperandType, given: SqlType| matches!((slot, given), (OperandType::Scalar(slot), SqlType::Scalar(given)) if slot == given);
    let preferred = |slot: OperandType, category: Category| matches!(slot, OperandType::Scalar(scalar) if scalar.is_preferred() && scalar.category() == category);

    keep_best(&mut candidates, |row| {
        slots(row).into_iter().zip(given).filter(|&(slot, given)| is(slot, given)).count()
    });
    if let [only] = candidates[..] {
        return Some(only);
    }
    keep_best(&mut candidates, |row| {
        let good =
            |&(slot, given): &(OperandType, SqlType)| is(slot, given) || preferred(slot, given.category());
        slots(row).into_iter().zip(given).filter(good).count()
    });
    if let [only] = candidates[..] {
        return Some(only);
    }
    if !given.contains(&SqlType::Unknown) {
        return None;
    }
    by_category(&mut candidates, given);
    if let [only] = candidates[..] {
        return Some(only);
    }
    // Last rule: the untyped constant is taken to have the other operand's type.
    let known = given.into_iter().find(|kind| *kind != SqlType::Unknown)?;
    candidates.retain(|row| slots(row).into_iter().all(|slot| accepts(slot, known)));
    match candidates[..] {
        [only] => Some(only),
        _ => None,
    }
}

fn keep_best(candidates: &mut Vec<Operator>, score: impl Fn(&Operator) -> usize) {
    let best = candidates.iter().map(&score).max().unwrap_or(0);
    candidates.retain(|row| score(row) == best);
}

/// Filters candidates by type category. For an untyped constant, the string category is preferred;
/// otherwise all candidates must share one category.
fn by_category(candidates: &mut Vec<Operator>, given: [SqlType; 2]) {
    let category = |slot: OperandType| match slot {
        OperandType::Scalar(scalar) => scalar.category(),
        OperandType::NonArray => Category::Pseudo,
    };
    let is_preferred =
        |slot: OperandType| matches!(slot, OperandType::Scalar(scalar) if scalar.is_preferred());
    let mut demands = Vec::new();
    for position in (0..2).filter(|&position| given[position] == SqlType::Unknown) {
        let slot = |row: &Operator| [row.left, row.right][position];
        let all: Vec<_> = candidates.iter().map(slot).collect();
        let strings = all.iter().any(|slot| category(*slot) == Category::String);
        let wanted = if strings { Category::String } else { category(all[0]) };
        if !strings && all.iter().any(|slot| category(*slot) != wanted) {
            return;
        }
        let has_preferred = all.iter().any(|slot| category(*slot) == wanted && is_preferred(*slot));
        demands.push((position, wanted, has_preferred));
    }
    let fits = |row: &Operator| {
        demands.iter().all(|&(position, wanted, has_preferred)| {
            let slot = [row.left, row.right][position];
            category(slot) == wanted && (!has_preferred || is_preferred(slot))
        })
    };
    if candidates.iter().any(fits) {
        candidates.retain(fits);
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
