//! Typing: turns syntax trees into typed expressions by Postgres' rules (parse_expr.c,
//! parse_coerce.c).
//!
//! Invariant: a typed expression evaluates as in Postgres. Constructs, types and operators that are
//! not supported are refused with an error that names them.
//! Enforced by: `tests/it/agreement.rs` and `tests/it/catalog.rs`.

mod array;
mod array_call;
mod call;
pub(crate) mod catalog;
mod coerce;
mod collate;
mod common_type;
mod condition;
mod enums;
pub(crate) mod expr;
mod fold;
pub(crate) mod foreign_type;
pub(crate) mod functions;
mod growth;
mod json;
mod nearest;
mod operator;
mod polymorphic;
mod range;
pub(crate) mod resolve;
mod row;
pub(crate) mod sql_type;
mod subquery;

use collate::CollationSource;
use expr::{Binary, Comparison, Expr, Unary};
pub(crate) use fold::each;
pub(crate) use operator::OPERATORS;
pub(crate) use sql_type::SqlType;
pub(crate) use subquery::key_class;

use std::cell::RefCell;

use forebay_values::{Collation, EvalError, Scalar, SqlValue, like};

use crate::error::FilterError;
use crate::eval::json::JsonOperator;
use crate::postgres_rules::PostgresRules;
use crate::schema::{Schema, TypeKind};
use crate::subquery::SubquerySet;
use crate::syntax::{IsTest, SyntaxKind, SyntaxTree};

/// Types a clause. Fails if it is not a boolean. Also returns the positions of the casts of texts,
/// other than constants, to dates and times.
pub(crate) fn clause(
    tree: &SyntaxTree,
    text: &str,
    schema: &Schema,
    rules: PostgresRules<'_>,
    sets: &[SubquerySet],
) -> Result<(Expr, Vec<usize>), FilterError> {
    let typer = Typer { text, schema, rules, time_casts: RefCell::default(), sets };
    let expr = typer.condition(tree, "WHERE")?;
    typer.check_row_sets(&expr, true, tree.at)?;
    let expr = typer.fold(expr, tree.at)?;
    Ok((expr, typer.time_casts.into_inner()))
}

/// An expression with its type and the source of its collation.
#[derive(Clone, Debug)]
pub(crate) struct TypedExpr {
    pub(crate) expr: Expr,
    pub(crate) kind: SqlType,
    pub(crate) collation: CollationSource,
}

impl TypedExpr {
    fn new(expr: Expr, kind: SqlType) -> Self {
        TypedExpr { expr, kind, collation: CollationSource::default() }
    }

    fn boolean(expr: Expr) -> Self {
        TypedExpr::new(expr, SqlType::BOOL)
    }
}

pub(crate) struct Typer<'s> {
    text: &'s str,
    schema: &'s Schema,
    /// Which conditions Postgres may decide.
    rules: PostgresRules<'s>,
    /// Positions of the casts of texts, other than constants, to dates and times.
    time_casts: RefCell<Vec<usize>>,
    /// Sets of the clause's subqueries.
    sets: &'s [SubquerySet],
}

