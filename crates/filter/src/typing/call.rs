//! Typing of function calls, CASE, COALESCE, GREATEST and LEAST.

use forebay_values::{ArrayEnd, Collation, LetterCase, Scalar, SqlValue, zone_offset};

use super::collate::CollationSource;
use super::expr::{Binary, Comparison, Expr, Unary};
use super::functions::{self, BuiltCall, CallResolution, ResolvedCall, Support};
use super::nearest;
use super::resolve::{self, OperatorResolution};
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::eval::clock_function::ClockFunction;
use crate::eval::function::Function;
use crate::eval::text::TextFunction;
use crate::syntax::{ChoiceFunction, SyntaxTree};

/// Names of no function in Postgres, although it has an operator of that name.
const ABSENT: &[&str] = &["ilike"];

const MICROS_PER_SECOND: i64 = 1_000_000;

impl Typer<'_> {
    pub(super) fn call(
        &self,
        name: &str,
        arguments: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let arguments = arguments.iter().map(|tree| self.tree(tree)).collect::<Result<Vec<_>, _>>()?;
        arguments.iter().try_for_each(|argument| self.refuse_opaque(argument.kind, at))?;
        if let Some(typed) = self.range_call(name, &arguments, at)? {
            return Ok(typed);
        }
        let given: Vec<_> = arguments.iter().map(|argument| argument.kind).collect();
        let shown = || {
            let kinds: Vec<_> = given.iter().map(|kind| self.shown(*kind)).collect();
            format!("{name}({})", kinds.join(", "))
        };
        match functions::resolve(name, &given, self.schema.server_version) {
            CallResolution::Found(call) => self.resolved_call(&call, arguments, at),
            CallResolution::UnknownName if !ABSENT.contains(&name) => {
                let error = self.unsupported(at, format!("the function {name} is"));
                Err(error.or_nearest(nearest::function(name)))
            }
            CallResolution::None | CallResolution::UnknownName => {
                Err(self.invalid(at, "42883", format!("function {} does not exist", shown())))
            }
            CallResolution::Ambiguous => {
                Err(self.invalid(at, "42725", format!("function {} is not unique", shown())))
            }
            CallResolution::Undetermined => {
                let message = "could not determine polymorphic type because input has type unknown";
                Err(self.invalid(at, "42804", message.to_owned()))
            }
        }
    }

    fn resolved_call(
        &self,
        call: &ResolvedCall,
        arguments: Vec<TypedExpr>,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let row = call.row;
        if !row.is_supported() {
            let what = format!("the function {}({}) is", row.name, row.arguments);
            return Err(self.unsupported(at, what));
        }
        let collation = self.merge(&arguments, at)?;
        let cast = arguments.into_iter().zip(&call.arguments);
        let cast = cast.map(|(argument, kind)| self.coerce(argument, *kind, at));
        let mut arguments = cast.collect::<Result<Vec<_>, _>>()?;
        let native = |function, arguments: Vec<TypedExpr>| Expr::Call {
            function,
            is_strict: row.is_strict,
            is_stable: row.is_stable,
            arguments: arguments.into_iter().map(|argument| argument.expr).collect(),
        };
        let expr = match row.support {
            Support::Native(function) => {
                if function.compares_texts() {
                    self.check_equality(collation, at)?;
                }
                self.check_growth(function, &arguments, at)?;
                native(function, arguments)
            }
            Support::Built(call @ (BuiltCall::Lower | BuiltCall::Upper | BuiltCall::InitCap)) => {
                native(self.letters(call, row.name, collation, at)?, arguments)
            }
            Support::Built(BuiltCall::TruncateInZone) => {
                let zone = arguments.pop().expect("the number of arguments was checked");
                match self.east_of_greenwich(zone, at)? {
                    Some(east) => native(Function::Clock(ClockFunction::TruncateInZone(east)), arguments),
                    None => Expr::NULL,
                }
            }
            Support::Built(built) => self.built_call(built, arguments, call.result, at)?,
            Support::Refused => unreachable!("it was refused above"),
        };
        let collation = if call.result.is_collatable() { collation } else { Default::default() };
        Ok(TypedExpr { expr, kind: call.result, collation })
    }

    /// Returns the function that changes letters under the collation.
    fn letters(
        &self,
        call: BuiltCall,
        name: &str,
        collation: CollationSource,
        at: usize,
    ) -> Result<Function, FilterError> {
        if collation == CollationSource::Conflict {
            let message = format!("could not determine which collation to use for {name}() function");
            return Err(self.invalid(at, "42P22", message));
        }
        let collation = self.collation(collation);
        let casing = self.casing(collation, name, at)?;
        Ok(match call {
            BuiltCall::Lower => Function::Case(casing, LetterCase::Lower),
            BuiltCall::Upper => Function::Case(casing, LetterCase::Upper),
            // ICU finds words by rules of its own.
            _ if matches!(collation, Collation::Icu(_)) => {
                let what = format!("initcap under the collation \"{}\" is", collation.name());
                return Err(self.unsupported(at, what));
            }
            _ => Function::Text(TextFunction::InitCap { is_ascii_alone: *collation == Collation::C }),
        })
    }

    /// Builds a call that is an expression of its own. The arguments have the types of the call.
    fn built_call(
        &self,
        call: BuiltCall,
        mut arguments: Vec<TypedExpr>,
        result: SqlType,
        at: usize,
    ) -> Result<Expr, FilterError> {
        if call == BuiltCall::Concat {
            return self.concat(None, arguments, at);
        }
        if let BuiltCall::Array(function) = call {
            return self.array_call(function, arguments, at);
        }
        if call == BuiltCall::ConcatWithSeparator {
            let separator = arguments.remove(0);
            return self.concat(Some(separator), arguments, at);
        }
        let (Some(right), Some(left), true) = (arguments.pop(), arguments.pop(), arguments.is_empty()) else {
            unreachable!("the other calls have two arguments: {call:?}");
        };
        let pair = |left: TypedExpr, right: TypedExpr| Box::new([left.expr, right.expr]);
        Ok(match call {
            BuiltCall::Like => self.like("~~", left, right, at)?.expr,
            BuiltCall::NotLike => self.like("!~~", left, right, at)?.expr,
            BuiltCall::ArrayCat => Expr::ArrayCat(pair(left, right)),
            BuiltCall::ArrayAppend => Expr::ArrayPush { end: ArrayEnd::Back, operands: pair(left, right) },
            BuiltCall::ArrayPrepend => Expr::ArrayPush { end: ArrayEnd::Front, operands: pair(right, left) },
            BuiltCall::Zone => self.zone(left, right, result, at)?,
            BuiltCall::Lower
            | BuiltCall::Upper
            | BuiltCall::InitCap
            | BuiltCall::Concat
            | BuiltCall::ConcatWithSeparator
            | BuiltCall::TruncateInZone
            | BuiltCall::Array(_) => unreachable!("built elsewhere: {call:?}"),
        })
    }

    fn concat(
        &self,
        separator: Option<TypedExpr>,
        arguments: Vec<TypedExpr>,
        at: usize,
    ) -> Result<Expr, FilterError> {
        let one = |argument: TypedExpr| {
            let typed = match argument.kind {
                SqlType::Unknown => self.coerce(argument, SqlType::TEXT, at)?,
                SqlType::Opaque(_) | SqlType::Scalar(_) | SqlType::Array(_) => argument,
            };
            Ok((typed.expr, typed.kind))
        };
        Ok(Expr::Concat {
            separator: separator.map(|separator| Box::new(separator.expr)),
            items: arguments.into_iter().map(one).collect::<Result<_, FilterError>>()?,
        })
    }

    /// Builds `timezone(zone, moment)`, also written `moment AT TIME ZONE zone`.
    fn zone(
        &self,
        zone: TypedExpr,
        moment: TypedExpr,
        result: SqlType,
        at: usize,
    ) -> Result<Expr, FilterError> {
        let Some(east) = self.east_of_greenwich(zone, at)? else { return Ok(Expr::NULL) };
        let unary = match result {
            SqlType::Scalar(Scalar::Timestamp) => Unary::Shift(east * MICROS_PER_SECOND),
            SqlType::Scalar(Scalar::Timestamptz) => Unary::Shift(-east * MICROS_PER_SECOND),
            _ => match i32::try_from(-east) {
                Ok(west) => Unary::MoveZone(west),
                Err(_) => return Err(self.unsupported(at, "a time zone so far away is".to_owned())),
            },
        };
        Ok(Expr::unary(unary, moment.expr))
    }

    /// Returns the seconds east of Greenwich of a constant zone; `None` is NULL. Zones with rules
    /// are refused: a tzdata in this crate could differ from the server's version.
    fn east_of_greenwich(&self, zone: TypedExpr, at: usize) -> Result<Option<i64>, FilterError> {
        match self.fold(zone.expr, at)? {
            Expr::Const(None) => Ok(None),
            Expr::Const(Some(SqlValue::Text(name))) => zone_offset(&name).map(Some).ok_or_else(|| {
                let what = format!("the time zone \"{name}\" (but UTC, an offset or an interval) is");
                self.unsupported(at, what)
            }),
            Expr::Const(Some(SqlValue::Interval(interval))) => {
                if interval.months != 0 || interval.days != 0 {
                    let message = "interval time zone must not include months or days".to_owned();
                    return Err(self.invalid(at, "22023", message));
                }
                Ok(Some(interval.micros / MICROS_PER_SECOND))
            }
            _ => Err(self.unsupported(at, "a time zone that is not a constant is".to_owned())),
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
            ChoiceFunction::NullIf => return self.null_if(typed, at),
        };
        let kind = self.common(name, &typed, at)?;
        let collation = self.merge(&typed, at)?;
        let items = typed.into_iter().map(|item| Ok(self.coerce(item, kind, at)?.expr));
        let items = items.collect::<Result<Vec<_>, FilterError>>()?;
        let expr = match choice {
            ChoiceFunction::Coalesce => Expr::Coalesce(items),
            ChoiceFunction::Greatest | ChoiceFunction::Least | ChoiceFunction::NullIf => {
                self.check_operands(kind, collation, Comparison::Less, at)?;
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

    /// Types NULLIF as `=` of both. The result is the left operand, with the type that
    /// `=` gives it.
    fn null_if(&self, mut typed: Vec<TypedExpr>, at: usize) -> Result<TypedExpr, FilterError> {
        let (Some(right), Some(left)) = (typed.pop(), typed.pop()) else {
            unreachable!("the parser counts the operands");
        };
        let kind = match resolve::binary("=", left.kind, right.kind) {
            OperatorResolution::Found { left, .. } => left,
            _ if matches!(left.kind, SqlType::Array(_)) => left.kind,
            _ => right.kind,
        };
        let collation = self.merge([&left, &right], at)?;
        match self.binary("=", left, right, at)?.expr {
            Expr::Binary(Binary::Compare { ignore_blanks, .. }, operands) => {
                let collation = if kind.is_collatable() { collation } else { Default::default() };
                Ok(TypedExpr { expr: Expr::NullIf { ignore_blanks, operands }, kind, collation })
            }
            _ => Err(self.unsupported(at, format!("NULLIF of {kind} is"))),
        }
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
                    let collation = operand.collation.of_case_operand();
                    let held = TypedExpr { expr: Expr::CaseOperand, kind: operand.kind, collation };
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
