//! Columns of arrays of a domain: replaced by casts to arrays of its base type.
//!
//! `tags @> ARRAY['a']` has no operator in Postgres if `tags` has arrays of a domain over text, but
//! `tags::text[] @> ARRAY['a']` has. Where both exist, they mean the same: a domain has the
//! operators and the texts of its base type.

use super::citext::{named, replace};
use super::{IsTest, SyntaxKind, SyntaxTree, TypeName};
use crate::error::FilterError;
use crate::schema::Schema;
use crate::typing::SqlType;

/// Rewrites the clause, if the schema has such columns.
pub(crate) fn rewrite(tree: &mut SyntaxTree, schema: &Schema) -> Result<(), FilterError> {
    if schema.columns.iter().any(|column| column.column_type.base_array().is_some()) {
        rewrite_tree(tree, schema);
        if tree.height > 2 * super::MAX_DEPTH {
            return Err(FilterError::TooDeep { limit: super::MAX_DEPTH });
        }
    }
    Ok(())
}

fn rewrite_tree(tree: &mut SyntaxTree, schema: &Schema) {
    let base = named(schema, tree).and_then(|column| column.column_type.base_array());
    match base {
        Some(SqlType::Array(element)) => replace(tree, |column| {
            let name = TypeName { is_array: true, ..TypeName::plain(element.catalog_name()) };
            SyntaxKind::Cast(Box::new(column), name)
        }),
        _ => {
            // A clause that is parsed again has the cast. A test for NULL needs none.
            let is_exempt = match &tree.kind {
                SyntaxKind::Cast(operand, _) | SyntaxKind::Is { test: IsTest::Null, operand, .. } => {
                    named(schema, operand).is_some()
                }
                _ => false,
            };
            if !is_exempt {
                tree.kind.each_child_mut(&mut |child| rewrite_tree(child, schema));
            }
            replace(tree, |tree| tree.kind);
        }
    }
}