impl Typer<'_> {
    fn invalid(&self, at: usize, sqlstate: &'static str, message: String) -> FilterError {
        FilterError::invalid(self.text, at, sqlstate, message)
    }

    /// `what` includes the verb: `the type jsonb is`.
    fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::unsupported_construct(self.text, at, what)
    }

    /// Evaluates constant parts.
    fn fold(&self, expr: Expr, at: usize) -> Result<Expr, FilterError> {
        fold::fold(expr).map_err(|error| match error.is_undecided() {
            true => self.constant_part(&error, at),
            false => self.invalid(at, error.sqlstate(), error.to_string()),
        })
    }

    fn constant_part(&self, error: &EvalError, at: usize) -> FilterError {
        self.unsupported(at, format!("a constant part ({error}) is"))
    }

    /// Returns whether texts are parsed as in Postgres 16 and newer.
    fn modern(&self) -> bool {
        self.schema.server_version >= 16
    }

    fn tree(&self, tree: &SyntaxTree) -> Result<TypedExpr, FilterError> {
        let at = tree.at;
        match &tree.kind {
            SyntaxKind::Name(parts) => self.column(parts, at),
            SyntaxKind::Text(text) => {
                Ok(TypedExpr::new(Expr::Const(Some(SqlValue::text(text).into_owned())), SqlType::Unknown))
            }
            SyntaxKind::Number(number) => self.number(number, at),
            SyntaxKind::Bool(value) => Ok(TypedExpr::boolean(Expr::truth(*value))),
            SyntaxKind::Null => Ok(TypedExpr::new(Expr::NULL, SqlType::Unknown)),
            SyntaxKind::And(operands) => Ok(TypedExpr::boolean(Expr::And(self.booleans(operands, "AND")?))),
            SyntaxKind::Or(operands) => Ok(TypedExpr::boolean(Expr::Or(self.booleans(operands, "OR")?))),
            SyntaxKind::Not(operand) => {
                Ok(TypedExpr::boolean(Expr::Not(Box::new(self.condition(operand, "NOT")?))))
            }
            SyntaxKind::Unary(operator, operand) => {
                let operand = self.tree(operand)?;
                self.prefix(operator, operand, at)
            }
            SyntaxKind::Binary(operator, operands) => {
                let [left, right] = &**operands;
                self.compare(operator, left, right, at)
            }
            SyntaxKind::Row(_) => {
                Err(self.unsupported(at, "rows (but comparisons of two rows, IN and IS NULL) are".to_owned()))
            }
            SyntaxKind::Between { negated, symmetric, operands } => {
                self.between(*negated, *symmetric, operands, at)
            }
            SyntaxKind::In { negated, operand, list } => match &operand.kind {
                SyntaxKind::Row(items) => self.row_in(*negated, items, list, at),
                _ => self.in_list(*negated, operand, list, at),
            },
            SyntaxKind::InSelect { negated, operand, select } => {
                self.in_select(*negated, operand, select, at)
            }
            SyntaxKind::Exists(_) => unreachable!("EXISTS is rewritten as IN before"),
            SyntaxKind::Quantified { operator, all, operands } => {
                let (left, right) = (self.tree(&operands[0])?, self.tree(&operands[1])?);
                self.quantified(operator, *all, left, right, at)
            }
            SyntaxKind::Is { negated, test, operand } => match (&operand.kind, test) {
                (SyntaxKind::Row(items), IsTest::Null) => self.row_is_null(*negated, items, operand.at),
                _ => self.is(*negated, *test, operand),
            },
            SyntaxKind::Distinct { negated, operands } => match (&operands[0].kind, &operands[1].kind) {
                (SyntaxKind::Row(left), SyntaxKind::Row(right)) => {
                    self.row_distinct(*negated, left, right, at)
                }
                _ => self.distinct_trees(*negated, operands, at),
            },
            SyntaxKind::Cast(operand, name) => self.cast(operand, name, at),
            SyntaxKind::Collate(operand, name) => self.collate(operand, name, at),
            SyntaxKind::Call(name, arguments) => self.call(name, arguments, at),
            SyntaxKind::Choice(choice, arguments) => self.choice(*choice, arguments, at),
            SyntaxKind::Case { operand, arms, otherwise } => {
                self.case(operand.as_deref(), arms, otherwise.as_deref(), at)
            }
            SyntaxKind::Array(items) => self.array(items, at, None),
            SyntaxKind::Subscript(base, subscripts) => self.subscript(base, subscripts, at),
        }
    }

    fn column(&self, parts: &[String], at: usize) -> Result<TypedExpr, FilterError> {
        let index = find_column(parts, self.schema, self.text, at)?;
        let column_type = &self.schema.columns[index].column_type;
        let kind = column_type.sql_type().unwrap_or(SqlType::Opaque(index));
        let collation =
            if kind.is_collatable() { CollationSource::column(index) } else { CollationSource::default() };
        Ok(TypedExpr { expr: Expr::Column { index, kind }, kind, collation })
    }

    fn number(&self, number: &str, at: usize) -> Result<TypedExpr, FilterError> {
        let kind = match number.parse::<i64>() {
            Ok(value) if i32::try_from(value).is_ok() => Scalar::Int4,
            Ok(_) => Scalar::Int8,
            Err(_) => Scalar::Numeric,
        };
        let constant =
            TypedExpr::new(Expr::Const(Some(SqlValue::text(number).into_owned())), SqlType::Unknown);
        self.coerce(constant, SqlType::Scalar(kind), at)
    }

    fn booleans(&self, operands: &[SyntaxTree], what: &str) -> Result<Vec<Expr>, FilterError> {
        operands.iter().map(|tree| self.condition(tree, what)).collect()
    }

    /// Casts to a boolean (coerce_to_boolean).
    fn boolean(&self, typed: TypedExpr, what: &str, at: usize) -> Result<Expr, FilterError> {
        match typed.kind {
            SqlType::Unknown | SqlType::BOOL => Ok(self.coerce(typed, SqlType::BOOL, at)?.expr),
            kind => {
                self.refuse_opaque(kind, at)?;
                let kind = self.shown(kind);
                let message = format!("argument of {what} must be type boolean, not type {kind}");
                Err(self.invalid(at, "42804", message))
            }
        }
    }

    /// Fails, naming the type, if it is opaque.
    fn refuse_opaque(&self, kind: SqlType, at: usize) -> Result<(), FilterError> {
        match kind {
            SqlType::Opaque(index) => {
                let name = &self.schema.columns[index].column_type.name;
                Err(self.unsupported(at, format!("the type {name} is")))
            }
            SqlType::Unknown | SqlType::Scalar(_) | SqlType::Array(_) => Ok(()),
        }
    }

    fn is(&self, negated: bool, test: IsTest, operand: &SyntaxTree) -> Result<TypedExpr, FilterError> {
        let expr = match test {
            IsTest::Null => {
                let typed = self.tree(operand)?;
                if let SqlType::Opaque(index) = typed.kind
                    && self.schema.columns[index].column_type.kind == TypeKind::Composite
                {
                    return Err(self.unsupported(operand.at, "IS NULL of a composite value is".to_owned()));
                }
                typed.expr
            }
            IsTest::True => self.condition(operand, &format!("IS {}TRUE", not(negated)))?,
            IsTest::False => self.condition(operand, &format!("IS {}FALSE", not(negated)))?,
            IsTest::Unknown => self.condition(operand, &format!("IS {}UNKNOWN", not(negated)))?,
        };
        Ok(TypedExpr::boolean(Expr::Is { negated, test, operand: Box::new(expr) }))
    }

    /// Types BETWEEN as Postgres does: `a >= low AND a <= high`.
    fn between(
        &self,
        negated: bool,
        symmetric: bool,
        operands: &[SyntaxTree; 3],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let [operand, low, high] = operands;
        let compare = |operator: &str, bound: &SyntaxTree| -> Result<Expr, FilterError> {
            Ok(self.compare(operator, operand, bound, at)?.expr)
        };
        let within = |low: &SyntaxTree, high: &SyntaxTree| -> Result<Expr, FilterError> {
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
        Ok(TypedExpr::boolean(expr))
    }

    /// Types IN. Constants that share a type with the operand become one array; other items are
    /// compared one by one.
    fn in_list(
        &self,
        negated: bool,
        operand: &SyntaxTree,
        list: &[SyntaxTree],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let (operator, word) = if negated { ("<>", "<> ALL") } else { ("=", "= ANY") };
        let left = self.tree(operand)?;
        let items = list.iter().map(|item| self.tree(item)).collect::<Result<Vec<_>, _>>()?;
        let constants: Vec<_> = items.iter().filter(|item| !has_column(&item.expr)).collect();
        let kinds: Vec<_> = [left.kind].into_iter().chain(constants.iter().map(|item| item.kind)).collect();
        let common = if constants.len() > 1 { common_type::select(&kinds).ok() } else { None };
        let (mut alternatives, mut rest) = (Vec::new(), Vec::new());
        match common {
            Some(SqlType::Scalar(scalar)) => {
                let (mut elements, mut collation) = (Vec::new(), CollationSource::default());
                for item in items {
                    if has_column(&item.expr) {
                        rest.push(item);
                    } else {
                        let element = self.coerce(item, SqlType::Scalar(scalar), at)?;
                        collation =
                            self.merge([&TypedExpr { collation, ..element.clone() }, &element], at)?;
                        elements.push(element.expr);
                    }
                }
                let expr = Expr::Array { nested: false, items: elements };
                let array = TypedExpr { expr, kind: SqlType::Array(scalar), collation };
                alternatives.push(self.quantified(operator, negated, left.clone(), array, at)?.expr);
            }
            Some(SqlType::Array(_)) => return Err(self.unsupported(at, format!("{word} over arrays is"))),
            Some(SqlType::Unknown | SqlType::Opaque(_)) | None => rest = items,
        }
        for item in rest {
            alternatives.push(self.binary(operator, left.clone(), item, at)?.expr);
        }
        let expr = match alternatives.len() {
            1 => alternatives.swap_remove(0),
            _ if negated => Expr::And(alternatives),
            _ => Expr::Or(alternatives),
        };
        Ok(TypedExpr::boolean(expr))
    }

    fn distinct_trees(
        &self,
        negated: bool,
        operands: &[SyntaxTree; 2],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let (left, right) = (self.tree(&operands[0])?, self.tree(&operands[1])?);
        self.distinct(negated, left, right, at)
    }

    fn distinct(
        &self,
        negated: bool,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        // IS DISTINCT FROM NULL is a null test (make_nulltest_from_distinct).
        let is_null = |typed: &TypedExpr| typed.expr == Expr::NULL && typed.kind == SqlType::Unknown;
        if is_null(&right) || is_null(&left) {
            let operand = if is_null(&right) { left } else { right };
            self.refuse_opaque(operand.kind, at)?;
            let test = Expr::Is { negated: !negated, test: IsTest::Null, operand: Box::new(operand.expr) };
            return Ok(TypedExpr::boolean(test));
        }
        let equal = self.binary("=", left, right, at)?;
        match equal.expr {
            Expr::Binary(Binary::Compare { comparison: Comparison::Equal, ignore_blanks }, operands) => {
                Ok(TypedExpr::boolean(Expr::Distinct { negated, ignore_blanks, operands }))
            }
            other => unreachable!("= is a comparison: {other:?}"),
        }
    }

    fn collation(&self, collation: CollationSource) -> &Collation {
        collation.find(self.schema)
    }
}

