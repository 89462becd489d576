//! Typing of casts, explicit and implicit (parse_coerce.c).

use forebay_values::{InputError, Interval, IntervalFields, Scalar, SqlValue, TypeModifier};

use super::expr::{Expr, Unary};
use super::nearest;
use super::sql_type::{SqlType, TypeRules};
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::syntax::{SyntaxKind, SyntaxTree, TypeName};

/// Maximum `n` of varchar(n) and char(n), in characters.
const MAX_LENGTH: i32 = 10_485_760;
/// Maximum `n` of a cast to char(n), in characters: a short clause must not create large values.
const MAX_PADDING: i32 = 1024;

impl Typer<'_> {
    /// Casts implicitly. The caller has checked that the cast exists.
    pub(super) fn coerce(
        &self,
        typed: TypedExpr,
        target: SqlType,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let TypedExpr { expr, kind, collation } = typed;
        if kind == target {
            return Ok(TypedExpr { expr, kind, collation });
        }
        let expr = match (kind, expr) {
            (SqlType::Unknown, Expr::Const(None)) => Expr::NULL,
            (SqlType::Unknown, Expr::Const(Some(SqlValue::Text(text)))) => {
                self.constant(&text, target, target.read(&text, self.modern()), at)?
            }
            (SqlType::Unknown, other) => unreachable!("only constants have no type: {other:?}"),
            (_, expr) => self.convert(expr, kind, target, at)?,
        };
        let collation = if target.is_collatable() { collation } else { Default::default() };
        Ok(TypedExpr { expr, kind: target, collation })
    }

    /// Returns the constant that a text was parsed as.
    fn constant(
        &self,
        text: &str,
        target: SqlType,
        read: Result<SqlValue<'_>, InputError>,
        at: usize,
    ) -> Result<Expr, FilterError> {
        match read {
            Ok(value) => {
                self.check_labels(&value, target, at)?;
                Ok(Expr::Const(Some(value.into_owned())))
            }
            Err(InputError::Unsupported(what)) => Err(FilterError::unsupported(self.text, at, what)),
            Err(error) => {
                let (sqlstate, message) = error.describe(target.value_type(), Some(text));
                Err(self.invalid(at, sqlstate, message))
            }
        }
    }

    /// Returns the expression with a cast, if the two types need one.
    fn convert(&self, expr: Expr, from: SqlType, to: SqlType, at: usize) -> Result<Expr, FilterError> {
        let same_text = |from: Scalar, to: Scalar| {
            from.is_text() && to.is_text() && (from != Scalar::Bpchar || to == Scalar::Bpchar)
        };
        if let (SqlType::Scalar(from), SqlType::Scalar(to)) | (SqlType::Array(from), SqlType::Array(to)) =
            (from, to)
            && (same_text(from, to) || from == to)
        {
            return Ok(expr);
        }
        if let Some(cast) = self.json_cast(&expr, from, to, at)? {
            return Ok(cast);
        }
        self.refuse_loose_texts(from, to, at)?;
        Ok(Expr::unary(Unary::Cast { from, to, modern: self.modern() }, expr))
    }

    /// Refuses casts of a row's text to a range of dates or times, or to an enum.
    fn refuse_loose_texts(&self, from: SqlType, to: SqlType, at: usize) -> Result<(), FilterError> {
        use Scalar::*;
        let element = |kind: SqlType| match kind {
            SqlType::Scalar(scalar) | SqlType::Array(scalar) => Some(scalar),
            SqlType::Unknown | SqlType::Opaque(_) => None,
        };
        let from_text = element(from).is_some_and(Scalar::is_text);
        let is_loose = matches!(
            element(to),
            Some(Tsrange | Tstzrange | Daterange | Tsmultirange | Tstzmultirange | Datemultirange | Enum(_))
        );
        if from_text && is_loose {
            let to = self.shown(to);
            return Err(self.unsupported(at, format!("casting text (but a constant) to {to} is")));
        }
        Ok(())
    }

    /// Refuses casts that only some versions of Postgres have, of integers to bytea and back, and
    /// those of ranges to multiranges.
    fn refuse_other_casts(&self, from: SqlType, to: SqlType, at: usize) -> Result<(), FilterError> {
        let is_bytea = |kind| matches!(kind, SqlType::Scalar(Scalar::Bytea) | SqlType::Array(Scalar::Bytea));
        let of_ranges = |from: SqlType, to: SqlType| match (from, to) {
            (SqlType::Scalar(from), SqlType::Scalar(to)) | (SqlType::Array(from), SqlType::Array(to)) => {
                to.multirange_range() == Some(from)
            }
            _ => false,
        };
        match is_bytea(from) || is_bytea(to) || of_ranges(from, to) {
            true => {
                Err(self.unsupported(at, format!("casting {} to {} is", self.shown(from), self.shown(to))))
            }
            false => Ok(()),
        }
    }

    pub(super) fn cast(
        &self,
        operand: &SyntaxTree,
        name: &TypeName,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let scalar = match (self.named_enum(name), &name.schema) {
            (Some(of_enum), _) => of_enum,
            (None, Some(_)) => return Err(self.unsupported(at, "types of other schemas are".to_owned())),
            (None, None) => Scalar::by_name(&name.name).ok_or_else(|| {
                let error = self.unsupported(at, format!("the type {} is", name.name));
                error.or_nearest(nearest::type_name(&name.name))
            })?,
        };
        let target = if name.is_array { SqlType::Array(scalar) } else { SqlType::Scalar(scalar) };
        let fit = self.fit(scalar, &name.modifiers, at)?;
        let typed = match &operand.kind {
            SyntaxKind::Array(items) if name.is_array => self.array(items, at, Some(scalar))?,
            _ => self.tree(operand)?,
        };
        let typed = match (&fit, typed.kind, &typed.expr) {
            (
                Some(TypeModifier::Interval { fields, .. }),
                SqlType::Unknown,
                Expr::Const(Some(SqlValue::Text(text))),
            ) if !name.is_array => {
                let read = Interval::parse(text, *fields, self.modern()).map(SqlValue::Interval);
                TypedExpr::new(self.constant(text, target, read, at)?, target)
            }
            _ => typed,
        };
        let typed = self.cast_to(typed, target, at)?;
        Ok(match fit {
            Some(fit) => TypedExpr { expr: Expr::unary(Unary::Fit(fit), typed.expr), ..typed },
            None => typed,
        })
    }

    /// Casts explicitly.
    pub(super) fn cast_to(
        &self,
        typed: TypedExpr,
        target: SqlType,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        if typed.kind == SqlType::Unknown || typed.kind.casts_implicitly_to(target) {
            return self.coerce(typed, target, at);
        }
        let is_text = |kind: SqlType| matches!(kind, SqlType::Scalar(scalar) if scalar.is_text());
        self.refuse_opaque(typed.kind, at)?;
        let scalars =
            |from: Scalar, to: Scalar| from.casts_explicitly_to(to) || from.is_text() || to.is_text();
        let possible = match (typed.kind, target) {
            (SqlType::Scalar(from), SqlType::Scalar(to)) | (SqlType::Array(from), SqlType::Array(to)) => {
                scalars(from, to)
            }
            (from, to) => is_text(from) || is_text(to),
        };
        if !possible {
            self.refuse_other_casts(typed.kind, target, at)?;
            let (from, to) = (self.shown(typed.kind), self.shown(target));
            let message = format!("cannot cast type {from} to {to}");
            return Err(self.invalid(at, "42846", message));
        }
        if is_text(element(typed.kind)) && is_time(target) {
            self.time_casts.borrow_mut().push(at);
        }
        let collation = if typed.kind.is_collatable() { typed.collation } else { Default::default() };
        Ok(TypedExpr { expr: self.convert(typed.expr, typed.kind, target, at)?, kind: target, collation })
    }

    /// Casts to text, as `x::text` does.
    pub(super) fn as_text(&self, typed: TypedExpr, at: usize) -> Result<TypedExpr, FilterError> {
        self.cast_to(typed, SqlType::TEXT, at)
    }

    fn fit(&self, scalar: Scalar, modifiers: &[i32], at: usize) -> Result<Option<TypeModifier>, FilterError> {
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
                    length if scalar == Scalar::Varchar => Some(TypeModifier::Length(length as usize)),
                    length if length > MAX_PADDING => {
                        return Err(self.unsupported(at, format!("character(n) beyond {MAX_PADDING} is")));
                    }
                    length => Some(TypeModifier::Padded(length as usize)),
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
                Some(TypeModifier::Digits { precision, scale })
            }
            (Scalar::Time | Scalar::Timetz | Scalar::Timestamp | Scalar::Timestamptz, [digits]) => {
                match *digits {
                    ..0 => {
                        return Err(invalid(format!(
                            "{}({digits}) precision must not be negative",
                            scalar.name()
                        )));
                    }
                    digits => Some(TypeModifier::Fraction(digits.min(6) as u32)),
                }
            }
            (Scalar::Interval, [fields, digits @ ..]) if digits.len() < 2 => {
                let fields = IntervalFields::of_modifier(*fields)
                    .ok_or_else(|| invalid("invalid INTERVAL type modifier".to_owned()))?;
                if let Some(digits @ ..0) = digits.first() {
                    return Err(invalid(format!("INTERVAL({digits}) precision must not be negative")));
                }
                Some(TypeModifier::Interval { fields, digits: digits.first().map(|digits| *digits as u32) })
            }
            _ => {
                let message = format!("type modifier is not allowed for type \"{}\"", scalar.name());
                return Err(self.invalid(at, "42601", message));
            }
        })
    }
}

/// Returns the type of an array's elements, or the type itself.
fn element(kind: SqlType) -> SqlType {
    match kind {
        SqlType::Array(element) => SqlType::Scalar(element),
        other => other,
    }
}

/// Returns whether the input of a type may read the clock.
fn is_time(kind: SqlType) -> bool {
    use Scalar::{Date, Time, Timestamp, Timestamptz, Timetz};
    matches!(element(kind), SqlType::Scalar(Date | Time | Timetz | Timestamp | Timestamptz))
}
