//! Index conditions of jsonb containment.

use forebay_values::{
    SqlValue,
    json::{Kind, Members},
    json::{Malformed, unescape},
};

use super::{IndexCondition, OperandNeed, expression_in};
use crate::eval::json::JsonOperator;
use crate::typing::expr::{Binary, Expr};

/// Maximum number of members of a constant that are conditions of a containment.
const MAX_MEMBERS: usize = 8;
/// Maximum depth of such members.
const MAX_MEMBER_DEPTH: usize = 8;

/// Handles `whole @> '{"key": {"key": 1}}'` as `whole -> 'key' -> 'key' = '1'`, for each member of
/// the constant's objects that is no container.
pub(super) fn contains(whole: &Expr, part: &str) -> OperandNeed {
    let mut conditions = Vec::new();
    match add_members(whole, part, 0, &mut conditions) {
        Ok(rest) if !conditions.is_empty() => OperandNeed::All { conditions, rest },
        _ => OperandNeed::Other,
    }
}

/// Adds the conditions of an object's members. Returns whether the object requires more.
fn add_members(
    whole: &Expr,
    part: &str,
    depth: usize,
    conditions: &mut Vec<IndexCondition>,
) -> Result<bool, Malformed> {
    if depth == MAX_MEMBER_DEPTH || conditions.len() >= MAX_MEMBERS || Kind::of(part)? != Kind::Object {
        return Ok(true);
    }
    let (mut members, mut rest, mut is_empty, mut visited) = (Members::of(part)?, false, true, 0);
    while let Some((key, value)) = members.next_pair()? {
        is_empty = false;
        // Further members are evaluated, not looked up.
        if conditions.len() >= MAX_MEMBERS || visited == MAX_MEMBERS {
            return Ok(true);
        }
        visited += 1;
        let key = Expr::Const(Some(SqlValue::text(&unescape(key)?).into_owned()));
        let lookup = Binary::Json(JsonOperator::Member { as_text: false });
        let member = Expr::Binary(lookup, Box::new([whole.clone(), key]));
        if Kind::of(value)?.is_container() {
            rest |= add_members(&member, value, depth + 1, conditions)?;
            continue;
        }
        let value = SqlValue::Json(value.into());
        match expression_in(&member, false, std::iter::once(&value)) {
            OperandNeed::Exactly(condition) if conditions.len() < MAX_MEMBERS => conditions.push(condition),
            _ => rest = true,
        }
    }
    Ok(rest || is_empty)
}
