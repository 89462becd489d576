//! Constant folding: constant parts are evaluated once, as by Postgres' planner
//! (eval_const_expressions).
//!
//! The order is that of Postgres: operands of AND after a FALSE are not evaluated, operands before
//! it are. A constant part that fails makes the whole clause fail, as it would make every query
//! fail.
//! Exception: Postgres does not fold parts that depend on the session's settings ("stable"), nor
//! comparisons of rows.

use forebay_values::{EvalError, Scalar, SqlValue};

use super::expr::{Binary, Comparison, Expr, Unary};
use super::sql_type::SqlType;
use crate::eval;
use crate::eval::json::JsonOperator;

/// Least number of elements for which a search is faster than comparing all of them.
const LEAST_SORTED: usize = 8;

pub(super) fn fold(expr: Expr) -> Result<Expr, EvalError> {
    // Long chains of operators recurse deeply. So their frames are small: other expressions have a
    // function of their own.
    match expr {
        Expr::Const(_) | Expr::Column { .. } | Expr::CaseOperand => Ok(expr),
        Expr::Binary(binary, operands) => fold_binary(binary, *operands),
        expr => fold_uncommon(expr),
    }
}

#[inline(never)]
fn fold_binary(binary: Binary, operands: [Expr; 2]) -> Result<Expr, EvalError> {
    let are_stable = [has_stable_part(&operands[0]), has_stable_part(&operands[1])];
    let mut operands = pair(operands)?;
    make_sets(binary, &mut operands);
    if operands.contains(&Expr::NULL) {
        return Ok(Expr::NULL);
    }
    match element_of_all_or_none(binary, &operands, are_stable) {
        Some(truth) => Ok(Expr::truth(truth)),
        None => {
            let expr = Expr::Binary(binary, operands);
            let stable = are_stable.contains(&true) || is_stable(&expr);
            fold_constant(expr, stable)
        }
    }
}

