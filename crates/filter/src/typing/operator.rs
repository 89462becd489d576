//! Typing of operators (make_op, make_scalar_array_op).

use forebay_values::{Arithmetic, Casing, Collation, Scalar, SqlValue};

use super::collate::CollationSource;
use super::expr::{Binary, Comparison, Expr, Unary};
use super::json::is_of_jsonb;
use super::nearest;
use super::range;
use super::resolve::{self, OperatorResolution};
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::eval::function::Function;
use crate::eval::number::NumberFunction;

/// Supported operators. Others are refused by name, for operands of any type.
pub(crate) const OPERATORS: &[&str] = &[
    "=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "^", "|/", "@", "&", "|", "#", "~", "||", "~~",
    "!~~", "~~*", "!~~*", "^@", "@>", "<@", "&&", "->", "->>", "#>", "#>>", "?", "?|", "?&", "<<", ">>",
    "<<=", ">>=", "&<", "&>", "-|-",
];

/// Maximum number of constant patterns of `LIKE ANY` and `LIKE ALL`. Each is matched with each row.
const MAX_PATTERNS: usize = 10_000;

/// Operators of integers, ranges or network addresses, of which the latter two are supported.
const SPECIAL: &[&str] = &["<<", ">>", "<<=", ">>=", "&<", "&>", "-|-"];