/// Returns the position of the column with this dotted name.
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
            return Err(FilterError::unsupported_construct(text, at, what));
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

/// Returns whether the outermost operation of an expression never fails. Its operands may.
pub(crate) fn never_fails(expr: &Expr) -> bool {
    let compares = |binary: &Binary| {
        use Binary::*;
        let is_comparison = matches!(binary, Compare { .. } | Contains { .. } | Overlaps { .. });
        is_comparison || matches!(binary, Range(_) | RangeHas { .. } | Multirange(_) | Inet(_) | ConcatBytes)
    };
    match expr {
        Expr::Const(_)
        | Expr::Column { .. }
        | Expr::And(_)
        | Expr::Or(_)
        | Expr::Not(_)
        | Expr::Is { .. }
        | Expr::Distinct { .. }
        | Expr::RowComparison { .. }
        | Expr::NullIf { .. }
        | Expr::Coalesce(_)
        | Expr::Case { .. }
        | Expr::CaseOperand
        | Expr::InSet { .. } => true,
        Expr::Postgres { .. } => false,
        // On some texts, a pattern that ends in the escape character fails, as does a long one.
        Expr::Binary(Binary::Like { .. }, operands) => {
            matches!(&operands[1], Expr::Const(Some(SqlValue::Text(pattern)))
                if !pattern.ends_with('\\') && like::is_bounded(pattern))
        }
        // Containment compares as many levels as the operand with fewer levels has.
        Expr::Binary(Binary::Json(JsonOperator::Contains { .. }), operands) => {
            operands.iter().any(json::is_shallow)
        }
        Expr::Binary(Binary::Json(operator), _) => !operator.may_fail(),
        Expr::Binary(Binary::RangeArithmetic(arithmetic, _), _) => arithmetic.never_fails(),
        Expr::Binary(operator, _) | Expr::Quantified { operator, .. } => compares(operator),
        // Constant lists are folded, so these hold columns. Arrays of different dimensions can't be
        // nested in one.
        Expr::Array { nested, .. } => !nested,
        // The cast of an enum to text is its label.
        Expr::Unary(Unary::Cast { from: SqlType::Scalar(Scalar::Enum(_)), .. }, _) => true,
        Expr::Unary(Unary::Cast { from: SqlType::Scalar(from), to: SqlType::Scalar(to), .. }, _) => {
            match to {
                Scalar::Int4 => *from == Scalar::Int2,
                Scalar::Int8 | Scalar::Numeric | Scalar::Float4 | Scalar::Float8 => from.is_integer(),
                _ => false,
            }
        }
        Expr::Unary(Unary::Range(_), _) => true,
        // A row may have a label that is newer than the filter.
        Expr::Position { .. } | Expr::Label { .. } | Expr::ArrayCall { .. } => false,
        Expr::Call { function, .. } => function.never_fails(),
        Expr::Unary(..)
        | Expr::Index(..)
        | Expr::Slice(..)
        | Expr::Extreme { .. }
        | Expr::Concat { .. }
        | Expr::ArrayCat(_)
        | Expr::ArrayPush { .. } => false,
    }
}