#[inline(never)]
fn fold_uncommon(expr: Expr) -> Result<Expr, EvalError> {
    let stable = has_stable_part(&expr);
    let fold_constant = |expr: Expr| fold_constant(expr, stable);
    Ok(match expr {
        Expr::Const(_)
        | Expr::Column { .. }
        | Expr::CaseOperand
        | Expr::Postgres { .. }
        | Expr::InSet { .. } => expr,
        Expr::Binary(binary, operands) => fold_binary(binary, *operands)?,
        Expr::And(operands) => chain(operands, false)?,
        Expr::Or(operands) => chain(operands, true)?,
        Expr::Not(operand) => match fold(*operand)? {
            Expr::Const(value) => fold_constant(Expr::Not(Box::new(Expr::Const(value))))?,
            // NOT (NOT x) is x.
            Expr::Not(inner) => *inner,
            operand => Expr::Not(Box::new(operand)),
        },
        Expr::Is { negated, test, operand } => {
            fold_constant(Expr::Is { negated, test, operand: Box::new(fold(*operand)?) })?
        }
        Expr::Distinct { negated, ignore_blanks, operands } => {
            fold_constant(Expr::Distinct { negated, ignore_blanks, operands: pair(*operands)? })?
        }
        Expr::Unary(unary, operand) => match fold(*operand)? {
            Expr::Const(None) => Expr::NULL,
            operand => fold_constant(Expr::unary(unary, operand))?,
        },
        Expr::Call { function, is_strict, is_stable, arguments } => {
            let arguments = list(arguments)?;
            if is_strict && arguments.contains(&Expr::NULL) {
                return Ok(Expr::NULL);
            }
            fold_constant(Expr::Call { function, is_strict, is_stable, arguments })?
        }
        Expr::Quantified { operator, all, operands } => {
            // Postgres does not fold it for a NULL array alone: the left operand may still fail.
            let mut operands = pair(*operands)?;
            // `= ANY` and `<> ALL` search for the left operand.
            let wanted = if all { Comparison::NotEqual } else { Comparison::Equal };
            if let Binary::Compare { comparison, ignore_blanks } = operator
                && comparison == wanted
            {
                make_set(&mut operands[1], ignore_blanks);
            }
            fold_constant(Expr::Quantified { operator, all, operands })?
        }
        Expr::Position { labels, operand } => match fold(*operand)? {
            Expr::Const(None) => Expr::NULL,
            operand => fold_constant(Expr::Position { labels, operand: Box::new(operand) })?,
        },
        Expr::Label { labels, operand } => match fold(*operand)? {
            Expr::Const(None) => Expr::NULL,
            operand => fold_constant(Expr::Label { labels, operand: Box::new(operand) })?,
        },
        Expr::ArrayCall { function, ignore_blanks, items } => {
            fold_constant(Expr::ArrayCall { function, ignore_blanks, items: list(items)? })?
        }
        Expr::Array { nested, items } => fold_constant(Expr::Array { nested, items: list(items)? })?,
        Expr::Index(base, indexes) => fold_constant(Expr::Index(Box::new(fold(*base)?), list(indexes)?))?,
        Expr::Slice(base, ranges) => {
            let bound = |bound: Option<Expr>| bound.map(fold).transpose();
            let range = |(from, to)| Ok((bound(from)?, bound(to)?));
            let ranges = ranges.into_iter().map(range).collect::<Result<_, EvalError>>()?;
            fold_constant(Expr::Slice(Box::new(fold(*base)?), ranges))?
        }
        Expr::Coalesce(items) => coalesce(items)?,
        Expr::Extreme { greatest, ignore_blanks, items } => {
            fold_constant(Expr::Extreme { greatest, ignore_blanks, items: list(items)? })?
        }
        Expr::Concat { separator, items } => {
            let separator = separator.map(|separator| fold(*separator).map(Box::new)).transpose()?;
            let items = items.into_iter().map(|(item, kind)| Ok((fold(item)?, kind)));
            fold_constant(Expr::Concat { separator, items: items.collect::<Result<_, EvalError>>()? })?
        }
        Expr::NullIf { ignore_blanks, operands } => {
            fold_constant(Expr::NullIf { ignore_blanks, operands: pair(*operands)? })?
        }
        Expr::RowComparison { comparison, pairs } => {
            let pairs =
                pairs.into_iter().map(|(operands, ignore_blanks)| Ok((pair(*operands)?, ignore_blanks)));
            fold_constant(Expr::RowComparison {
                comparison,
                pairs: pairs.collect::<Result<_, EvalError>>()?,
            })?
        }
        Expr::Case { operand, arms, otherwise } => case(operand, arms, *otherwise)?,
        Expr::ArrayCat(operands) => fold_constant(Expr::ArrayCat(pair(*operands)?))?,
        Expr::ArrayPush { end, operands } => {
            fold_constant(Expr::ArrayPush { end, operands: pair(*operands)? })?
        }
    })
}

/// Returns the value of `range @> element` for an empty or unbounded constant range
/// (find_simplified_clause). Postgres doesn't know the value of a range with stable parts.
fn element_of_all_or_none(binary: Binary, operands: &[Expr; 2], are_stable: [bool; 2]) -> Option<bool> {
    let Binary::RangeHas { swapped, simplifies: true } = binary else { return None };
    let range = usize::from(swapped);
    match &operands[range] {
        Expr::Const(Some(SqlValue::Range(range_value))) if !are_stable[range] => {
            range_value.has_all_or_none()
        }
        _ => None,
    }
}

/// Makes sets of constant arrays in which rows look up elements.
fn make_sets(binary: Binary, operands: &mut [Expr; 2]) {
    match binary {
        Binary::Contains { ignore_blanks, .. } | Binary::Overlaps { ignore_blanks } => {
            operands.iter_mut().for_each(|operand| make_set(operand, ignore_blanks));
        }
        Binary::Json(JsonOperator::ExistsAny | JsonOperator::ExistsAll) => make_set(&mut operands[1], false),
        _ => {}
    }
}

/// Makes a set of a constant array, if a search is faster than comparing all elements.
fn make_set(operand: &mut Expr, ignore_blanks: bool) {
    if let Expr::Const(Some(SqlValue::Array(array))) = operand
        && array.items().len() >= LEAST_SORTED
    {
        *operand = Expr::Const(Some(SqlValue::array(array.clone().into_owned().into_set(ignore_blanks))));
    }
}