impl Typer<'_> {
    pub(super) fn prefix(&self, name: &str, operand: TypedExpr, at: usize) -> Result<TypedExpr, FilterError> {
        self.refuse_unknown_operator(name, at)?;
        self.refuse_opaque(operand.kind, at)?;
        let scalar = match resolve::prefix(name, operand.kind) {
            OperatorResolution::Found { result, .. } => result,
            OperatorResolution::None => {
                self.refuse_other_arithmetic(name, operand.kind, at)?;
                let shown = format!("{name} {}", self.shown(operand.kind));
                return Err(self.no_operator("does not exist", &shown, at));
            }
            OperatorResolution::Ambiguous => {
                return Err(self.no_operator("is not unique", &format!("{name} {}", operand.kind), at));
            }
        };
        let operand = self.coerce(operand, SqlType::Scalar(scalar), at)?.expr;
        let expr = match name {
            "-" => Expr::unary(Unary::Negate(scalar), operand),
            "@" => Expr::unary(Unary::Abs(scalar), operand),
            "~" => Expr::unary(Unary::BitNot, operand),
            "|/" => Expr::unary(Unary::SquareRoot, operand),
            _ => operand,
        };
        Ok(TypedExpr::new(expr, SqlType::Scalar(scalar)))
    }

    pub(super) fn binary(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        self.refuse_unknown_operator(name, at)?;
        if matches!(name, "~" | "@" | "|/") {
            let error = self.unsupported(at, format!("the operator {name} is"));
            return Err(error.or_nearest(nearest::operator(name)));
        }
        self.refuse_opaque(left.kind, at)?;
        self.refuse_opaque(right.kind, at)?;
        if let Some(typed) = self.json_operator(name, &left, &right, at)? {
            return Ok(typed);
        }
        if range::is_special(name, left.kind, right.kind) {
            return self.special_operator(name, left, right, at);
        }
        if SPECIAL.contains(&name) {
            let what = format!("the operator {name} (but of ranges and network addresses) is");
            return Err(self.unsupported(at, what));
        }
        self.refuse_other_arithmetic(name, left.kind, at)?;
        self.refuse_other_arithmetic(name, right.kind, at)?;
        let arrays = matches!(left.kind, SqlType::Array(_)) || matches!(right.kind, SqlType::Array(_));
        if arrays || matches!(name, "@>" | "<@" | "&&") {
            return self.array_operator(name, left, right, at);
        }
        let shown = format!("{} {name} {}", self.shown(left.kind), self.shown(right.kind));
        match resolve::binary(name, left.kind, right.kind) {
            OperatorResolution::Found { left: left_kind, right: right_kind, result } => {
                let left = self.coerce(left, left_kind, at)?;
                let right = self.coerce(right, right_kind, at)?;
                self.apply(name, left, right, result, at)
            }
            OperatorResolution::None => Err(self.no_operator("does not exist", &shown, at)),
            OperatorResolution::Ambiguous => Err(self.no_operator("is not unique", &shown, at)),
        }
    }

    /// Builds the operator on operands that have its types.
    fn apply(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        result: Scalar,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let collation = self.merge([&left, &right], at)?;
        let result_kind = SqlType::Scalar(result);
        if let Some(comparison) = Comparison::of(name) {
            self.check_operands(left.kind, collation, comparison, at)?;
            let ignore_blanks = left.kind == SqlType::Scalar(Scalar::Bpchar);
            let (left, right) = self.in_order(comparison, left, right, at)?;
            return Ok(self.join(Binary::Compare { comparison, ignore_blanks }, left, right, result_kind));
        }
        if matches!(left.kind, SqlType::Scalar(Scalar::Json | Scalar::Jsonb)) && result != Scalar::Text
            || matches!(name, "->" | "->>")
        {
            return self.json_apply(name, left, right, result, at);
        }
        let arithmetic = match name {
            "+" => Arithmetic::Add,
            "-" => Arithmetic::Subtract,
            "*" => Arithmetic::Multiply,
            "/" => Arithmetic::Divide,
            "%" => Arithmetic::Remainder,
            "^" => Arithmetic::Power,
            "&" => Arithmetic::And,
            "|" => Arithmetic::Or,
            "#" => Arithmetic::Xor,
            "||" if result == Scalar::Bytea => {
                return Ok(self.join(Binary::ConcatBytes, left, right, result_kind));
            }
            "||" => {
                let (left, right) = (self.as_text(left, at)?, self.as_text(right, at)?);
                return Ok(TypedExpr { collation, ..self.join(Binary::Concat, left, right, result_kind) });
            }
            "^@" => {
                self.check_equality(collation, at)?;
                return Ok(self.join(Binary::StartsWith, left, right, result_kind));
            }
            _ => return self.like(name, left, right, at),
        };
        if arithmetic == Arithmetic::Power && result == Scalar::Numeric {
            let function = Function::Number(NumberFunction::PowerOfNumeric { modern: self.modern() });
            let arguments = vec![left.expr, right.expr];
            let call = Expr::Call { function, is_strict: true, is_stable: false, arguments };
            return Ok(TypedExpr::new(call, result_kind));
        }
        Ok(self.join(Binary::Arithmetic(arithmetic, result), left, right, result_kind))
    }

    fn join(&self, binary: Binary, left: TypedExpr, right: TypedExpr, kind: SqlType) -> TypedExpr {
        TypedExpr::new(Expr::Binary(binary, Box::new([left.expr, right.expr])), kind)
    }

    /// Types LIKE and ILIKE: `~~`, `!~~`, `~~*`, `!~~*`.
    pub(super) fn like(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let collation = self.merge([&left, &right], at)?;
        self.check_equality(collation, at)?;
        let casing = if name.ends_with('*') {
            Some(self.casing(self.collation(collation), "ILIKE", at)?)
        } else {
            None
        };
        let negated = name.starts_with('!');
        Ok(self.join(Binary::Like { negated, casing }, left, right, SqlType::BOOL))
    }

    pub(super) fn casing(&self, collation: &Collation, what: &str, at: usize) -> Result<Casing, FilterError> {
        Casing::of(collation).ok_or_else(|| {
            self.unsupported(at, format!("{what} under the collation \"{}\" is", collation.name()))
        })
    }

    /// Refuses operators that Postgres has for these types and filters don't: arithmetic on network
    /// addresses, and patterns on bytea.
    fn refuse_other_arithmetic(&self, name: &str, kind: SqlType, at: usize) -> Result<(), FilterError> {
        use Scalar::*;
        let SqlType::Scalar(scalar) = kind else { return Ok(()) };
        let exists = match scalar {
            Inet | Cidr | Macaddr => matches!(name, "+" | "-" | "~" | "&" | "|"),
            Bytea => matches!(name, "~~" | "!~~"),
            _ => false,
        };
        match exists {
            true => Err(self.unsupported(at, format!("the operator {name} of {} is", scalar.name()))),
            false => Ok(()),
        }
    }

    /// Returns operands whose values compare as the comparison demands.
    pub(super) fn in_order(
        &self,
        comparison: Comparison,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<(TypedExpr, TypedExpr), FilterError> {
        if comparison.is_equality() {
            return Ok((left, right));
        }
        let ordered =
            |typed: TypedExpr| Ok(TypedExpr { expr: self.ordered(typed.expr, typed.kind, at)?, ..typed });
        Ok((ordered(left)?, ordered(right)?))
    }

    pub(super) fn quantified(
        &self,
        name: &str,
        all: bool,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        self.refuse_unknown_operator(name, at)?;
        self.refuse_opaque(left.kind, at)?;
        self.refuse_opaque(right.kind, at)?;
        // The operator is resolved for the left operand and the array's element
        // (make_scalar_array_op).
        let element = match right.kind {
            SqlType::Unknown => SqlType::Unknown,
            SqlType::Array(element) => SqlType::Scalar(element),
            _ => {
                let message = "op ANY/ALL (array) requires array on right side";
                return Err(self.invalid(at, "42809", message.to_owned()));
            }
        };
        if matches!(left.kind, SqlType::Array(_)) || Comparison::of(name).is_none() && !name.contains("~~") {
            return Err(self.unsupported(at, format!("{} {name} ANY/ALL is", self.shown(left.kind))));
        }
        let shown = format!("{} {name} {}", self.shown(left.kind), self.shown(element));
        let (left_kind, right_kind) = match resolve::binary(name, left.kind, element) {
            OperatorResolution::Found { left, right: SqlType::Scalar(right), .. } => {
                (left, SqlType::Array(right))
            }
            OperatorResolution::Found { .. } | OperatorResolution::None => {
                return Err(self.no_operator("does not exist", &shown, at));
            }
            OperatorResolution::Ambiguous => return Err(self.no_operator("is not unique", &shown, at)),
        };
        let left = self.coerce(left, left_kind, at)?;
        let right = self.coerce(right, right_kind, at)?;
        let collation = self.merge([&left, &right], at)?;
        let (left, right) = match Comparison::of(name) {
            Some(comparison) => self.in_order(comparison, left, right, at)?,
            None => (left, right),
        };
        let operator = match Comparison::of(name) {
            Some(comparison) => {
                self.check_operands(left.kind, collation, comparison, at)?;
                Binary::Compare { comparison, ignore_blanks: left.kind == SqlType::Scalar(Scalar::Bpchar) }
            }
            None if patterns(&right.expr) > MAX_PATTERNS => {
                let what = format!("LIKE ANY/ALL of more than {MAX_PATTERNS} patterns is");
                return Err(self.unsupported(at, what));
            }
            None => match self.like(name, left.clone(), right.clone(), at)?.expr {
                Expr::Binary(binary, _) => binary,
                other => unreachable!("LIKE is an operator: {other:?}"),
            },
        };
        let operands = Box::new([left.expr, right.expr]);
        Ok(TypedExpr::boolean(Expr::Quantified { operator, all, operands }))
    }

    /// Refuses a comparison of values of a type whose collation doesn't allow it.
    pub(super) fn check_operands(
        &self,
        kind: SqlType,
        collation: CollationSource,
        comparison: Comparison,
        at: usize,
    ) -> Result<(), FilterError> {
        match kind {
            _ if kind.is_collatable() => self.check_comparison(collation, comparison, at),
            _ if is_of_jsonb(kind) && !comparison.is_equality() => self.check_json_ordering(at),
            _ => Ok(()),
        }
    }

    fn refuse_unknown_operator(&self, name: &str, at: usize) -> Result<(), FilterError> {
        if OPERATORS.contains(&name) {
            return Ok(());
        }
        let error = self.unsupported(at, format!("the operator {name} is"));
        Err(error.or_nearest(nearest::operator(name)))
    }

    pub(super) fn no_operator(&self, why: &str, shown: &str, at: usize) -> FilterError {
        let sqlstate = if why.contains("unique") { "42725" } else { "42883" };
        self.invalid(at, sqlstate, format!("operator {why}: {shown}"))
    }
}

/// Returns the number of elements of an array that the clause has; 0 for other expressions.
fn patterns(array: &Expr) -> usize {
    match array {
        Expr::Const(Some(SqlValue::Array(array))) => array.items().len(),
        Expr::Array { items, .. } => items.len(),
        _ => 0,
    }
}
