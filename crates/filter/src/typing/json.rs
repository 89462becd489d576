//! Typing of jsonb: operators that the table in `catalog.rs` can't hold, subscripts and casts.

use forebay_values::{Scalar, SqlValue};

use super::expr::{Binary, Expr, Unary};
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::eval::json::JsonOperator;
use crate::syntax::Subscript;

const JSONB: SqlType = SqlType::Scalar(Scalar::Jsonb);
const TEXTS: SqlType = SqlType::Array(Scalar::Text);
/// Levels of a jsonb value that neither Postgres nor this crate fails on.
const SHALLOW_LEVELS: usize = 100;

impl Typer<'_> {
    /// Types an operator of jsonb on a text array, or containment. `None`: another operator is
    /// meant.
    pub(super) fn json_operator(
        &self,
        name: &str,
        left: &TypedExpr,
        right: &TypedExpr,
        at: usize,
    ) -> Result<Option<TypedExpr>, FilterError> {
        let missing = |why: &str| {
            let shown = format!("{} {name} {}", left.kind, right.kind);
            Err(self.no_operator(why, &shown, at))
        };
        let is_json = |kind: SqlType| matches!(kind, SqlType::Scalar(Scalar::Json | Scalar::Jsonb));
        let (operator, right_kind, result) = match name {
            "#>" | "#>>" if left.kind == SqlType::Unknown => {
                let fits = right.kind.casts_implicitly_to(TEXTS);
                return missing(if fits { "is not unique" } else { "does not exist" });
            }
            // It could be an operator on points or lines.
            "?|" if left.kind == SqlType::Unknown && right.kind == SqlType::Unknown => {
                return missing("is not unique");
            }
            "#>" => (JsonOperator::Path { as_text: false }, TEXTS, Scalar::Jsonb),
            "#>>" => (JsonOperator::Path { as_text: true }, TEXTS, Scalar::Text),
            "?|" => (JsonOperator::ExistsAny, TEXTS, Scalar::Bool),
            "?&" => (JsonOperator::ExistsAll, TEXTS, Scalar::Bool),
            "-" if matches!(left.kind, JSONB | SqlType::Unknown)
                && matches!(right.kind, SqlType::Array(element) if element.is_text()) =>
            {
                (JsonOperator::Delete, TEXTS, Scalar::Jsonb)
            }
            "@>" | "<@" if left.kind == JSONB || right.kind == JSONB => {
                (JsonOperator::Contains { swapped: name == "<@" }, JSONB, Scalar::Bool)
            }
            _ => return Ok(None),
        };
        if is_json(left.kind) && left.kind != JSONB && name.starts_with("#>") {
            return Err(self.unsupported(at, format!("the operator {name} of json (but of jsonb) is")));
        }
        if !left.kind.casts_implicitly_to(JSONB) || !right.kind.casts_implicitly_to(right_kind) {
            return missing("does not exist");
        }
        let left = self.coerce(left.clone(), JSONB, at)?;
        let right = self.coerce(right.clone(), right_kind, at)?;
        Ok(Some(self.json(operator, left, right, result)))
    }

    /// Builds an operator that the table has: `->`, `->>`, `?`, `||` and `-`.
    pub(super) fn json_apply(
        &self,
        name: &str,
        left: TypedExpr,
        right: TypedExpr,
        result: Scalar,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let operator = match name {
            _ if left.kind != JSONB => {
                return Err(self.unsupported(at, format!("the operator {name} of json (but of jsonb) is")));
            }
            "->" => JsonOperator::Member { as_text: false },
            "->>" => JsonOperator::Member { as_text: true },
            "?" => JsonOperator::Exists,
            "||" => JsonOperator::Concat,
            "-" => JsonOperator::Delete,
            _ => return Err(self.unsupported(at, format!("the operator {name} of jsonb is"))),
        };
        Ok(self.json(operator, left, right, result))
    }

    fn json(&self, operator: JsonOperator, left: TypedExpr, right: TypedExpr, result: Scalar) -> TypedExpr {
        let expr = Expr::Binary(Binary::Json(operator), Box::new([left.expr, right.expr]));
        TypedExpr::new(expr, SqlType::Scalar(result))
    }

    /// Types `json['key'][1]` as `json #> ARRAY['key', '1']` (jsonb_subscript_transform).
    pub(super) fn json_subscript(
        &self,
        base: TypedExpr,
        subscripts: &[Subscript],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let step = |subscript: &Subscript| {
            let tree = match subscript {
                Subscript::Index(tree) => tree,
                Subscript::Slice(..) => {
                    let message = "jsonb subscript does not support slices".to_owned();
                    return Err(self.invalid(at, "42804", message));
                }
            };
            let typed = self.tree(tree)?;
            self.refuse_opaque(typed.kind, tree.at)?;
            let integer = SqlType::Scalar(Scalar::Int4);
            let kind = match typed.kind {
                SqlType::Unknown => SqlType::TEXT,
                kind if kind.casts_implicitly_to(integer) => integer,
                kind if kind.casts_implicitly_to(SqlType::TEXT) => SqlType::TEXT,
                kind => {
                    let message = format!("subscript type {kind} is not supported");
                    return Err(self.invalid(tree.at, "42804", message));
                }
            };
            Ok(self.as_text(self.coerce(typed, kind, tree.at)?, tree.at)?.expr)
        };
        let items = subscripts.iter().map(step).collect::<Result<Vec<_>, _>>()?;
        let path = TypedExpr::new(Expr::Array { nested: false, items }, TEXTS);
        Ok(self.json(JsonOperator::Path { as_text: false }, base, path, Scalar::Jsonb))
    }

    /// Types a cast of jsonb to a boolean or a number. `None`: another cast is meant.
    pub(super) fn json_cast(
        &self,
        expr: &Expr,
        from: SqlType,
        to: SqlType,
        at: usize,
    ) -> Result<Option<Expr>, FilterError> {
        let plain = |scalar: Scalar| scalar.is_text() || matches!(scalar, Scalar::Json | Scalar::Jsonb);
        match (from, to) {
            (JSONB, SqlType::Scalar(scalar)) if !plain(scalar) => {
                let cast = Unary::JsonCast { to: scalar, null_is_null: self.schema.server_version >= 18 };
                Ok(Some(Expr::unary(cast, expr.clone())))
            }
            (SqlType::Array(Scalar::Jsonb), SqlType::Array(scalar)) if !plain(scalar) => {
                Err(self.unsupported(at, format!("casting jsonb[] to {to} is")))
            }
            _ => Ok(None),
        }
    }

    /// Refuses to order jsonb values if the database's collation does not order strings by bytes.
    pub(super) fn check_json_ordering(&self, at: usize) -> Result<(), FilterError> {
        let collation = &self.schema.database_collation;
        if collation.orders_by_bytes() {
            return Ok(());
        }
        let name = collation.name();
        Err(self.unsupported(at, format!("ordering jsonb under the collation \"{name}\" (but C) is")))
    }
}

/// Returns whether it is a constant that isn't deeply nested. Brackets within strings count, too.
pub(super) fn is_shallow(expr: &Expr) -> bool {
    match expr {
        Expr::Const(Some(SqlValue::Json(text))) => {
            text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() <= SHALLOW_LEVELS
        }
        _ => false,
    }
}

/// Returns whether values of the type are jsonb values or arrays of them.
pub(super) fn is_of_jsonb(kind: SqlType) -> bool {
    matches!(kind, SqlType::Scalar(Scalar::Jsonb) | SqlType::Array(Scalar::Jsonb))
}
