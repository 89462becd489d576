//! Typing of operators (make_op, make_scalar_array_op).

use super::collate::CollationSource;
use super::expr::{Arithmetic, Binary, Comparison, Expr, Unary};
use super::json::is_of_jsonb;
use super::nearest;
use super::resolve::{self, OperatorResolution};
use super::sql_type::{Scalar, SqlType};
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::schema::Collation;
use crate::value::letter_case::Casing;

/// Supported operators. Others are refused by name, for operands of any type.
pub(crate) const OPERATORS: &[&str] = &[
    "=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "^", "|/", "@", "&", "|", "#", "~", "||", "~~",
    "!~~", "~~*", "!~~*", "^@", "@>", "<@", "&&", "->", "->>", "#>", "#>>", "?", "?|", "?&",
];

impl Typer<'_> {
    pub(super) fn prefix(&self, name: &str, operand: TypedExpr, at: usize) -> Result<TypedExpr, FilterError> {
        self.refuse_unknown_operator(name, at)?;
        self.refuse_opaque(operand.kind, at)?;
        let scalar = match resolve::prefix(name, operand.kind) {
            OperatorResolution::Found { result, .. } => result,
            OperatorResolution::None => {
                return Err(self.no_operator("does not exist", &format!("{name} {}", operand.kind), at));
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
        if let Some(typed) = self.enum_equality(name, &left, &right, at)? {
            return Ok(typed);
        }
        self.refuse_opaque(left.kind, at)?;
        self.refuse_opaque(right.kind, at)?;
        if let Some(typed) = self.json_operator(name, &left, &right, at)? {
            return Ok(typed);
        }
        let arrays = matches!(left.kind, SqlType::Array(_)) || matches!(right.kind, SqlType::Array(_));
        if arrays || matches!(name, "@>" | "<@" | "&&") {
            return self.array_operator(name, left, right, at);
        }
        let shown = format!("{} {name} {}", left.kind, right.kind);
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
            return Err(
                self.unsupported(at, "the operator ^ on numeric (but on double precision) is".to_owned())
            );
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

    /// Types `=` and `<>` on an enum as comparisons of labels. The schema has no order of
    /// labels. Postgres refuses a label that does not exist.
    fn enum_equality(
        &self,
        name: &str,
        left: &TypedExpr,
        right: &TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        let Some(comparison) = Comparison::of(name).filter(|comparison| comparison.is_equality()) else {
            return Ok(None);
        };
        let oid = |kind: SqlType| match kind {
            SqlType::Opaque(index) if self.is_enum(kind) => Some(self.schema.columns[index].column_type.oid),
            _ => None,
        };
        let fits = match (oid(left.kind), oid(right.kind)) {
            (Some(left), Some(right)) => left == right,
            (Some(_), None) => right.kind == SqlType::Unknown,
            (None, Some(_)) => left.kind == SqlType::Unknown,
            (None, None) => false,
        };
        if !fits {
            return Ok(None);
        }
        let text = |typed: &TypedExpr| self.enum_text(typed.clone(), at);
        let binary = Binary::Compare { comparison, ignore_blanks: false };
        Ok(Some(self.join(binary, text(left)?, text(right)?, SqlType::BOOL)))
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
            return Err(self.unsupported(at, format!("{} {name} ANY/ALL is", left.kind)));
        }
        let shown = format!("{} {name} {element}", left.kind);
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
        let operator = match Comparison::of(name) {
            Some(comparison) => {
                self.check_operands(left.kind, collation, comparison, at)?;
                Binary::Compare { comparison, ignore_blanks: left.kind == SqlType::Scalar(Scalar::Bpchar) }
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
