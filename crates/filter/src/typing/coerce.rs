//! Casts, asked for and unasked (parse_coerce.c).

use super::expr::{Expr, Fit, Unary};
use super::kind::{Scalar, Type};
use super::{Typed, Typer};
use crate::error::FilterError;
use crate::syntax::{Kind, Tree, TypeName};
use crate::value::Value;
use crate::value::input::{self, InputError};

/// The longest varchar(n) and char(n).
const MAX_LENGTH: i32 = 10_485_760;
/// The longest char(n) that we pad to: a short clause must not make a large row of a small one.
const MAX_PADDING: i32 = 1024;

impl Typer<'_> {
    /// Unasked: the caller has found that the type becomes the target.
    pub(super) fn coerce(&self, typed: Typed, target: Type, at: usize) -> Result<Typed, FilterError> {
        let Typed { expr, kind, collated } = typed;
        if kind == target {
            return Ok(Typed { expr, kind, collated });
        }
        let expr = match (kind, expr) {
            (Type::Unknown, Expr::Const(None)) => Expr::NULL,
            (Type::Unknown, Expr::Const(Some(Value::Text(text)))) => self.constant(&text, target, at)?,
            (Type::Unknown, other) => unreachable!("only constants have no type: {other:?}"),
            (_, expr) => self.convert(expr, kind, target, at)?,
        };
        let collated = if target.is_collatable() { collated } else { Default::default() };
        Ok(Typed { expr, kind: target, collated })
    }

    /// What a text constant says as a value of the type.
    fn constant(&self, text: &str, target: Type, at: usize) -> Result<Expr, FilterError> {
        match input::read(text, target, self.modern()) {
            Ok(value) => Ok(Expr::Const(Some(value.into_owned()))),
            Err(InputError::Unsupported(what)) => Err(FilterError::unsupported(self.text, at, what)),
            Err(error) => {
                let (sqlstate, message) = error.word(target, Some(text));
                Err(self.invalid(at, sqlstate, message))
            }
        }
    }

    /// The node that turns one type into another, if it takes one.
    fn convert(&self, expr: Expr, from: Type, to: Type, at: usize) -> Result<Expr, FilterError> {
        let same_text = |from: Scalar, to: Scalar| {
            from.is_text() && to.is_text() && (from != Scalar::Bpchar || to == Scalar::Bpchar)
        };
        if let (Type::Scalar(from), Type::Scalar(to)) | (Type::Array(from), Type::Array(to)) = (from, to)
            && (same_text(from, to) || from == to)
        {
            return Ok(expr);
        }
        self.refuse_loose_texts(from, to, at)?;
        Ok(Expr::unary(Unary::Cast { from, to, modern: self.modern() }, expr))
    }

    /// Postgres reads dates and times in many forms, and we in few: so a row's text isn't read as one at all.
    fn refuse_loose_texts(&self, from: Type, to: Type, at: usize) -> Result<(), FilterError> {
        use Scalar::*;
        let element = |kind: Type| match kind {
            Type::Scalar(scalar) | Type::Array(scalar) => Some(scalar),
            Type::Unknown | Type::Opaque(_) => None,
        };
        let from_text = element(from).is_some_and(Scalar::is_text);
        if from_text && matches!(element(to), Some(Date | Time | Timetz | Timestamp | Timestamptz | Interval))
        {
            return Err(self.unsupported(at, format!("casting text (but a constant) to {to} is")));
        }
        Ok(())
    }

    pub(super) fn cast(&self, operand: &Tree, name: &TypeName, at: usize) -> Result<Typed, FilterError> {
        if name.schema.is_some() {
            return Err(self.unsupported(at, "types of other schemas are".to_owned()));
        }
        let Some(scalar) = Scalar::by_name(&name.name) else {
            return Err(self.unsupported(at, format!("the type {} is", name.name)));
        };
        let target = if name.is_array { Type::Array(scalar) } else { Type::Scalar(scalar) };
        let fit = self.fit(scalar, &name.modifiers, at)?;
        let typed = match &operand.kind {
            Kind::Array(items) if name.is_array => self.array(items, at, Some(scalar))?,
            _ => self.tree(operand)?,
        };
        let typed = self.cast_to(typed, target, at)?;
        Ok(match fit {
            Some(fit) => Typed { expr: Expr::unary(Unary::Fit(fit), typed.expr), ..typed },
            None => typed,
        })
    }

    /// Asked for.
    pub(super) fn cast_to(&self, typed: Typed, target: Type, at: usize) -> Result<Typed, FilterError> {
        if typed.kind == Type::Unknown || typed.kind.becomes(target) {
            return self.coerce(typed, target, at);
        }
        let is_text = |kind: Type| matches!(kind, Type::Scalar(scalar) if scalar.is_text());
        if self.is_enum(typed.kind) && is_text(target) {
            return Ok(Typed { kind: target, ..self.enum_text(typed, at)? });
        }
        self.refuse_opaque(typed.kind, at)?;
        let scalars = |from: Scalar, to: Scalar| from.casts_to(to) || from.is_text() || to.is_text();
        let possible = match (typed.kind, target) {
            (Type::Scalar(from), Type::Scalar(to)) | (Type::Array(from), Type::Array(to)) => {
                scalars(from, to)
            }
            (from, to) => is_text(from) || is_text(to),
        };
        if !possible {
            let message = format!("cannot cast type {} to {target}", typed.kind);
            return Err(self.invalid(at, "42846", message));
        }
        let collated = if typed.kind.is_collatable() { typed.collated } else { Default::default() };
        Ok(Typed { expr: self.convert(typed.expr, typed.kind, target, at)?, kind: target, collated })
    }

    /// The label of an enum, or a constant that stands for one.
    pub(super) fn enum_text(&self, typed: Typed, at: usize) -> Result<Typed, FilterError> {
        match (typed.kind, &typed.expr) {
            (Type::Opaque(_), Expr::Column { index, .. }) => {
                Ok(Typed::new(Expr::Column { index: *index, kind: Type::TEXT }, Type::TEXT))
            }
            _ => self.coerce(typed, Type::TEXT, at),
        }
    }

    /// As `x::text`.
    pub(super) fn as_text(&self, typed: Typed, at: usize) -> Result<Typed, FilterError> {
        self.cast_to(typed, Type::TEXT, at)
    }

    fn fit(&self, scalar: Scalar, modifiers: &[i32], at: usize) -> Result<Option<Fit>, FilterError> {
        let invalid = |message: String| self.invalid(at, "22023", message);
        Ok(match (scalar, modifiers) {
            (_, []) => None,
            (Scalar::Varchar | Scalar::Bpchar, [length]) => {
                let name = if scalar == Scalar::Varchar { "varchar" } else { "char" };
                match *length {
                    ..1 => return Err(invalid(format!("length for type {name} must be at least 1"))),
                    length if length > MAX_LENGTH => {
                        return Err(invalid(format!("length for type {name} cannot exceed {MAX_LENGTH}")));
                    }
                    length if scalar == Scalar::Varchar => Some(Fit::Length(length as usize)),
                    length if length > MAX_PADDING => {
                        return Err(self.unsupported(at, format!("character(n) beyond {MAX_PADDING} is")));
                    }
                    length => Some(Fit::Padded(length as usize)),
                }
            }
            (Scalar::Numeric, [precision, rest @ ..]) if rest.len() < 2 => {
                let (precision, scale) = (*precision, rest.first().copied().unwrap_or(0));
                if !(1..=1000).contains(&precision) {
                    return Err(invalid(format!("NUMERIC precision {precision} must be between 1 and 1000")));
                }
                if !(-1000..=1000).contains(&scale) {
                    return Err(invalid(format!("NUMERIC scale {scale} must be between -1000 and 1000")));
                }
                Some(Fit::Digits { precision, scale })
            }
            (Scalar::Time | Scalar::Timetz | Scalar::Timestamp | Scalar::Timestamptz, [digits]) => {
                match *digits {
                    ..0 => {
                        return Err(invalid(format!(
                            "{}({digits}) precision must not be negative",
                            scalar.name()
                        )));
                    }
                    digits => Some(Fit::Fraction(digits.min(6) as u32)),
                }
            }
            _ => {
                let message = format!("type modifier is not allowed for type \"{}\"", scalar.name());
                return Err(self.invalid(at, "42601", message));
            }
        })
    }
}