/// Returns whether Postgres may have a value where the outermost operation of an expression fails.
/// If this is false of all parts, no row may be undecided: large transactions rely on it.
pub(crate) fn may_be_undecided(expr: &Expr) -> bool {
    let is_surely_read = |kind: &SqlType| {
        use Scalar::*;
        match kind {
            SqlType::Scalar(scalar) => {
                // An enum's label is a text. `Expr::Position` fails on labels that it doesn't have.
                matches!(scalar, Bool | Int2 | Int4 | Int8 | Text | Varchar | Bpchar | Uuid | Enum(_))
            }
            SqlType::Array(_) => false,
            // It is only tested for NULL.
            SqlType::Unknown | SqlType::Opaque(_) => true,
        }
    };
    match expr {
        Expr::Column { kind, .. } => !is_surely_read(kind),
        Expr::Binary(Binary::Like { casing: Some(_), .. }, _)
        | Expr::Quantified { operator: Binary::Like { casing: Some(_), .. }, .. } => true,
        // Large arrays of containers are left to Postgres, however shallow they are.
        Expr::Binary(Binary::Json(JsonOperator::Contains { .. }), _) => true,
        expr => !never_fails(expr),
    }
}

/// Returns whether an expression refers to a column (contain_vars_of_level).
fn has_column(expr: &Expr) -> bool {
    let mut found = false;
    fold::each(expr, &mut |expr| found |= matches!(expr, Expr::Column { .. } | Expr::Postgres { .. }));
    found
}
