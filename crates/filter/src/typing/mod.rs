//! From trees to typed expressions, by Postgres' rules (parse_expr.c, parse_coerce.c).
//!
//! Invariant: what comes out evaluates as Postgres would, or it doesn't come out: every construct, type and operator that
//! isn't known here is refused by name.

mod array;
mod call;
pub(crate) mod catalog;
mod coerce;
mod collate;
mod common;
pub(crate) mod expr;
mod fold;
pub(crate) mod kind;
mod operator;
pub(crate) mod resolve;

use collate::Collated;
use expr::{Binary, Comparison, Expr, Unary};
pub(crate) use fold::each;
pub(crate) use kind::{Scalar, Type};

use crate::error::{FilterError, location};
use crate::schema::{Collation, Schema, TypeKind};
use crate::syntax::{Kind, Test, Tree};
use crate::value::Value;

/// Types a clause; it must be a boolean.
pub(crate) fn clause(tree: &Tree, text: &str, schema: &Schema) -> Result<Expr, FilterError> {
    let typer = Typer::new(text, schema);
    let typed = typer.tree(tree)?;
    let expr = typer.boolean(typed, "WHERE", tree.at)?;
    typer.fold(expr, tree.at)
}

/// An expression with its type and where its collation comes from.
#[derive(Clone, Debug)]
pub(crate) struct Typed {
    pub(crate) expr: Expr,
    pub(crate) kind: Type,
    pub(crate) collated: Collated,
}

impl Typed {
    fn new(expr: Expr, kind: Type) -> Self {
        Typed { expr, kind, collated: Collated::default() }
    }

    fn boolean(expr: Expr) -> Self {
        Typed::new(expr, Type::BOOL)
    }
}

pub(crate) struct Typer<'s> {
    text: &'s str,
    schema: &'s Schema,
}

impl<'s> Typer<'s> {
    fn new(text: &'s str, schema: &'s Schema) -> Self {
        Typer { text, schema }
    }

    fn invalid(&self, at: usize, sqlstate: &'static str, message: String) -> FilterError {
        FilterError::invalid(self.text, at, sqlstate, message)
    }

