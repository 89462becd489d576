//! Typing of `operand IN (SELECT …)`.
//!
//! Invariant: the operand's key is in the set exactly if Postgres' `=` holds for a selected row.
//! Enforced by: both sides have keys of one class, and no side is converted.

use forebay_values::{Collation, Scalar};

use super::expr::Expr;
use super::resolve::{self, OperatorResolution};
use super::{SqlType, TypedExpr, Typer};
use crate::error::FilterError;
use crate::schema::ColumnType;
use crate::syntax::{IsTest, Subselect, SyntaxKind, SyntaxTree};

/// Types whose equal values have equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyClass {
    Integer,
    Float,
    /// text and varchar.
    Text,
    /// inet and cidr.
    Address,
    Other(Scalar),
}

/// Returns the class of a column's keys; `None`: its type has no keys.
pub(crate) fn key_class(column_type: &ColumnType) -> Option<KeyClass> {
    use Scalar::*;
    let SqlType::Scalar(scalar) = column_type.sql_type()? else { return None };
    match scalar {
        Int2 | Int4 | Int8 => Some(KeyClass::Integer),
        Float4 | Float8 => Some(KeyClass::Float),
        Text | Varchar => Some(KeyClass::Text),
        Inet | Cidr => Some(KeyClass::Address),
        Bool | Numeric | Bpchar | Uuid | Date | Time | Timestamp | Timestamptz | Jsonb | Bytea | Macaddr
        | Enum(_) => Some(KeyClass::Other(scalar)),
        _ => None,
    }
}

impl Typer<'_> {
    pub(super) fn in_select(
        &self,
        negated: bool,
        operand: &SyntaxTree,
        select: &Subselect,
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let text = select.to_string();
        let found = self.sets.iter().enumerate().find(|(_, set)| set.select() == text);
        let Some((index, set)) = found else { unreachable!("every subquery is resolved before") };
        let operands = match &operand.kind {
            SyntaxKind::Row(items) => &items[..],
            _ => std::slice::from_ref(operand),
        };
        let selected = set.column_types();
        if operands.len() != selected.len() {
            let count = if operands.len() > selected.len() { "few" } else { "many" };
            return Err(self.invalid(at, "42601", format!("subquery has too {count} columns")));
        }
        let operands = operands.iter().zip(selected);
        let operands = operands.map(|(operand, (_, selected))| self.set_operand(operand, selected, at));
        let expr = Expr::InSet { set: index, operands: operands.collect::<Result<_, _>>()? };
        Ok(TypedExpr::boolean(if negated { Expr::Not(Box::new(expr)) } else { expr }))
    }

    /// Types one column before IN, which is compared with a selected column.
    fn set_operand(
        &self,
        operand: &SyntaxTree,
        selected: &ColumnType,
        at: usize,
    ) -> Result<Expr, FilterError> {
        let SyntaxKind::Name(parts) = &operand.kind else {
            let what = "anything but columns before IN (SELECT …) is".to_owned();
            let nearest = "column IN (SELECT column FROM table WHERE condition)";
            return Err(self.unsupported(operand.at, what).or_nearest(Some(nearest)));
        };
        let typed = self.column(parts, operand.at)?;
        self.refuse_opaque(typed.kind, operand.at)?;
        let (Expr::Column { index, .. }, Some(kind)) = (&typed.expr, selected.sql_type()) else {
            unreachable!("a name is a column, and columns without a type were refused")
        };
        let column_type = &self.schema.columns[*index].column_type;
        if resolve::binary("=", typed.kind, kind) == OperatorResolution::None {
            let shown = format!("{} = {}", self.shown(typed.kind), selected.name);
            return Err(self.no_operator("does not exist", &shown, at));
        }
        if key_class(column_type).is_none() || key_class(column_type) != key_class(selected) {
            let shown = self.shown(typed.kind);
            let what = format!("comparing {shown} with a subquery's {} is", selected.name);
            return Err(self.unsupported(at, what));
        }
        if kind.is_collatable() {
            self.check_equality(typed.collation, at)?;
            self.check_collations(column_type, selected, at)?;
        }
        Ok(typed.expr)
    }

    /// Refuses two columns whose collations Postgres can't merge, and a selected column whose
    /// collation treats different bytes as equal.
    fn check_collations(
        &self,
        column_type: &ColumnType,
        selected: &ColumnType,
        at: usize,
    ) -> Result<(), FilterError> {
        match (&column_type.collation, &selected.collation) {
            (Some(left), Some(right)) if left != right => {
                let message = "could not determine which collation to use for string comparison";
                Err(self.invalid(at, "42P22", message.to_owned()))
            }
            (_, Some(Collation::Nondeterministic)) => {
                Err(self.unsupported(at, "comparing text under a nondeterministic collation is".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Refuses rows before IN (SELECT …) where NULL and false differ: a set of rows can't tell them
    /// apart. `is_required`: the clause is true only if `expr` is.
    pub(super) fn check_row_sets(
        &self,
        expr: &Expr,
        is_required: bool,
        at: usize,
    ) -> Result<(), FilterError> {
        match expr {
            Expr::InSet { operands, .. } if operands.len() > 1 && !is_required => {
                let what = "rows in NOT IN (SELECT …) and in other tests for false or NULL are".to_owned();
                Err(self.unsupported(at, what).or_nearest(Some("NOT EXISTS")))
            }
            Expr::And(operands) | Expr::Or(operands) => {
                operands.iter().try_for_each(|operand| self.check_row_sets(operand, is_required, at))
            }
            Expr::Is { test: IsTest::True, operand, .. } => self.check_row_sets(operand, true, at),
            other => {
                let mut outcome = Ok(());
                super::fold::children(other, &mut |child| {
                    if outcome.is_ok() {
                        outcome = self.check_row_sets(child, false, at);
                    }
                });
                outcome
            }
        }
    }
}
