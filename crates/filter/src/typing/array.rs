//! Typing of arrays: ARRAY[…], subscripts, and operators on whole arrays.

use forebay_values::{ArrayEnd, Scalar};

use super::common_type;
use super::expr::{Binary, Comparison, Expr};
use super::sql_type::{Category, SqlType};
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::syntax::{Subscript, SyntaxKind, SyntaxTree};

const MAX_DIMENSIONS: usize = 6;

impl Typer<'_> {
    /// Types `ARRAY[…]`. `target` is the element type of an enclosing cast, if any.
    pub(super) fn array(
        &self,
        items: &[SyntaxTree],
        at: usize,
        target: Option<Scalar>,
    ) -> Result<TypedExpr, FilterError> {
        let one = |item: &SyntaxTree| match &item.kind {
            SyntaxKind::Array(inner) => self.array(inner, item.at, target),
            _ => self.tree(item),
        };
        let typed = items.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        let nested = typed.iter().any(|item| matches!(item.kind, SqlType::Array(_)));
        let wanted = match target {
            Some(scalar) if nested => SqlType::Array(scalar),
            Some(scalar) => SqlType::Scalar(scalar),
            None if typed.is_empty() => {
                let message = "cannot determine type of empty array".to_owned();
                return Err(self.invalid(at, "42P18", message));
            }
            None => {
                typed.iter().try_for_each(|item| self.refuse_opaque(item.kind, at))?;
                self.common("ARRAY", &typed, at)?
            }
        };
        let (element, nested) = match wanted {
            SqlType::Array(element) => (element, true),
            SqlType::Scalar(element) => (element, false),
            SqlType::Unknown | SqlType::Opaque(_) => unreachable!("a common type is a scalar or an array"),
        };
        let collation = self.merge(&typed, at)?;
        let convert = |item: TypedExpr| match target {
            Some(_) => Ok(self.cast_to(item, wanted, at)?.expr),
            None => Ok(self.coerce(item, wanted, at)?.expr),
        };
        let items = typed.into_iter().map(convert).collect::<Result<_, FilterError>>()?;
        Ok(TypedExpr { expr: Expr::Array { nested, items }, kind: SqlType::Array(element), collation })
    }

    /// Returns the common type of the expressions. Fails with Postgres' message if there is none.
    pub(super) fn common(&self, what: &str, typed: &[TypedExpr], at: usize) -> Result<SqlType, FilterError> {
        let kinds: Vec<_> = typed.iter().map(|item| item.kind).collect();
        let common = common_type::select(&kinds).map_err(|(left, right)| {
            let (left, right) = (self.shown(left), self.shown(right));
            self.invalid(at, "42804", format!("{what} types {left} and {right} cannot be matched"))
        })?;
        match kinds.iter().find(|kind| !kind.casts_implicitly_to(common)) {
            Some(kind) => {
                let (kind, common) = (self.shown(*kind), self.shown(common));
                let message = format!("{what} could not convert type {kind} to {common}");
                Err(self.invalid(at, "42846", message))
            }
            None => Ok(common),
        }
    }

    pub(super) fn subscript(
        &self,
        base: &SyntaxTree,
        subscripts: &[Subscript],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let base = self.tree(base)?;
        self.refuse_opaque(base.kind, at)?;
        if base.kind == SqlType::Scalar(Scalar::Jsonb) {
            return self.json_subscript(base, subscripts, at);
        }
        let SqlType::Array(element) = base.kind else {
            let message = format!(
                "cannot subscript type {} because it does not support subscripting",
                self.shown(base.kind)
            );
            return Err(self.invalid(at, "42804", message));
        };
        if subscripts.len() > MAX_DIMENSIONS {
            let message = format!(
                "number of array dimensions ({}) exceeds the maximum allowed ({MAX_DIMENSIONS})",
                subscripts.len()
            );
            return Err(self.invalid(at, "54000", message));
        }
        let TypedExpr { expr, kind, collation } = base;
        let bound = |tree: &SyntaxTree| self.bound(tree);
        let sliced = subscripts.iter().any(|subscript| matches!(subscript, Subscript::Slice(..)));
        if sliced {
            // If any subscript is a slice, `[n]` means `[1:n]`.
            let one = || Some(Expr::Const(Some(forebay_values::SqlValue::Int(1))));
            let range = |subscript: &Subscript| match subscript {
                Subscript::Index(index) => Ok((one(), Some(bound(index)?))),
                Subscript::Slice(from, to) => {
                    Ok((from.as_ref().map(bound).transpose()?, to.as_ref().map(bound).transpose()?))
                }
            };
            let ranges = subscripts.iter().map(range).collect::<Result<_, FilterError>>()?;
            return Ok(TypedExpr { expr: Expr::Slice(Box::new(expr), ranges), kind, collation });
        }
        let index = |subscript: &Subscript| match subscript {
            Subscript::Index(index) | Subscript::Slice(Some(index), _) => bound(index),
            Subscript::Slice(None, _) => unreachable!("no slice among indexes"),
        };
        let indexes = subscripts.iter().map(index).collect::<Result<_, _>>()?;
        Ok(TypedExpr {
            expr: Expr::Index(Box::new(expr), indexes),
            kind: SqlType::Scalar(element),
            collation,
        })
    }

    /// Types a subscript as an integer.
    fn bound(&self, tree: &SyntaxTree) -> Result<Expr, FilterError> {
        let typed = self.tree(tree)?;
        match typed.kind {
            SqlType::Unknown => Ok(self.coerce(typed, SqlType::Scalar(Scalar::Int4), tree.at)?.expr),
            kind if kind.category() == Category::Number => {
                Ok(self.cast_to(typed, SqlType::Scalar(Scalar::Int4), tree.at)?.expr)
            }
            kind => {
                self.refuse_opaque(kind, tree.at)?;
                Err(self.invalid(tree.at, "42804", "array subscript must have type integer".to_owned()))
            }
        }
    }

    /// Types an operator on `anyarray`. Both operands must have one type, except for `||`.
    pub(super) fn array_operator(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let shown = format!("{} {name} {}", self.shown(left.kind), self.shown(right.kind));
        let missing = || self.no_operator("does not exist", &shown, at);
        if name == "||" {
            return self.array_concat(left, right, at)?.ok_or_else(missing);
        }
        let comparison = Comparison::of(name);
        if comparison.is_none() && !matches!(name, "@>" | "<@" | "&&") {
            return Err(missing());
        }
        let kind = match (left.kind, right.kind) {
            (SqlType::Unknown, SqlType::Unknown) => {
                return Err(self.no_operator("is not unique", &shown, at));
            }
            (SqlType::Unknown, kind @ SqlType::Array(_)) | (kind @ SqlType::Array(_), SqlType::Unknown) => {
                kind
            }
            (left, right) if left == right && matches!(left, SqlType::Array(_)) => left,
            // The constant could be a range or a multirange: Postgres finds it ambiguous.
            (SqlType::Unknown, _) if name == "@>" => {
                return Err(self.no_operator("is not unique", &shown, at));
            }
            (_, SqlType::Unknown) if name == "<@" => {
                return Err(self.no_operator("is not unique", &shown, at));
            }
            _ => return Err(missing()),
        };
        let (left, right) = (self.coerce(left, kind, at)?, self.coerce(right, kind, at)?);
        let ignore_blanks = kind == SqlType::Array(Scalar::Bpchar);
        let collation = self.merge([&left, &right], at)?;
        self.check_operands(kind, collation, comparison.unwrap_or(Comparison::Equal), at)?;
        let (left, right) = match comparison {
            Some(comparison) => self.in_order(comparison, left, right, at)?,
            None => (left, right),
        };
        let binary = match (comparison, name) {
            (Some(comparison), _) => Binary::Compare { comparison, ignore_blanks },
            (None, "@>") => Binary::Contains { ignore_blanks, swapped: false },
            (None, "<@") => Binary::Contains { ignore_blanks, swapped: true },
            (None, _) => Binary::Overlaps { ignore_blanks },
        };
        Ok(TypedExpr::boolean(Expr::Binary(binary, Box::new([left.expr, right.expr]))))
    }

    /// Types `||` on arrays. `None`: Postgres has no such operator.
    pub(super) fn array_concat(
        &self,
        left: TypedExpr,
        right: TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        let collation = self.merge([&left, &right], at)?;
        let element = |kind: SqlType| match kind {
            SqlType::Array(scalar) => SqlType::Scalar(scalar),
            other => other,
        };
        let array_on = (matches!(left.kind, SqlType::Array(_)), matches!(right.kind, SqlType::Array(_)));
        let both = match (left.kind, right.kind) {
            (SqlType::Unknown, array) => (array, array),
            (array, SqlType::Unknown) => (array, array),
            both => both,
        };
        let Ok(SqlType::Scalar(common)) = common_type::select(&[element(both.0), element(both.1)]) else {
            return Ok(None);
        };
        if !(element(both.0).casts_implicitly_to(SqlType::Scalar(common))
            && element(both.1).casts_implicitly_to(SqlType::Scalar(common)))
        {
            return Ok(None);
        }
        let array = SqlType::Array(common);
        let unknown = left.kind == SqlType::Unknown || right.kind == SqlType::Unknown;
        let expr = match array_on {
            (true, true) => Expr::ArrayCat(self.pair(left, array, right, array, at)?),
            _ if unknown => Expr::ArrayCat(self.pair(left, array, right, array, at)?),
            (true, false) => {
                let operands = self.pair(left, array, right, SqlType::Scalar(common), at)?;
                Expr::ArrayPush { end: ArrayEnd::Back, operands }
            }
            (false, _) => {
                let operands = self.pair(right, array, left, SqlType::Scalar(common), at)?;
                Expr::ArrayPush { end: ArrayEnd::Front, operands }
            }
        };
        Ok(Some(TypedExpr { expr, kind: array, collation }))
    }

    fn pair(
        &self,
        left: TypedExpr,
        left_kind: SqlType,
        right: TypedExpr,
        right_kind: SqlType,
        at: usize,
    ) -> Result<Box<[Expr; 2]>, FilterError> {
        Ok(Box::new([self.coerce(left, left_kind, at)?.expr, self.coerce(right, right_kind, at)?.expr]))
    }
}