    /// `what` says it whole: `the type jsonb is`.
    fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::Unsupported { what, location: location(self.text, at) }
    }

    /// With constant parts evaluated.
    fn fold(&self, expr: Expr, at: usize) -> Result<Expr, FilterError> {
        fold::fold(expr).map_err(|error| match error.sqlstate() {
            "0A000" => self.unsupported(at, format!("a constant part ({error}) is")),
            sqlstate => self.invalid(at, sqlstate, error.to_string()),
        })
    }

    /// Whether texts are read as Postgres 16 and newer read them.
    fn modern(&self) -> bool {
        self.schema.server_version >= 16
    }

    fn tree(&self, tree: &Tree) -> Result<Typed, FilterError> {
        let at = tree.at;
        match &tree.kind {
            Kind::Name(parts) => self.column(parts, at),
            Kind::Text(text) => {
                Ok(Typed::new(Expr::Const(Some(Value::text(text).into_owned())), Type::Unknown))
            }
            Kind::Number(number) => self.number(number, at),
            Kind::Bool(value) => Ok(Typed::boolean(Expr::truth(*value))),
            Kind::Null => Ok(Typed::new(Expr::NULL, Type::Unknown)),
            Kind::And(operands) => Ok(Typed::boolean(Expr::And(self.booleans(operands, "AND")?))),
            Kind::Or(operands) => Ok(Typed::boolean(Expr::Or(self.booleans(operands, "OR")?))),
            Kind::Not(operand) => {
                let typed = self.tree(operand)?;
                let operand = self.boolean(typed, "NOT", operand.at)?;
                Ok(Typed::boolean(Expr::Not(Box::new(operand))))
            }
            Kind::Unary(operator, operand) => {
                let operand = self.tree(operand)?;
                self.prefix(operator, operand, at)
            }
            Kind::Binary(operator, operands) => {
                let (left, right) = (self.tree(&operands[0])?, self.tree(&operands[1])?);
                self.binary(operator, left, right, at)
            }
            Kind::Between { negated, symmetric, operands } => {
                self.between(*negated, *symmetric, operands, at)
            }
            Kind::In { negated, operand, list } => self.in_list(*negated, operand, list, at),
            Kind::Quantified { operator, all, operands } => {
                let (left, right) = (self.tree(&operands[0])?, self.tree(&operands[1])?);
                self.quantified(operator, *all, left, right, at)
            }
            Kind::Is { negated, test, operand } => self.is(*negated, *test, operand),
            Kind::Distinct { negated, operands } => {
                let (left, right) = (self.tree(&operands[0])?, self.tree(&operands[1])?);
                self.distinct(*negated, left, right, at)
            }
            Kind::Cast(operand, name) => self.cast(operand, name, at),
            Kind::Collate(operand, name) => self.collate(operand, name, at),
            Kind::Call(name, arguments) => self.call(name, arguments, at),
            Kind::Choice(choice, arguments) => self.choice(*choice, arguments, at),
            Kind::Case { operand, arms, otherwise } => {
                self.case(operand.as_deref(), arms, otherwise.as_deref(), at)
            }
            Kind::Array(items) => self.array(items, at, None),
            Kind::Subscript(base, subscripts) => self.subscript(base, subscripts, at),
        }
    }

    fn column(&self, parts: &[String], at: usize) -> Result<Typed, FilterError> {
        let index = find_column(parts, self.schema, self.text, at)?;
        let column_type = &self.schema.columns[index].column_type;
        let kind = column_type.known().unwrap_or(Type::Opaque(index));
        let collated = if kind.is_collatable() { Collated::column(index) } else { Collated::default() };
        Ok(Typed { expr: Expr::Column { index, kind }, kind, collated })
    }

    fn number(&self, number: &str, at: usize) -> Result<Typed, FilterError> {
        let kind = match number.parse::<i64>() {
            Ok(value) if i32::try_from(value).is_ok() => Scalar::Int4,
            Ok(_) => Scalar::Int8,
            Err(_) => Scalar::Numeric,
        };
        let constant = Typed::new(Expr::Const(Some(Value::text(number).into_owned())), Type::Unknown);
        self.coerce(constant, Type::Scalar(kind), at)
    }

    fn booleans(&self, operands: &[Tree], what: &str) -> Result<Vec<Expr>, FilterError> {
        let one = |tree: &Tree| self.boolean(self.tree(tree)?, what, tree.at);
        operands.iter().map(one).collect()
    }

    /// coerce_to_boolean.
    fn boolean(&self, typed: Typed, what: &str, at: usize) -> Result<Expr, FilterError> {
        match typed.kind {
            Type::Unknown | Type::BOOL => Ok(self.coerce(typed, Type::BOOL, at)?.expr),
            kind => {
                self.refuse_opaque(kind, at)?;
                let message = format!("argument of {what} must be type boolean, not type {kind}");
                Err(self.invalid(at, "42804", message))
            }
        }
    }

    /// Types that we can't see into are named.
    fn refuse_opaque(&self, kind: Type, at: usize) -> Result<(), FilterError> {
        match kind {
            Type::Opaque(index) => {
                let column_type = &self.schema.columns[index].column_type;
                let hint =
                    if column_type.kind == TypeKind::Enum { " (an enum, but for = and ::text)" } else { "" };
                Err(self.unsupported(at, format!("the type {}{hint} is", column_type.name)))
            }
            Type::Unknown | Type::Scalar(_) | Type::Array(_) => Ok(()),
        }
    }

    fn is_enum(&self, kind: Type) -> bool {
        matches!(kind, Type::Opaque(index) if self.schema.columns[index].column_type.kind == TypeKind::Enum)
    }

    fn is(&self, negated: bool, test: Test, operand: &Tree) -> Result<Typed, FilterError> {
        let typed = self.tree(operand)?;
        let expr = match (test, typed.kind) {
            (Test::Null, Type::Opaque(index)) => {
                if self.schema.columns[index].column_type.kind == TypeKind::Composite {
                    return Err(self.unsupported(operand.at, "IS NULL of a composite value is".to_owned()));
                }
                typed.expr
            }
            (Test::Null, _) => typed.expr,
            (Test::True, _) => self.boolean(typed, &format!("IS {}TRUE", not(negated)), operand.at)?,
            (Test::False, _) => self.boolean(typed, &format!("IS {}FALSE", not(negated)), operand.at)?,
            (Test::Unknown, _) => self.boolean(typed, &format!("IS {}UNKNOWN", not(negated)), operand.at)?,
        };
        Ok(Typed::boolean(Expr::Is { negated, test, operand: Box::new(expr) }))
    }

    /// As Postgres writes it: `a >= low AND a <= high`.
    fn between(
        &self,
        negated: bool,
        symmetric: bool,
        operands: &[Tree; 3],
        at: usize,
    ) -> Result<Typed, FilterError> {
        let [operand, low, high] = operands;
        let compare = |operator: &str, bound: &Tree| -> Result<Expr, FilterError> {
            Ok(self.binary(operator, self.tree(operand)?, self.tree(bound)?, at)?.expr)
        };
        let within = |low: &Tree, high: &Tree| -> Result<Expr, FilterError> {
            Ok(if negated {
                Expr::Or(vec![compare("<", low)?, compare(">", high)?])
            } else {
                Expr::And(vec![compare(">=", low)?, compare("<=", high)?])
            })
        };
        let mut expr = within(low, high)?;
        if symmetric {
            let other = within(high, low)?;
            expr = if negated { Expr::And(vec![expr, other]) } else { Expr::Or(vec![expr, other]) };
        }
        Ok(Typed::boolean(expr))
    }

    /// Constants of one type with the operand are an array; the others are compared one by one.
    fn in_list(&self, negated: bool, operand: &Tree, list: &[Tree], at: usize) -> Result<Typed, FilterError> {
        let (operator, word) = if negated { ("<>", "<> ALL") } else { ("=", "= ANY") };
        let left = self.tree(operand)?;
        let items = list.iter().map(|item| self.tree(item)).collect::<Result<Vec<_>, _>>()?;
        let constants: Vec<_> = items.iter().filter(|item| !has_column(&item.expr)).collect();
        let kinds: Vec<_> = [left.kind].into_iter().chain(constants.iter().map(|item| item.kind)).collect();
        let common = if constants.len() > 1 { common::kind(&kinds).ok() } else { None };
        let (mut alternatives, mut rest) = (Vec::new(), Vec::new());
        match common {
            Some(Type::Scalar(scalar)) => {
                let (mut elements, mut collated) = (Vec::new(), Collated::default());
                for item in items {
                    if has_column(&item.expr) {
                        rest.push(item);
                    } else {
                        let element = self.coerce(item, Type::Scalar(scalar), at)?;
                        collated = self.merge([&Typed { collated, ..element.clone() }, &element], at)?;
                        elements.push(element.expr);
                    }
                }
                let expr = Expr::Array { nested: false, items: elements };
                let array = Typed { expr, kind: Type::Array(scalar), collated };
                alternatives.push(self.quantified(operator, negated, left.clone(), array, at)?.expr);
            }
            Some(Type::Array(_)) => return Err(self.unsupported(at, format!("{word} over arrays is"))),
            Some(Type::Unknown | Type::Opaque(_)) | None => rest = items,
        }
        for item in rest {
            alternatives.push(self.binary(operator, left.clone(), item, at)?.expr);
        }
        let expr = match alternatives.len() {
            1 => alternatives.swap_remove(0),
            _ if negated => Expr::And(alternatives),
            _ => Expr::Or(alternatives),
        };
        Ok(Typed::boolean(expr))
    }

    fn distinct(&self, negated: bool, left: Typed, right: Typed, at: usize) -> Result<Typed, FilterError> {
        // A comparison with a bare NULL is a null test (make_nulltest_from_distinct).
        let is_null = |typed: &Typed| typed.expr == Expr::NULL && typed.kind == Type::Unknown;
        if is_null(&right) || is_null(&left) {
            let operand = if is_null(&right) { left } else { right };
            if matches!(operand.kind, Type::Opaque(_)) && !self.is_enum(operand.kind) {
                self.refuse_opaque(operand.kind, at)?;
            }
            let test = Expr::Is { negated: !negated, test: Test::Null, operand: Box::new(operand.expr) };
            return Ok(Typed::boolean(test));
        }
        let equal = self.binary("=", left, right, at)?;
        match equal.expr {
            Expr::Binary(Binary::Compare { comparison: Comparison::Equal, blank }, operands) => {
                Ok(Typed::boolean(Expr::Distinct { negated, blank, operands }))
            }
            other => unreachable!("= is a comparison: {other:?}"),
        }
    }

    fn collation(&self, collated: Collated) -> &Collation {
        collated.find(self.schema)
    }
}

