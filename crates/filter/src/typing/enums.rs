//! Typing of enums. A value is its label; ordered comparisons compare the labels' positions.

use std::sync::Arc;

use forebay_values::{Scalar, SqlValue};

use super::Typer;
use super::expr::Expr;
use super::sql_type::SqlType;
use crate::error::FilterError;
use crate::syntax::TypeName;

impl Typer<'_> {
    /// Returns a type's name in messages.
    pub(super) fn shown(&self, kind: SqlType) -> String {
        let of_enum = |oid: u32| self.schema.enum_type(oid).map_or("enum", |user| user.name.as_str());
        match kind {
            SqlType::Scalar(Scalar::Enum(oid)) => of_enum(oid).to_owned(),
            SqlType::Array(Scalar::Enum(oid)) => format!("{}[]", of_enum(oid)),
            kind => kind.to_string(),
        }
    }

    /// Returns the enum that a type name refers to.
    pub(super) fn named_enum(&self, name: &TypeName) -> Option<Scalar> {
        let schema = name.schema.as_ref()?;
        let is_named = |user: &&crate::schema::UserType| user.schema == *schema && user.name == name.name;
        let user = self.schema.user_types().find(|user| is_named(user) && user.labels.is_some())?;
        Some(Scalar::Enum(user.oid))
    }

    /// Fails if a constant has a label that its enum lacks. Schemas that were stored by earlier
    /// releases don't have labels.
    pub(super) fn check_labels(
        &self,
        value: &SqlValue<'_>,
        kind: SqlType,
        at: usize,
    ) -> Result<(), FilterError> {
        let (SqlType::Scalar(Scalar::Enum(oid)) | SqlType::Array(Scalar::Enum(oid))) = kind else {
            return Ok(());
        };
        let Some(user) = self.schema.enum_type(oid) else { return Ok(()) };
        let check = |value: &SqlValue<'_>| match value {
            SqlValue::Text(label) if !user.labels.iter().flatten().any(|known| known == label) => {
                let message = format!("invalid input value for enum {}: \"{label}\"", user.name);
                Err(self.invalid(at, "22P02", message))
            }
            _ => Ok(()),
        };
        match value {
            SqlValue::Array(array) => array.items().iter().flatten().try_for_each(check),
            value => check(value),
        }
    }

    /// Returns an expression whose values have the order of the type: for enums and arrays of them,
    /// the positions of the labels.
    pub(super) fn ordered(&self, expr: Expr, kind: SqlType, at: usize) -> Result<Expr, FilterError> {
        let (SqlType::Scalar(Scalar::Enum(oid)) | SqlType::Array(Scalar::Enum(oid))) = kind else {
            return Ok(expr);
        };
        let labels = self.labels(oid, at)?;
        Ok(Expr::Position { labels, operand: Box::new(expr) })
    }

    /// Returns the labels of an enum.
    pub(super) fn labels(&self, oid: u32, at: usize) -> Result<Arc<[String]>, FilterError> {
        let labels = self.schema.enum_type(oid).and_then(|user| user.labels.as_deref());
        labels.map(Arc::from).ok_or_else(|| {
            self.unsupported(at, "the order of an enum whose labels are not known yet is".to_owned())
        })
    }
}
