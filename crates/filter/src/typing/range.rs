//! Typing of operators and functions on ranges (anyrange, anyelement) and on network addresses.

use forebay_values::{InetOperator, RangeArithmetic, RangeFunction, RangeOperator, Scalar};

use super::expr::{Binary, Expr, MultirangeOperator, Unary};
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;

fn range_element(kind: SqlType) -> Option<Scalar> {
    match kind {
        SqlType::Scalar(scalar) => scalar.range_element(),
        _ => None,
    }
}

fn multirange_range(kind: SqlType) -> Option<Scalar> {
    match kind {
        SqlType::Scalar(scalar) => scalar.multirange_range(),
        _ => None,
    }
}

fn is_network(kind: SqlType) -> bool {
    matches!(kind, SqlType::Scalar(Scalar::Inet | Scalar::Cidr))
}

/// Returns whether the operator on these operands is one of ranges or of network addresses. An
/// untyped constant is one if the other operand is.
pub(super) fn is_special(name: &str, left: SqlType, right: SqlType) -> bool {
    let is_range = |kind| range_element(kind).is_some() || multirange_range(kind).is_some();
    let is_of_ranges = RangeOperator::of(name).is_some() || RangeArithmetic::of(name).is_some();
    (is_of_ranges && (is_range(left) || is_range(right)))
        || (InetOperator::of(name).is_some() && (is_network(left) || is_network(right)))
}

impl Typer<'_> {
    /// Types an operator for which [`is_special`] holds.
    pub(super) fn special_operator(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let (left_kind, right_kind) = (left.kind, right.kind);
        let is_multirange = multirange_range(left_kind).or(multirange_range(right_kind)).is_some();
        if is_multirange && !matches!(name, "@>" | "<@" | "&&") {
            return Err(self.unsupported(at, format!("the operator {name} of multiranges is")));
        }
        let (binary, kinds, result) = match self.special_row(name, left_kind, right_kind) {
            Some(row) => row,
            None => {
                let shown = format!("{} {name} {}", self.shown(left_kind), self.shown(right_kind));
                return Err(self.no_operator("does not exist", &shown, at));
            }
        };
        let operands = [self.coerce(left, kinds[0], at)?.expr, self.coerce(right, kinds[1], at)?.expr];
        Ok(TypedExpr::new(Expr::Binary(binary, Box::new(operands)), result))
    }

    /// Returns the operator, its operand types and its result. An untyped constant has the other
    /// operand's type.
    fn special_row(
        &self,
        name: &str,
        left: SqlType,
        right: SqlType,
    ) -> Option<(Binary, [SqlType; 2], SqlType)> {
        const BOOL: SqlType = SqlType::BOOL;
        const INET: SqlType = SqlType::Scalar(Scalar::Inet);
        if is_network(left) || is_network(right) {
            let fits = |kind| is_network(kind) || kind == SqlType::Unknown;
            let operator = InetOperator::of(name).filter(|_| fits(left) && fits(right))?;
            return Some((Binary::Inet(operator), [INET, INET], BOOL));
        }
        if multirange_range(left).is_some() || multirange_range(right).is_some() {
            return multirange_row(name, left, right).map(|(binary, kinds)| (binary, kinds, BOOL));
        }
        if let Some(arithmetic) = RangeArithmetic::of(name) {
            let range = if left == SqlType::Unknown { right } else { left };
            let fits = left == right || left == SqlType::Unknown || right == SqlType::Unknown;
            let element = range_element(range).filter(|_| fits)?;
            return Some((Binary::RangeArithmetic(arithmetic, element), [range, range], range));
        }
        let operator = RangeOperator::of(name)?;
        let simplifies = self.schema.server_version >= 17;
        let element_of = |range, value| range_element(range).is_some_and(|of| value == SqlType::Scalar(of));
        Some(match (left, right) {
            (SqlType::Unknown, range) | (range, SqlType::Unknown) => {
                (Binary::Range(operator), [range, range], BOOL)
            }
            _ if left == right => (Binary::Range(operator), [left, left], BOOL),
            _ if operator == RangeOperator::Contains && element_of(left, right) => {
                (Binary::RangeHas { swapped: false, simplifies }, [left, right], BOOL)
            }
            _ if operator == RangeOperator::ContainedBy && element_of(right, left) => {
                (Binary::RangeHas { swapped: true, simplifies }, [left, right], BOOL)
            }
            _ => return None,
        })
    }

    /// Types a function of ranges. `None`: it is another call.
    pub(super) fn range_call(
        &self,
        name: &str,
        arguments: &[TypedExpr],
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        if let ("range_merge", [left, right]) = (name, arguments)
            && let Some(element) = range_element(left.kind)
            && left.kind == right.kind
        {
            let merge = Binary::RangeArithmetic(RangeArithmetic::Merge, element);
            let operands = Box::new([left.expr.clone(), right.expr.clone()]);
            return Ok(Some(TypedExpr::new(Expr::Binary(merge, operands), left.kind)));
        }
        let Some(function) = RangeFunction::of(name) else { return Ok(None) };
        if let [argument] = arguments
            && multirange_range(argument.kind).is_some()
        {
            return Err(self.unsupported(at, format!("{name} of a multirange is")));
        }
        let is_bound = matches!(function, RangeFunction::Bound { .. });
        let kinds: Vec<_> = arguments.iter().map(|argument| argument.kind).collect();
        let (argument, element) = match (arguments, &kinds[..]) {
            ([argument], [kind]) if range_element(*kind).is_some() => (argument, range_element(*kind)),
            _ if is_bound => return Ok(None),
            (_, [SqlType::Unknown]) => {
                return Err(self.unsupported(at, format!("{name} of a constant without a type is")));
            }
            _ => {
                let kinds: Vec<_> = kinds.into_iter().map(|kind| self.shown(kind)).collect();
                let message = format!("function {name}({}) does not exist", kinds.join(", "));
                return Err(self.invalid(at, "42883", message));
            }
        };
        let result = element.filter(|_| is_bound).unwrap_or(Scalar::Bool);
        let expr = Expr::unary(Unary::Range(function), argument.expr.clone());
        Ok(Some(TypedExpr::new(expr, SqlType::Scalar(result))))
    }
}

/// Returns the operator on a multirange and another operand, and the types of both. An untyped
/// constant has the type of the multirange.
fn multirange_row(name: &str, left: SqlType, right: SqlType) -> Option<(Binary, [SqlType; 2])> {
    let operator = match name {
        "@>" => MultirangeOperator::Contains,
        "<@" => MultirangeOperator::ContainedBy,
        "&&" => MultirangeOperator::Overlaps,
        _ => return None,
    };
    let kinds = match (left, right) {
        (SqlType::Unknown, kind) | (kind, SqlType::Unknown) => [kind, kind],
        kinds => [kinds.0, kinds.1],
    };
    let fits = |ranges: SqlType, other: SqlType, takes_element: bool| {
        multirange_range(ranges).is_some_and(|range| {
            let element = range.range_element().filter(|_| takes_element).map(SqlType::Scalar);
            other == ranges || other == SqlType::Scalar(range) || Some(other) == element
        })
    };
    let is_known = fits(kinds[0], kinds[1], operator == MultirangeOperator::Contains)
        || fits(kinds[1], kinds[0], operator == MultirangeOperator::ContainedBy);
    is_known.then_some((Binary::Multirange(operator), kinds))
}