/// Visits every part of the expression, itself included.
pub(crate) fn each(expr: &Expr, visit: &mut impl FnMut(&Expr)) {
    visit(expr);
    children(expr, &mut |child| each(child, visit));
}

pub(super) fn children(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
    match expr {
        Expr::Const(_) | Expr::Column { .. } | Expr::CaseOperand | Expr::Postgres { .. } => {}
        Expr::And(items) | Expr::Or(items) | Expr::Coalesce(items) => items.iter().for_each(visit),
        Expr::Array { items, .. }
        | Expr::InSet { operands: items, .. }
        | Expr::Extreme { items, .. }
        | Expr::ArrayCall { items, .. }
        | Expr::Call { arguments: items, .. } => items.iter().for_each(visit),
        Expr::Not(operand)
        | Expr::Is { operand, .. }
        | Expr::Unary(_, operand)
        | Expr::Position { operand, .. }
        | Expr::Label { operand, .. } => visit(operand),
        Expr::Distinct { operands, .. }
        | Expr::Binary(_, operands)
        | Expr::Quantified { operands, .. }
        | Expr::ArrayCat(operands)
        | Expr::NullIf { operands, .. }
        | Expr::ArrayPush { operands, .. } => operands.iter().for_each(visit),
        Expr::Index(base, indexes) => {
            visit(base);
            indexes.iter().for_each(visit);
        }
        Expr::Slice(base, ranges) => {
            visit(base);
            ranges.iter().flat_map(|(from, to)| from.iter().chain(to)).for_each(visit);
        }
        Expr::Concat { separator, items } => {
            separator.iter().for_each(|separator| visit(separator));
            items.iter().for_each(|(item, _)| visit(item));
        }
        Expr::RowComparison { pairs, .. } => {
            pairs.iter().flat_map(|(operands, _)| operands.iter()).for_each(visit);
        }
        Expr::Case { operand, arms, otherwise } => {
            operand.iter().for_each(|operand| visit(operand));
            for (when, then) in arms {
                visit(when);
                visit(then);
            }
            visit(otherwise);
        }
    }
}

fn list(items: Vec<Expr>) -> Result<Vec<Expr>, EvalError> {
    items.into_iter().map(fold).collect()
}

fn pair(operands: [Expr; 2]) -> Result<Box<[Expr; 2]>, EvalError> {
    let [left, right] = operands;
    Ok(Box::new([fold(left)?, fold(right)?]))
}

/// Returns whether any part of the expression is stable.
fn has_stable_part(expr: &Expr) -> bool {
    let mut stable = false;
    each(expr, &mut |part| stable |= is_stable(part));
    stable
}

/// Returns whether the planner leaves the part to the executor: it depends on the session's
/// settings, or it compares rows.
fn is_stable(expr: &Expr) -> bool {
    use Scalar::*;
    match expr {
        // The planner leaves comparisons of rows to the executor, even those of constants.
        Expr::Concat { .. } | Expr::RowComparison { .. } => true,
        Expr::Call { is_stable, .. } => *is_stable,
        // The zone of a timetz replaces that of the session.
        Expr::Binary(Binary::Arithmetic(_, result), operands) => {
            *result == Timestamptz && !operands.iter().any(is_timetz)
        }
        Expr::Unary(Unary::Cast { from, to, .. }, _) => match (from, to) {
            (SqlType::Scalar(from), SqlType::Scalar(to))
                if [from, to].iter().any(|scalar| scalar.is_enum() || is_of_ranges(**scalar)) =>
            {
                true
            }
            (SqlType::Scalar(from), SqlType::Scalar(to)) if to.is_text() => {
                matches!(from, Date | Timestamp | Timestamptz | Interval)
            }
            (SqlType::Scalar(from), SqlType::Scalar(to)) => {
                let reads_clock_text =
                    from.is_text() && matches!(to, Date | Time | Timetz | Timestamp | Timestamptz | Interval);
                reads_clock_text
                    || *from == Timestamptz
                    || *to == Timestamptz
                    || (*from == Time && *to == Timetz)
            }
            _ => true,
        },
        _ => false,
    }
}

fn is_timetz(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Const(Some(SqlValue::Timetz(_))) | Expr::Column { kind: SqlType::Scalar(Scalar::Timetz), .. }
    )
}

