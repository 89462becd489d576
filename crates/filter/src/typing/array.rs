//! Arrays: ARRAY[…], subscripts, and operators on whole arrays.

use super::common;
use super::expr::{Binary, Comparison, Expr, Unary};
use super::kind::{Category, Scalar, Type};
use super::{Typed, Typer};
use crate::error::FilterError;
use crate::syntax::{Kind, Subscript, Tree};

const MAX_DIMENSIONS: usize = 6;

impl Typer<'_> {
    /// `ARRAY[…]`; `target` is the element's type where a cast gives one.
    pub(super) fn array(
        &self,
        items: &[Tree],
        at: usize,
        target: Option<Scalar>,
    ) -> Result<Typed, FilterError> {
        let one = |item: &Tree| match &item.kind {
            Kind::Array(inner) => self.array(inner, item.at, target),
            _ => self.tree(item),
        };
        let typed = items.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        let nested = typed.iter().any(|item| matches!(item.kind, Type::Array(_)));
        let wanted = match target {
            Some(scalar) if nested => Type::Array(scalar),
            Some(scalar) => Type::Scalar(scalar),
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
            Type::Array(element) => (element, true),
            Type::Scalar(element) => (element, false),
            Type::Unknown | Type::Opaque(_) => unreachable!("a common type is known"),
        };
        let collated = self.merge(&typed, at)?;
        let convert = |item: Typed| match target {
            Some(_) => Ok(self.cast_to(item, wanted, at)?.expr),
            None => Ok(self.coerce(item, wanted, at)?.expr),
        };
        let items = typed.into_iter().map(convert).collect::<Result<_, FilterError>>()?;
        Ok(Typed { expr: Expr::Array { nested, items }, kind: Type::Array(element), collated })
    }

    /// The type that all can become, or Postgres' words for why there is none.
    pub(super) fn common(&self, what: &str, typed: &[Typed], at: usize) -> Result<Type, FilterError> {
        let kinds: Vec<_> = typed.iter().map(|item| item.kind).collect();
        let common = common::kind(&kinds).map_err(|(left, right)| {
            self.invalid(at, "42804", format!("{what} types {left} and {right} cannot be matched"))
        })?;
        match kinds.iter().find(|kind| !kind.becomes(common)) {
            Some(kind) => {
                let message = format!("{what} could not convert type {kind} to {common}");
                Err(self.invalid(at, "42846", message))
            }
            None => Ok(common),
        }
    }

    pub(super) fn subscript(
        &self,
        base: &Tree,
        subscripts: &[Subscript],
        at: usize,
    ) -> Result<Typed, FilterError> {
        let base = self.tree(base)?;
        self.refuse_opaque(base.kind, at)?;
        let Type::Array(element) = base.kind else {
            let message =
                format!("cannot subscript type {} because it does not support subscripting", base.kind);
            return Err(self.invalid(at, "42804", message));
        };
        if subscripts.len() > MAX_DIMENSIONS {
            let message = format!(
                "number of array dimensions ({}) exceeds the maximum allowed ({MAX_DIMENSIONS})",
                subscripts.len()
            );
            return Err(self.invalid(at, "54000", message));
        }
        let Typed { expr, kind, collated } = base;
        let bound = |tree: &Tree| self.bound(tree);
        let sliced = subscripts.iter().any(|subscript| matches!(subscript, Subscript::Slice(..)));
        if sliced {
            // Among slices, `[n]` is `[1:n]`.
            let one = || Some(Expr::Const(Some(crate::value::Value::Int(1))));
            let range = |subscript: &Subscript| match subscript {
                Subscript::Index(index) => Ok((one(), Some(bound(index)?))),
                Subscript::Slice(from, to) => {
                    Ok((from.as_ref().map(bound).transpose()?, to.as_ref().map(bound).transpose()?))
                }
            };
            let ranges = subscripts.iter().map(range).collect::<Result<_, FilterError>>()?;
            return Ok(Typed { expr: Expr::Slice(Box::new(expr), ranges), kind, collated });
        }
        let index = |subscript: &Subscript| match subscript {
            Subscript::Index(index) | Subscript::Slice(Some(index), _) => bound(index),
            Subscript::Slice(None, _) => unreachable!("no slice among indexes"),
        };
        let indexes = subscripts.iter().map(index).collect::<Result<_, _>>()?;
        Ok(Typed { expr: Expr::Index(Box::new(expr), indexes), kind: Type::Scalar(element), collated })
    }

    /// An index, as an integer.
    fn bound(&self, tree: &Tree) -> Result<Expr, FilterError> {
        let typed = self.tree(tree)?;
        match typed.kind {
            Type::Unknown => Ok(self.coerce(typed, Type::Scalar(Scalar::Int4), tree.at)?.expr),
            kind if kind.category() == Category::Number => {
                Ok(self.cast_to(typed, Type::Scalar(Scalar::Int4), tree.at)?.expr)
            }
            kind => {
                self.refuse_opaque(kind, tree.at)?;
                Err(self.invalid(tree.at, "42804", "array subscript must have type integer".to_owned()))
            }
        }
    }

    /// Operators on `anyarray`, whose two types must be the same, and `||`, whose needn't.
    pub(super) fn array_operator(
        &self,
        name: &str,
        left: Typed,
        right: Typed,
        at: usize,
    ) -> Result<Typed, FilterError> {
        let shown = format!("{} {name} {}", left.kind, right.kind);
        let missing = || self.no_operator("does not exist", &shown, at);
        if name == "||" {
            return self.array_concat(left, right, at)?.ok_or_else(missing);
        }
        let comparison = Comparison::of(name);
        if comparison.is_none() && !matches!(name, "@>" | "<@" | "&&") {
            return Err(missing());
        }
        let kind = match (left.kind, right.kind) {
            (Type::Unknown, Type::Unknown) => return Err(self.no_operator("is not unique", &shown, at)),
            (Type::Unknown, kind @ Type::Array(_)) | (kind @ Type::Array(_), Type::Unknown) => kind,
            (left, right) if left == right && matches!(left, Type::Array(_)) => left,
            // A range, perhaps, or a multirange: Postgres can't tell.
            (Type::Unknown, _) if name == "@>" => return Err(self.no_operator("is not unique", &shown, at)),
            (_, Type::Unknown) if name == "<@" => return Err(self.no_operator("is not unique", &shown, at)),
            _ => return Err(missing()),
        };
        let (left, right) = (self.coerce(left, kind, at)?, self.coerce(right, kind, at)?);
        let blank = kind == Type::Array(Scalar::Bpchar);
        let collated = self.merge([&left, &right], at)?;
        if kind.is_collatable() {
            self.check_comparison(collated, comparison.is_none_or(Comparison::is_equality), at)?;
        }
        let binary = match (comparison, name) {
            (Some(comparison), _) => Binary::Compare { comparison, blank },
            (None, "@>") => Binary::Contains { blank, turned: false },
            (None, "<@") => Binary::Contains { blank, turned: true },
            (None, _) => Binary::Overlaps { blank },
        };
        Ok(Typed::boolean(Expr::Binary(binary, Box::new([left.expr, right.expr]))))
    }

    /// `None`: Postgres has no such operator.
    pub(super) fn array_concat(
        &self,
        left: Typed,
        right: Typed,
        at: usize,
    ) -> Result<Option<Typed>, FilterError> {
        let collated = self.merge([&left, &right], at)?;
        let element = |kind: Type| match kind {
            Type::Array(scalar) => Type::Scalar(scalar),
            other => other,
        };
        let array_on = (matches!(left.kind, Type::Array(_)), matches!(right.kind, Type::Array(_)));
        let both = match (left.kind, right.kind) {
            (Type::Unknown, array) => (array, array),
            (array, Type::Unknown) => (array, array),
            both => both,
        };
        let Ok(Type::Scalar(common)) = common::kind(&[element(both.0), element(both.1)]) else {
            return Ok(None);
        };
        if !(element(both.0).becomes(Type::Scalar(common)) && element(both.1).becomes(Type::Scalar(common))) {
            return Ok(None);
        }
        let array = Type::Array(common);
        let unknown = left.kind == Type::Unknown || right.kind == Type::Unknown;
        let expr = match array_on {
            (true, true) => Expr::ArrayCat(self.pair(left, array, right, array, at)?),
            _ if unknown => Expr::ArrayCat(self.pair(left, array, right, array, at)?),
            (true, false) => {
                let operands = self.pair(left, array, right, Type::Scalar(common), at)?;
                Expr::ArrayPush { at_end: true, operands }
            }
            (false, _) => {
                let operands = self.pair(right, array, left, Type::Scalar(common), at)?;
                Expr::ArrayPush { at_end: false, operands }
            }
        };
        Ok(Some(Typed { expr, kind: array, collated }))
    }

    /// array_append and array_prepend, by name.
    pub(super) fn array_push(
        &self,
        array: Typed,
        item: Typed,
        at_end: bool,
        at: usize,
    ) -> Result<Option<Typed>, FilterError> {
        let collated = self.merge([&array, &item], at)?;
        let element = match array.kind {
            Type::Array(scalar) => Type::Scalar(scalar),
            Type::Unknown => Type::Unknown,
            Type::Scalar(_) | Type::Opaque(_) => return Ok(None),
        };
        if matches!(item.kind, Type::Array(_)) {
            return Ok(None);
        }
        let Ok(Type::Scalar(common)) = common::kind(&[element, item.kind]) else { return Ok(None) };
        if !(element.becomes(Type::Scalar(common)) && item.kind.becomes(Type::Scalar(common))) {
            return Ok(None);
        }
        let operands = self.pair(array, Type::Array(common), item, Type::Scalar(common), at)?;
        Ok(Some(Typed { expr: Expr::ArrayPush { at_end, operands }, kind: Type::Array(common), collated }))
    }

    fn pair(
        &self,
        left: Typed,
        left_kind: Type,
        right: Typed,
        right_kind: Type,
        at: usize,
    ) -> Result<Box<[Expr; 2]>, FilterError> {
        Ok(Box::new([self.coerce(left, left_kind, at)?.expr, self.coerce(right, right_kind, at)?.expr]))
    }

    pub(super) fn array_dimensions(&self, array: Typed, at: usize) -> Result<Option<Typed>, FilterError> {
        match array.kind {
            Type::Array(_) => {
                Ok(Some(Typed::new(Expr::unary(Unary::Dimensions, array.expr), Type::Scalar(Scalar::Int4))))
            }
            Type::Unknown => {
                let message = "could not determine polymorphic type because input has type unknown";
                Err(self.invalid(at, "42804", message.to_owned()))
            }
            Type::Scalar(_) | Type::Opaque(_) => Ok(None),
        }
    }
}
