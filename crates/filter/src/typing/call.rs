//! Functions, CASE, COALESCE and their kin.

use super::expr::{Binary, Expr, Unary};
use super::kind::{Scalar, Type};
use super::{Typed, Typer};
use crate::error::FilterError;
use crate::syntax::{Choice, Tree};
use crate::value::Value;
use crate::value::calendar::MICROS_PER_SECOND;
use crate::value::letters::Case;

impl Typer<'_> {
    pub(super) fn call(&self, name: &str, arguments: &[Tree], at: usize) -> Result<Typed, FilterError> {
        let arguments = arguments.iter().map(|tree| self.tree(tree)).collect::<Result<Vec<_>, _>>()?;
        for argument in arguments.iter().filter(|argument| !(name == "concat" && self.is_enum(argument.kind)))
        {
            self.refuse_opaque(argument.kind, at)?;
        }
        let kinds: Vec<_> = arguments.iter().map(|argument| argument.kind.to_string()).collect();
        let called = self.known_call(name, arguments, at)?;
        called.ok_or_else(|| {
            let message = format!("function {name}({}) does not exist", kinds.join(", "));
            self.invalid(at, "42883", message)
        })
    }

    /// `None`: Postgres has no such function of these types.
    fn known_call(&self, name: &str, arguments: Vec<Typed>, at: usize) -> Result<Option<Typed>, FilterError> {
        let count = arguments.len();
        let mut arguments = arguments.into_iter();
        let mut next = || arguments.next().expect("they were counted");
        match (name, count) {
            ("lower", 1) => self.letters(next(), Case::Lower, at),
            ("upper", 1) => self.letters(next(), Case::Upper, at),
            ("like" | "notlike", 2) => self.like_call(name, next(), next(), at),
            ("like_escape", 2) => self.like_escape(next(), next(), at),
            ("concat", 1..) => self.concat(arguments.collect(), at),
            ("array_cat", 2) => {
                let (left, right) = (next(), next());
                let array = |kind| matches!(kind, Type::Array(_) | Type::Unknown);
                let any = matches!(left.kind, Type::Array(_)) || matches!(right.kind, Type::Array(_));
                if !any || !array(left.kind) || !array(right.kind) {
                    return Ok(None);
                }
                self.array_concat(left, right, at)
            }
            ("array_append", 2) => {
                let (array, item) = (next(), next());
                self.array_push(array, item, true, at)
            }
            ("array_prepend", 2) => {
                let (item, array) = (next(), next());
                self.array_push(array, item, false, at)
            }
            ("array_ndims", 1) => self.array_dimensions(next(), at),
            ("justify_hours", 1) => self.justify(Unary::JustifyHours, next(), at),
            ("justify_days", 1) => self.justify(Unary::JustifyDays, next(), at),
            ("justify_interval", 1) => self.justify(Unary::JustifyInterval, next(), at),
            ("timezone", 2) => self.zone(next(), next(), at),
            (
                "lower" | "upper" | "like" | "ilike" | "concat" | "array_cat" | "array_append"
                | "array_prepend" | "array_ndims" | "justify_hours" | "justify_days" | "justify_interval",
                _,
            ) => Ok(None),
            _ => Err(self.unsupported(at, format!("the function {name} is"))),
        }
    }

    fn letters(&self, argument: Typed, case: Case, at: usize) -> Result<Option<Typed>, FilterError> {
        if !argument.kind.becomes(Type::TEXT) {
            return Ok(None);
        }
        let collated = self.merge([&argument], at)?;
        let what = if case == Case::Lower { "lower" } else { "upper" };
        let casing = self.casing(self.collation(collated), what, at)?;
        let argument = self.coerce(argument, Type::TEXT, at)?;
        Ok(Some(Typed { expr: Expr::unary(Unary::Case(casing, case), argument.expr), ..argument }))
    }

    fn like_call(
        &self,
        name: &str,
        text: Typed,
        pattern: Typed,
        at: usize,
    ) -> Result<Option<Typed>, FilterError> {
        if !text.kind.becomes(Type::TEXT) || !pattern.kind.becomes(Type::TEXT) {
            return Ok(None);
        }
        let (text, pattern) = (self.coerce(text, Type::TEXT, at)?, self.coerce(pattern, Type::TEXT, at)?);
        self.like(if name == "like" { "~~" } else { "!~~" }, text, pattern, at).map(Some)
    }

    fn like_escape(&self, pattern: Typed, escape: Typed, at: usize) -> Result<Option<Typed>, FilterError> {
        if !pattern.kind.becomes(Type::TEXT) || !escape.kind.becomes(Type::TEXT) {
            return Ok(None);
        }
        let collated = self.merge([&pattern, &escape], at)?;
        let (pattern, escape) = (self.coerce(pattern, Type::TEXT, at)?, self.coerce(escape, Type::TEXT, at)?);
        let expr = Expr::Binary(Binary::LikeEscape, Box::new([pattern.expr, escape.expr]));
        Ok(Some(Typed { expr, kind: Type::TEXT, collated }))
    }

    fn concat(&self, arguments: Vec<Typed>, at: usize) -> Result<Option<Typed>, FilterError> {
        let collated = self.merge(&arguments, at)?;
        let one = |argument: Typed| {
            let typed = match argument.kind {
                Type::Unknown => self.coerce(argument, Type::TEXT, at)?,
                Type::Opaque(_) => self.enum_text(argument, at)?,
                Type::Scalar(_) | Type::Array(_) => argument,
            };
            Ok((typed.expr, typed.kind))
        };
        let items = arguments.into_iter().map(one).collect::<Result<_, FilterError>>()?;
        Ok(Some(Typed { expr: Expr::Concat(items), kind: Type::TEXT, collated }))
    }

    fn justify(&self, unary: Unary, argument: Typed, at: usize) -> Result<Option<Typed>, FilterError> {
        const INTERVAL: Type = Type::Scalar(Scalar::Interval);
        if !argument.kind.becomes(INTERVAL) {
            return Ok(None);
        }
        let argument = self.coerce(argument, INTERVAL, at)?;
        Ok(Some(Typed { expr: Expr::unary(unary, argument.expr), ..argument }))
    }

    /// timezone(zone, moment), also written `moment AT TIME ZONE zone`.
    fn zone(&self, zone: Typed, moment: Typed, at: usize) -> Result<Option<Typed>, FilterError> {
        use Scalar::*;
        let zone_kind = match zone.kind {
            Type::Scalar(Interval | Time) => Type::Scalar(Interval),
            kind if kind.becomes(Type::TEXT) => Type::TEXT,
            _ => return Ok(None),
        };
        // A timestamp with time zone is preferred where either would do.
        let (moment_kind, result) = match moment.kind {
            Type::Scalar(Timestamp) => (Timestamp, Timestamptz),
            Type::Scalar(Timestamptz | Date) | Type::Unknown => (Timestamptz, Timestamp),
            Type::Scalar(Timetz | Time) => (Timetz, Timetz),
            _ => return Ok(None),
        };
        let zone = self.coerce(zone, zone_kind, at)?;
        let east = match self.fold(zone.expr, at)? {
            Expr::Const(None) => return Ok(Some(Typed::new(Expr::NULL, Type::Scalar(result)))),
            Expr::Const(Some(Value::Text(name))) => self.named_zone(&name, at)?,
            Expr::Const(Some(Value::Interval(interval))) => {
                if interval.months != 0 || interval.days != 0 {
                    let message = "interval time zone must not include months or days".to_owned();
                    return Err(self.invalid(at, "22023", message));
                }
                interval.micros / MICROS_PER_SECOND
            }
            _ => return Err(self.unsupported(at, "a time zone that is not a constant is".to_owned())),
        };
        let moment = self.coerce(moment, Type::Scalar(moment_kind), at)?;
        let unary = match moment_kind {
            Timestamptz => Unary::Shift(east * MICROS_PER_SECOND),
            Timestamp => Unary::Shift(-east * MICROS_PER_SECOND),
            _ => match i32::try_from(-east) {
                Ok(west) => Unary::MoveZone(west),
                Err(_) => return Err(self.unsupported(at, "a time zone so far away is".to_owned())),
            },
        };
        Ok(Some(Typed::new(Expr::unary(unary, moment.expr), Type::Scalar(result))))
    }

    /// Seconds east of Greenwich. Zones with rules would need their tables, which the server may have in another version.
    fn named_zone(&self, name: &str, at: usize) -> Result<i64, FilterError> {
        match name.to_ascii_lowercase().as_str() {
            "utc" | "gmt" | "z" | "zulu" | "uct" | "etc/utc" | "etc/gmt" => Ok(0),
            _ => Err(self.unsupported(at, format!("the time zone \"{name}\" (but UTC or an interval) is"))),
        }
    }

    pub(super) fn choice(&self, choice: Choice, arguments: &[Tree], at: usize) -> Result<Typed, FilterError> {
        let typed = arguments.iter().map(|tree| self.tree(tree)).collect::<Result<Vec<_>, _>>()?;
        typed.iter().try_for_each(|item| self.refuse_opaque(item.kind, at))?;
        let name = match choice {
            Choice::Coalesce => "COALESCE",
            Choice::Greatest => "GREATEST",
            Choice::Least => "LEAST",
            Choice::NullIf => return Err(self.unsupported(at, "the function nullif is".to_owned())),
        };
        let kind = self.common(name, &typed, at)?;
        let collated = self.merge(&typed, at)?;
        let items = typed.into_iter().map(|item| Ok(self.coerce(item, kind, at)?.expr));
        let items = items.collect::<Result<Vec<_>, FilterError>>()?;
        let expr = match choice {
            Choice::Coalesce => Expr::Coalesce(items),
            Choice::Greatest | Choice::Least | Choice::NullIf => {
                if kind.is_collatable() {
                    self.check_comparison(collated, false, at)?;
                }
                let blank = matches!(kind, Type::Scalar(Scalar::Bpchar) | Type::Array(Scalar::Bpchar));
                Expr::Extreme { greatest: choice == Choice::Greatest, blank, items }
            }
        };
        Ok(Typed { expr, kind, collated })
    }

    pub(super) fn case(
        &self,
        operand: Option<&Tree>,
        arms: &[(Tree, Tree)],
        otherwise: Option<&Tree>,
        at: usize,
    ) -> Result<Typed, FilterError> {
        let operand = match operand.map(|tree| self.tree(tree)).transpose()? {
            Some(typed) if typed.kind == Type::Unknown => Some(self.coerce(typed, Type::TEXT, at)?),
            Some(typed) => {
                self.refuse_opaque(typed.kind, at)?;
                Some(typed)
            }
            None => None,
        };
        let when = |tree: &Tree| -> Result<Expr, FilterError> {
            let typed = self.tree(tree)?;
            match &operand {
                Some(operand) => {
                    let held = Typed { expr: Expr::CaseOperand, ..operand.clone() };
                    Ok(self.binary("=", held, typed, tree.at)?.expr)
                }
                None => self.boolean(typed, "CASE/WHEN", tree.at),
            }
        };
        let whens = arms.iter().map(|(tree, _)| when(tree)).collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![match otherwise {
            Some(tree) => self.tree(tree)?,
            None => Typed::new(Expr::NULL, Type::Unknown),
        }];
        for (_, then) in arms {
            results.push(self.tree(then)?);
        }
        results.iter().try_for_each(|item| self.refuse_opaque(item.kind, at))?;
        let kind = self.common("CASE", &results, at)?;
        let collated = self.merge(&results, at)?;
        let results = results.into_iter().map(|item| Ok(self.coerce(item, kind, at)?.expr));
        let mut results = results.collect::<Result<Vec<_>, FilterError>>()?.into_iter();
        let otherwise = Box::new(results.next().expect("the first is ELSE"));
        let arms = whens.into_iter().zip(results).collect();
        let operand = operand.map(|typed| Box::new(typed.expr));
        Ok(Typed { expr: Expr::Case { operand, arms, otherwise }, kind, collated })
    }
}