fn is_of_ranges(scalar: Scalar) -> bool {
    scalar.range_element().is_some() || scalar.multirange_range().is_some()
}

/// Replaces the expression by its value if all of its parts are constants.
fn fold_constant(expr: Expr, stable: bool) -> Result<Expr, EvalError> {
    let mut constant = true;
    children(&expr, &mut |child| constant &= child.is_const());
    if !constant {
        return Ok(expr);
    }
    let value = match eval::constant(&expr) {
        Ok(value) => value.map(SqlValue::into_owned),
        Err(_) if stable => return Ok(expr),
        Err(error) => return Err(error),
    };
    Ok(Expr::Const(value))
}

/// Folds AND (`ends` is false) or OR (`ends` is true).
fn chain(operands: Vec<Expr>, ends: bool) -> Result<Expr, EvalError> {
    let (mut kept, mut operands) = (Vec::new(), operands.into_iter());
    while let Some(operand) = operands.next() {
        let stable = has_stable_part(&operand);
        match fold(operand)? {
            // Postgres evaluates it for each row, after the operands before it, which may fail.
            // Before that, it evaluates the constant parts of the operands after it.
            Expr::Const(Some(SqlValue::Bool(value))) if value == ends && stable => {
                for later in operands.by_ref() {
                    let stable = has_stable_part(&later);
                    if fold(later)? == Expr::truth(ends) && !stable {
                        return Ok(Expr::truth(ends));
                    }
                }
                kept.push(Expr::truth(ends));
            }
            Expr::Const(Some(SqlValue::Bool(value))) if value == ends => return Ok(Expr::truth(ends)),
            Expr::Const(Some(_)) => {}
            Expr::And(inner) if !ends => kept.extend(inner),
            Expr::Or(inner) if ends => kept.extend(inner),
            Expr::Const(None) if kept.contains(&Expr::NULL) => {}
            operand => kept.push(operand),
        }
    }
    Ok(match kept.len() {
        0 => Expr::truth(!ends),
        1 => kept.swap_remove(0),
        _ if ends => Expr::Or(kept),
        _ => Expr::And(kept),
    })
}

fn coalesce(items: Vec<Expr>) -> Result<Expr, EvalError> {
    let mut kept = Vec::new();
    for item in items {
        match fold(item)? {
            Expr::Const(None) => {}
            constant @ Expr::Const(_) => {
                kept.push(constant);
                break;
            }
            item => kept.push(item),
        }
    }
    Ok(match kept.len() {
        0 => Expr::NULL,
        1 => kept.swap_remove(0),
        _ => Expr::Coalesce(kept),
    })
}

fn case(operand: Option<Box<Expr>>, arms: Vec<(Expr, Expr)>, otherwise: Expr) -> Result<Expr, EvalError> {
    let operand = operand.map(|operand| fold(*operand)).transpose()?;
    let mut kept = Vec::new();
    for (when, then) in arms {
        let when = match &operand {
            Some(constant @ Expr::Const(_)) => fold(with_operand(when, constant))?,
            _ => fold(when)?,
        };
        match when {
            Expr::Const(Some(SqlValue::Bool(true))) => {
                let then = fold(then)?;
                return Ok(match kept.is_empty() {
                    true => then,
                    false => {
                        Expr::Case { operand: operand.map(Box::new), arms: kept, otherwise: Box::new(then) }
                    }
                });
            }
            Expr::Const(_) => {}
            when => kept.push((when, fold(then)?)),
        }
    }
    let otherwise = fold(otherwise)?;
    Ok(match kept.is_empty() {
        true => otherwise,
        false => Expr::Case { operand: operand.map(Box::new), arms: kept, otherwise: Box::new(otherwise) },
    })
}

/// Replaces the operand in a comparison of a CASE by its value. Only casts can be between the
/// two.
fn with_operand(expr: Expr, value: &Expr) -> Expr {
    match expr {
        Expr::CaseOperand => value.clone(),
        Expr::Unary(unary, operand) => Expr::unary(unary, with_operand(*operand, value)),
        Expr::Binary(binary, operands) => {
            let [left, right] = *operands;
            Expr::Binary(binary, Box::new([with_operand(left, value), right]))
        }
        other => other,
    }
}
