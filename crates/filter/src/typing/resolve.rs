//! Which operator is meant: Postgres' rules (parse_oper.c, func_select_candidate), on the rows of `catalog.rs`.

use super::catalog::{self, Operator, Slot};
use super::kind::{Category, Scalar, Type};

/// The operator that Postgres takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Found { left: Type, right: Type, result: Scalar },
    None,
    Ambiguous,
}

pub(crate) fn binary(name: &str, left: Type, right: Type) -> Choice {
    let rows = catalog::binary(name);
    if let Some(exact) = exact(&rows, left, right) {
        return found(exact, left, right);
    }
    let fits = |row: &Operator| accepts(row.left, left) && accepts(row.right, right);
    let candidates: Vec<_> = rows.into_iter().filter(fits).collect();
    match candidates[..] {
        [] => Choice::None,
        [only] => found(only, left, right),
        _ => match select(candidates, [left, right]) {
            Some(chosen) => found(chosen, left, right),
            None => Choice::Ambiguous,
        },
    }
}

/// A prefix operator's operand type.
pub(crate) fn prefix(name: &str, operand: Type) -> Choice {
    let rows = catalog::prefix(name).iter();
    let rows =
        rows.map(|&scalar| Operator { left: Slot::Is(scalar), right: Slot::Is(scalar), result: scalar });
    let fits: Vec<_> = rows.filter(|row| accepts(row.right, operand)).collect();
    if let Some(exact) = fits.iter().find(|row| Type::Scalar(row.result) == operand) {
        return found(*exact, operand, operand);
    }
    match fits[..] {
        [] => Choice::None,
        [only] => found(only, operand, operand),
        // One operand or the same twice is all one to the rules.
        _ => match select(fits, [operand, operand]) {
            Some(chosen) => found(chosen, operand, operand),
            None => Choice::Ambiguous,
        },
    }
}

fn found(operator: Operator, left: Type, right: Type) -> Choice {
    let actual = |slot: Slot, given: Type| match slot {
        Slot::Is(scalar) => Type::Scalar(scalar),
        Slot::NonArray => given,
    };
    Choice::Found {
        left: actual(operator.left, left),
        right: actual(operator.right, right),
        result: operator.result,
    }
}

/// A constant of no type is taken for one of the other's.
fn exact(rows: &[Operator], left: Type, right: Type) -> Option<Operator> {
    let (left, right) = match (left, right) {
        (Type::Unknown, right) => (right, right),
        (left, Type::Unknown) => (left, left),
        both => both,
    };
    let is = |slot: Slot, given: Type| matches!((slot, given), (Slot::Is(slot), Type::Scalar(given)) if slot == given);
    rows.iter().find(|row| is(row.left, left) && is(row.right, right)).copied()
}

fn accepts(slot: Slot, given: Type) -> bool {
    match slot {
        Slot::Is(scalar) => given.becomes(Type::Scalar(scalar)),
        Slot::NonArray => !matches!(given, Type::Array(_)),
    }
}

fn select(mut candidates: Vec<Operator>, given: [Type; 2]) -> Option<Operator> {
    let slots = |operator: &Operator| [operator.left, operator.right];
    let is = |slot: Slot, given: Type| matches!((slot, given), (Slot::Is(slot), Type::Scalar(given)) if slot == given);
    let preferred = |slot: Slot, category: Category| matches!(slot, Slot::Is(scalar) if scalar.is_preferred() && scalar.category() == category);

    keep_best(&mut candidates, |row| {
        slots(row).into_iter().zip(given).filter(|&(slot, given)| is(slot, given)).count()
    });
    if let [only] = candidates[..] {
        return Some(only);
    }
    keep_best(&mut candidates, |row| {
        let good = |&(slot, given): &(Slot, Type)| is(slot, given) || preferred(slot, given.category());
        slots(row).into_iter().zip(given).filter(good).count()
    });
    if let [only] = candidates[..] {
        return Some(only);
    }
    if !given.contains(&Type::Unknown) {
        return None;
    }
    by_category(&mut candidates, given);
    if let [only] = candidates[..] {
        return Some(only);
    }
    // At last: as if the unknown one had the known one's type.
    let known = given.into_iter().find(|kind| *kind != Type::Unknown)?;
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

/// Where a constant has no type, strings win; else all candidates must agree on a category.
fn by_category(candidates: &mut Vec<Operator>, given: [Type; 2]) {
    let category = |slot: Slot| match slot {
        Slot::Is(scalar) => scalar.category(),
        Slot::NonArray => Category::Pseudo,
    };
    let is_preferred = |slot: Slot| matches!(slot, Slot::Is(scalar) if scalar.is_preferred());
    let mut demands = Vec::new();
    for place in (0..2).filter(|&place| given[place] == Type::Unknown) {
        let slot = |row: &Operator| [row.left, row.right][place];
        let all: Vec<_> = candidates.iter().map(slot).collect();
        let strings = all.iter().any(|slot| category(*slot) == Category::String);
        let wanted = if strings { Category::String } else { category(all[0]) };
        if !strings && all.iter().any(|slot| category(*slot) != wanted) {
            return;
        }
        let has_preferred = all.iter().any(|slot| category(*slot) == wanted && is_preferred(*slot));
        demands.push((place, wanted, has_preferred));
    }
    let fits = |row: &Operator| {
        demands.iter().all(|&(place, wanted, has_preferred)| {
            let slot = [row.left, row.right][place];
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

    fn of(scalar: Scalar) -> Type {
        Type::Scalar(scalar)
    }

    #[track_caller]
    fn check(name: &str, left: Type, right: Type, expected: (Scalar, Scalar, Scalar)) {
        let (left_taken, right_taken, result) = expected;
        let expected = Choice::Found { left: of(left_taken), right: of(right_taken), result };
        assert_eq!(binary(name, left, right), expected);
    }

    #[test]
    fn operators_are_those_that_postgres_takes() {
        check("=", of(Int4), of(Int8), (Int4, Int8, Bool));
        check("=", of(Int4), Type::Unknown, (Int4, Int4, Bool));
        check("=", of(Int4), of(Numeric), (Numeric, Numeric, Bool));
        check("+", of(Int8), of(Float4), (Float8, Float4, Float8));
        check("^", of(Int4), of(Int4), (Float8, Float8, Float8));
        check("^", Type::Unknown, Type::Unknown, (Float8, Float8, Float8));
        check("=", of(Varchar), of(Bpchar), (Bpchar, Bpchar, Bool));
        check("=", of(Text), of(Bpchar), (Text, Text, Bool));
        check("=", Type::Unknown, Type::Unknown, (Text, Text, Bool));
        check("+", of(Timestamp), Type::Unknown, (Timestamp, Interval, Timestamp));
        check("||", Type::Unknown, of(Int4), (Text, Int4, Text));
        assert_eq!(binary("+", of(Date), Type::Unknown), Choice::Ambiguous);
        assert_eq!(binary("+", Type::Unknown, Type::Unknown), Choice::Ambiguous);
        assert_eq!(binary("=", of(Int4), of(Text)), Choice::None);
        assert_eq!(prefix("-", Type::Unknown), Choice::Ambiguous);
        assert_eq!(
            prefix("|/", of(Int4)),
            Choice::Found { left: of(Float8), right: of(Float8), result: Float8 }
        );
    }
}
