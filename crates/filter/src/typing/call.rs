//! Typing of function calls, CASE, COALESCE, GREATEST and LEAST.

use super::expr::{ArrayFunction, Binary, Expr, Unary};
use super::sql_type::{Scalar, SqlType};
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::eval::function::{BinaryFunction, UnaryFunction};
use crate::syntax::{ChoiceFunction, SyntaxTree};
use crate::value::SqlValue;
use crate::value::array::ArrayEnd;
use crate::value::calendar::MICROS_PER_SECOND;
use crate::value::letter_case::LetterCase;
use crate::value::range::RangeFunction;

impl Typer<'_> {
    pub(super) fn call(
        &self,
        name: &str,
        arguments: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let arguments = arguments.iter().map(|tree| self.tree(tree)).collect::<Result<Vec<_>, _>>()?;
        arguments.iter().try_for_each(|argument| self.refuse_opaque(argument.kind, at))?;
        if let Some(typed) = self.range_call(name, &arguments) {
            return Ok(typed);
        }
        let kinds: Vec<_> = arguments.iter().map(|argument| self.shown(argument.kind)).collect();
        let called = self.known_call(name, arguments, at)?;
        called.ok_or_else(|| {
            let message = format!("function {name}({}) does not exist", kinds.join(", "));
            self.invalid(at, "42883", message)
        })
    }

    /// Types a call of a supported function. `None`: Postgres has no such function for these types.
    fn known_call(
        &self,
        name: &str,
        arguments: Vec<TypedExpr>,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        let count = arguments.len();
        if let Some((function, counts)) = ArrayFunction::of(name) {
            return if counts.contains(&count) { self.array_call(function, arguments, at) } else { Ok(None) };
        }
        if RangeFunction::of(name).is_some() && !matches!(name, "lower" | "upper") {
            return match arguments.first() {
                Some(first) if count == 1 && first.kind == SqlType::Unknown => {
                    Err(self.unsupported(at, format!("{name} of a constant without a type is")))
                }
                _ => Ok(None),
            };
        }
        let mut arguments = arguments.into_iter();
        let mut next = || arguments.next().expect("the number of arguments was checked");
        match (name, count) {
            ("lower", 1) => self.letters(next(), LetterCase::Lower, at),
            ("upper", 1) => self.letters(next(), LetterCase::Upper, at),
            ("like" | "notlike", 2) => self.like_call(name, next(), next(), at),
            ("like_escape", 2) => self.like_escape(next(), next(), at),
            ("concat", 1..) => self.concat(arguments.collect(), at),
            ("array_cat", 2) => {
                let (left, right) = (next(), next());
                let array = |kind| matches!(kind, SqlType::Array(_) | SqlType::Unknown);
                let any = matches!(left.kind, SqlType::Array(_)) || matches!(right.kind, SqlType::Array(_));
                if !any || !array(left.kind) || !array(right.kind) {
                    return Ok(None);
                }
                self.array_concat(left, right, at)
            }
            ("array_append", 2) => {
                let (array, item) = (next(), next());
                self.array_push(array, item, ArrayEnd::Back, at)
            }
            ("array_prepend", 2) => {
                let (item, array) = (next(), next());
                self.array_push(array, item, ArrayEnd::Front, at)
            }
            ("array_ndims", 1) => self.array_dimensions(next(), at),
            ("justify_hours", 1) => self.justify(UnaryFunction::JustifyHours, next(), at),
            ("justify_days", 1) => self.justify(UnaryFunction::JustifyDays, next(), at),
            ("justify_interval", 1) => self.justify(UnaryFunction::JustifyInterval, next(), at),
            ("timezone", 2) => self.zone(next(), next(), at),
            (
                "lower" | "upper" | "like" | "ilike" | "concat" | "array_cat" | "array_append"
                | "array_prepend" | "array_ndims" | "justify_hours" | "justify_days" | "justify_interval",
                _,
            ) => Ok(None),
            _ => Err(self.unsupported(at, format!("the function {name} is"))),
        }
    }

    fn letters(
        &self,
        argument: TypedExpr,
        case: LetterCase,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        if !argument.kind.casts_implicitly_to(SqlType::TEXT) {
            return Ok(None);
        }
        let collation = self.merge([&argument], at)?;
        let what = if case == LetterCase::Lower { "lower" } else { "upper" };
        let casing = self.casing(self.collation(collation), what, at)?;
        let argument = self.coerce(argument, SqlType::TEXT, at)?;
        let function = UnaryFunction::Case(casing, case);
        Ok(Some(TypedExpr { expr: Expr::unary(Unary::Function(function), argument.expr), ..argument }))
    }

    fn like_call(
        &self,
        name: &str,
        text: TypedExpr,
        pattern: TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        if !text.kind.casts_implicitly_to(SqlType::TEXT) || !pattern.kind.casts_implicitly_to(SqlType::TEXT) {
            return Ok(None);
        }
        let (text, pattern) =
            (self.coerce(text, SqlType::TEXT, at)?, self.coerce(pattern, SqlType::TEXT, at)?);
        self.like(if name == "like" { "~~" } else { "!~~" }, text, pattern, at).map(Some)
    }

    fn like_escape(
        &self,
        pattern: TypedExpr,
        escape: TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        if !pattern.kind.casts_implicitly_to(SqlType::TEXT) || !escape.kind.casts_implicitly_to(SqlType::TEXT)
        {
            return Ok(None);
        }
        let collation = self.merge([&pattern, &escape], at)?;
        let (pattern, escape) =
            (self.coerce(pattern, SqlType::TEXT, at)?, self.coerce(escape, SqlType::TEXT, at)?);
        let expr =
            Expr::Binary(Binary::Function(BinaryFunction::LikeEscape), Box::new([pattern.expr, escape.expr]));
        Ok(Some(TypedExpr { expr, kind: SqlType::TEXT, collation }))
    }

    fn concat(&self, arguments: Vec<TypedExpr>, at: usize) -> Result<Option<TypedExpr>, FilterError> {
        let collation = self.merge(&arguments, at)?;
        let one = |argument: TypedExpr| {
            let typed = match argument.kind {
                SqlType::Unknown => self.coerce(argument, SqlType::TEXT, at)?,
                SqlType::Opaque(_) | SqlType::Scalar(_) | SqlType::Array(_) => argument,
            };
            Ok((typed.expr, typed.kind))
        };
        let items = arguments.into_iter().map(one).collect::<Result<_, FilterError>>()?;
        Ok(Some(TypedExpr { expr: Expr::Concat(items), kind: SqlType::TEXT, collation }))
    }

    fn justify(
        &self,
        function: UnaryFunction,
        argument: TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        const INTERVAL: SqlType = SqlType::Scalar(Scalar::Interval);
        if !argument.kind.casts_implicitly_to(INTERVAL) {
            return Ok(None);
        }
        let argument = self.coerce(argument, INTERVAL, at)?;
        Ok(Some(TypedExpr { expr: Expr::unary(Unary::Function(function), argument.expr), ..argument }))
    }

    /// Types `timezone(zone, moment)`, also written `moment AT TIME ZONE zone`.
    fn zone(&self, zone: TypedExpr, moment: TypedExpr, at: usize) -> Result<Option<TypedExpr>, FilterError> {
        use Scalar::*;
        let zone_kind = match zone.kind {
            SqlType::Scalar(Interval | Time) => SqlType::Scalar(Interval),
            kind if kind.casts_implicitly_to(SqlType::TEXT) => SqlType::TEXT,
            _ => return Ok(None),
        };
        // timestamptz is the preferred type of its category.
        let (moment_kind, result) = match moment.kind {
            SqlType::Scalar(Timestamp) => (Timestamp, Timestamptz),
            SqlType::Scalar(Timestamptz | Date) | SqlType::Unknown => (Timestamptz, Timestamp),
            SqlType::Scalar(Timetz | Time) => (Timetz, Timetz),
            _ => return Ok(None),
        };
        let zone = self.coerce(zone, zone_kind, at)?;
        let east = match self.fold(zone.expr, at)? {
            Expr::Const(None) => return Ok(Some(TypedExpr::new(Expr::NULL, SqlType::Scalar(result)))),
            Expr::Const(Some(SqlValue::Text(name))) => self.named_zone(&name, at)?,
            Expr::Const(Some(SqlValue::Interval(interval))) => {
                if interval.months != 0 || interval.days != 0 {
                    let message = "interval time zone must not include months or days".to_owned();
                    return Err(self.invalid(at, "22023", message));
                }
                interval.micros / MICROS_PER_SECOND
            }
            _ => return Err(self.unsupported(at, "a time zone that is not a constant is".to_owned())),
        };
        let moment = self.coerce(moment, SqlType::Scalar(moment_kind), at)?;
        let unary = match moment_kind {
            Timestamptz => Unary::Shift(east * MICROS_PER_SECOND),
            Timestamp => Unary::Shift(-east * MICROS_PER_SECOND),
            _ => match i32::try_from(-east) {
                Ok(west) => Unary::MoveZone(west),
                Err(_) => return Err(self.unsupported(at, "a time zone so far away is".to_owned())),
            },
        };
        Ok(Some(TypedExpr::new(Expr::unary(unary, moment.expr), SqlType::Scalar(result))))
    }

    /// Returns a zone's seconds east of Greenwich. Zones with rules are refused: a tzdata in this
    /// crate could differ from the server's version.
    fn named_zone(&self, name: &str, at: usize) -> Result<i64, FilterError> {
        match name.to_ascii_lowercase().as_str() {
            "utc" | "gmt" | "z" | "zulu" | "uct" | "etc/utc" | "etc/gmt" => Ok(0),
            _ => Err(self.unsupported(at, format!("the time zone \"{name}\" (but UTC or an interval) is"))),
        }
    }

    pub(super) fn choice(
        &self,
        choice: ChoiceFunction,
        arguments: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let typed = arguments.iter().map(|tree| self.tree(tree)).collect::<Result<Vec<_>, _>>()?;
        typed.iter().try_for_each(|item| self.refuse_opaque(item.kind, at))?;
        let name = match choice {
            ChoiceFunction::Coalesce => "COALESCE",
            ChoiceFunction::Greatest => "GREATEST",
            ChoiceFunction::Least => "LEAST",
            ChoiceFunction::NullIf => return Err(self.unsupported(at, "the function nullif is".to_owned())),
        };
        let kind = self.common(name, &typed, at)?;
        let collation = self.merge(&typed, at)?;
        let items = typed.into_iter().map(|item| Ok(self.coerce(item, kind, at)?.expr));
        let items = items.collect::<Result<Vec<_>, FilterError>>()?;
        let expr = match choice {
            ChoiceFunction::Coalesce => Expr::Coalesce(items),
            ChoiceFunction::Greatest | ChoiceFunction::Least | ChoiceFunction::NullIf => {
                if kind.is_collatable() {
                    self.check_ordering(collation, at)?;
                }
                let ignore_blanks =
                    matches!(kind, SqlType::Scalar(Scalar::Bpchar) | SqlType::Array(Scalar::Bpchar));
                let ordered = items.into_iter().map(|item| self.ordered(item, kind, at));
                let items = ordered.collect::<Result<Vec<_>, _>>()?;
                let greatest = choice == ChoiceFunction::Greatest;
                let extreme = Expr::Extreme { greatest, ignore_blanks, items };
                match kind {
                    SqlType::Scalar(Scalar::Enum(oid)) | SqlType::Array(Scalar::Enum(oid)) => {
                        Expr::Label { labels: self.labels(oid, at)?, operand: Box::new(extreme) }
                    }
                    _ => extreme,
                }
            }
        };
        Ok(TypedExpr { expr, kind, collation })
    }

    pub(super) fn case(
        &self,
        operand: Option<&SyntaxTree>,
        arms: &[(SyntaxTree, SyntaxTree)],
        otherwise: Option<&SyntaxTree>,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let operand = match operand.map(|tree| self.tree(tree)).transpose()? {
            Some(typed) if typed.kind == SqlType::Unknown => Some(self.coerce(typed, SqlType::TEXT, at)?),
            Some(typed) => {
                self.refuse_opaque(typed.kind, at)?;
                Some(typed)
            }
            None => None,
        };
        let when = |tree: &SyntaxTree| -> Result<Expr, FilterError> {
            let typed = self.tree(tree)?;
            match &operand {
                Some(operand) => {
                    let held = TypedExpr { expr: Expr::CaseOperand, ..operand.clone() };
                    Ok(self.binary("=", held, typed, tree.at)?.expr)
                }
                None => self.boolean(typed, "CASE/WHEN", tree.at),
            }
        };
        let whens = arms.iter().map(|(tree, _)| when(tree)).collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![match otherwise {
            Some(tree) => self.tree(tree)?,
            None => TypedExpr::new(Expr::NULL, SqlType::Unknown),
        }];
        for (_, then) in arms {
            results.push(self.tree(then)?);
        }
        results.iter().try_for_each(|item| self.refuse_opaque(item.kind, at))?;
        let kind = self.common("CASE", &results, at)?;
        let collation = self.merge(&results, at)?;
        let results = results.into_iter().map(|item| Ok(self.coerce(item, kind, at)?.expr));
        let mut results = results.collect::<Result<Vec<_>, FilterError>>()?.into_iter();
        let otherwise = Box::new(results.next().expect("the first is ELSE"));
        let arms = whens.into_iter().zip(results).collect();
        let operand = operand.map(|typed| Box::new(typed.expr));
        Ok(TypedExpr { expr: Expr::Case { operand, arms, otherwise }, kind, collation })
    }
}