/// The place of the column that a dotted name is of.
pub(crate) fn find_column(
    parts: &[String],
    schema: &Schema,
    text: &str,
    at: usize,
) -> Result<usize, FilterError> {
    let (qualifiers, name) = match parts.split_last() {
        Some((name, qualifiers)) => (qualifiers, name),
        None => unreachable!("a name has a part"),
    };
    match qualifiers {
        [] => {}
        [table] if schema.table.as_ref() == Some(table) => {}
        [table] => {
            let message = format!("missing FROM-clause entry for table \"{table}\"");
            return Err(FilterError::invalid(text, at, "42P01", message));
        }
        _ => {
            let what = format!("the name {} is", parts.join("."));
            return Err(FilterError::Unsupported { what, location: location(text, at) });
        }
    }
    schema.columns.iter().position(|column| column.name == *name).ok_or_else(|| {
        let message = match qualifiers {
            [] => format!("column \"{name}\" does not exist"),
            _ => format!("column {} does not exist", parts.join(".")),
        };
        FilterError::invalid(text, at, "42703", message)
    })
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}

/// Whether the part itself, whatever its operands are, has a value for every row.
pub(crate) fn never_fails(expr: &Expr) -> bool {
    let compares = |binary: &Binary| {
        matches!(binary, Binary::Compare { .. } | Binary::Contains { .. } | Binary::Overlaps { .. })
    };
    match expr {
        Expr::Const(_)
        | Expr::Column { .. }
        | Expr::And(_)
        | Expr::Or(_)
        | Expr::Not(_)
        | Expr::Is { .. }
        | Expr::Distinct { .. }
        | Expr::Coalesce(_)
        | Expr::Case { .. }
        | Expr::CaseOperand => true,
        // Only a pattern that ends with the escape character fails, and only on some texts.
        Expr::Binary(Binary::Like { .. }, operands) => {
            matches!(&operands[1], Expr::Const(Some(Value::Text(pattern))) if !pattern.ends_with('\\'))
        }
        Expr::Binary(operator, _) | Expr::Quantified { operator, .. } => compares(operator),
        // A constant list is folded, so these are of columns: arrays of different shapes don't fit
        // into one.
        Expr::Array { nested, .. } => !nested,
        Expr::Unary(Unary::Cast { from: Type::Scalar(from), to: Type::Scalar(to), .. }, _) => match to {
            Scalar::Int4 => *from == Scalar::Int2,
            Scalar::Int8 | Scalar::Numeric | Scalar::Float4 | Scalar::Float8 => from.is_integer(),
            _ => false,
        },
        Expr::Unary(..)
        | Expr::Index(..)
        | Expr::Slice(..)
        | Expr::Extreme { .. }
        | Expr::Concat(_)
        | Expr::ArrayCat(_)
        | Expr::ArrayPush { .. } => false,
    }
}

/// contain_vars_of_level.
fn has_column(expr: &Expr) -> bool {
    let mut found = false;
    fold::each(expr, &mut |expr| found |= matches!(expr, Expr::Column { .. }));
    found
}
