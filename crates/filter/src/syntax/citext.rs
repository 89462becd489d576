//! citext: rewrites comparisons and patterns on citext columns as those on text.
//!
//! The operators of citext are in the extension's schema, which the sessions that read snapshots
//! don't search: there, `email = 'x'` would compare texts, and case would count. So the clause
//! names the operations that the extension performs (citext.c): `=` and the other comparisons
//! compare `lower(x COLLATE "default")`, and LIKE is ILIKE. An array of citext is compared as the
//! array of texts whose whole text is in lower case.
//!
//! Invariant: afterwards, a citext column, or one of arrays, is only cast to texts or tested for
//! NULL. All other uses are refused.

use forebay_values::{Array, Scalar, SqlValue, ValueType};

use super::{IsTest, SyntaxKind, SyntaxTree, TypeName};
use crate::error::FilterError;
use crate::schema::{Column, Schema};

const COMPARISONS: &[&str] = &["=", "<>", "<", "<=", ">", ">="];
/// Functions of arrays that compare no elements.
const ARRAY_FUNCTIONS: &[&str] =
    &["cardinality", "array_length", "array_lower", "array_upper", "array_ndims", "array_dims"];
/// Functions of text that have no variant for citext.
const TEXT_FUNCTIONS: &[&str] =
    &["lower", "upper", "length", "char_length", "character_length", "octet_length", "starts_with", "md5"];

/// Rewrites the clause, if the schema has citext columns.
pub(crate) fn rewrite(tree: &mut SyntaxTree, text: &str, schema: &Schema) -> Result<(), FilterError> {
    let is_citext = |column: &Column| column.column_type.is_citext() || column.column_type.is_citext_array();
    if schema.columns.iter().any(is_citext) {
        Rewriter { text, schema }.tree(tree)?;
        if tree.height > 2 * super::MAX_DEPTH {
            return Err(FilterError::TooDeep { limit: super::MAX_DEPTH });
        }
    }
    Ok(())
}

struct Rewriter<'s> {
    text: &'s str,
    schema: &'s Schema,
}

impl Rewriter<'_> {
    /// Returns the citext column that the expression is, if it is one.
    fn column(&self, tree: &SyntaxTree) -> Option<&Column> {
        named(self.schema, tree).filter(|column| column.column_type.is_citext())
    }

    /// Returns whether the expression is a column of arrays of citext.
    fn is_array(&self, tree: &SyntaxTree) -> bool {
        named(self.schema, tree).is_some_and(|column| column.column_type.is_citext_array())
    }

    fn is_column(&self, tree: &SyntaxTree) -> bool {
        self.column(tree).is_some()
    }

    fn tree(&self, tree: &mut SyntaxTree) -> Result<(), FilterError> {
        if self.is_column(tree) || self.is_array(tree) {
            return Err(self.refused(tree));
        }
        if self.array_use(&mut tree.kind)? {
            replace(tree, |tree| tree.kind);
            return Ok(());
        }
        match &mut tree.kind {
            SyntaxKind::Is { test: IsTest::Null, operand, .. } if self.is_column(operand) => {}
            SyntaxKind::Cast(operand, name) if self.is_column(operand) && is_text(name) && !name.is_array => {
            }
            SyntaxKind::Binary(operator, operands) if operands.iter().any(|side| self.is_column(side)) => {
                self.binary(operator, operands)?;
            }
            SyntaxKind::Distinct { operands, .. } if operands.iter().any(|side| self.is_column(side)) => {
                operands.iter_mut().try_for_each(|side| self.fold(side))?;
            }
            SyntaxKind::Between { operands, .. } if operands.iter().any(|side| self.is_column(side)) => {
                self.check_order("<", operands.iter())?;
                operands.iter_mut().try_for_each(|side| self.fold(side))?;
            }
            SyntaxKind::In { operand, list, .. } if self.is_column(operand) => {
                self.fold(operand)?;
                list.iter_mut().try_for_each(|item| self.fold(item))?;
            }
            SyntaxKind::Quantified { operator, operands, .. } if self.is_column(&operands[0]) => {
                self.quantified(operator, operands)?;
            }
            SyntaxKind::Call(name, arguments)
                if TEXT_FUNCTIONS.contains(&name.as_str())
                    && arguments.first().is_some_and(|first| self.is_column(first)) =>
            {
                as_text(&mut arguments[0]);
                arguments[1..].iter_mut().try_for_each(|argument| self.tree(argument))?;
            }
            kind => {
                let mut outcome = Ok(());
                kind.each_child_mut(&mut |child| {
                    if outcome.is_ok() {
                        outcome = self.tree(child);
                    }
                });
                outcome?;
            }
        }
        replace(tree, |tree| tree.kind);
        Ok(())
    }

    /// Rewrites a use of a column of arrays. Returns whether the expression is one.
    fn array_use(&self, kind: &mut SyntaxKind) -> Result<bool, FilterError> {
        match kind {
            SyntaxKind::Is { test: IsTest::Null, operand, .. } if self.is_array(operand) => {}
            SyntaxKind::Cast(operand, name) if self.is_array(operand) && is_text(name) => {}
            SyntaxKind::Binary(operator, operands) if operands.iter().any(|side| self.is_array(side)) => {
                if !matches!(operator.as_str(), "=" | "<>" | "@>" | "<@" | "&&") {
                    return Err(self.refused(&operands[usize::from(!self.is_array(&operands[0]))]));
                }
                operands.iter_mut().try_for_each(|side| self.fold_array(side))?;
            }
            SyntaxKind::Quantified { operator, operands, .. } if self.is_array(&operands[1]) => {
                if !matches!(operator.as_str(), "=" | "<>") {
                    return Err(self.refused(&operands[1]));
                }
                let [left, right] = &mut **operands;
                self.fold(left)?;
                self.fold_array(right)?;
            }
            SyntaxKind::Call(name, arguments)
                if ARRAY_FUNCTIONS.contains(&name.as_str())
                    && arguments.first().is_some_and(|first| self.is_array(first)) =>
            {
                replace(&mut arguments[0], as_texts);
                arguments[1..].iter_mut().try_for_each(|argument| self.tree(argument))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn binary(&self, operator: &mut String, operands: &mut [SyntaxTree; 2]) -> Result<(), FilterError> {
        if COMPARISONS.contains(&operator.as_str()) {
            self.check_order(operator, operands.iter())?;
            return operands.iter_mut().try_for_each(|side| self.fold(side));
        }
        let [left, right] = operands;
        let is_pattern = matches!(operator.as_str(), "~~" | "!~~" | "~~*" | "!~~*");
        if !is_pattern || !self.is_column(left) {
            return Err(self.refused(if self.is_column(left) { left } else { right }));
        }
        as_text(left);
        match self.is_column(right) {
            true => as_text(right),
            false => self.tree(right)?,
        }
        if !operator.ends_with('*') {
            operator.push('*');
        }
        Ok(())
    }

    /// Refuses an order by another collation than the database's. Letters always change case by
    /// that of the database.
    fn check_order<'t>(
        &self,
        operator: &str,
        mut operands: impl Iterator<Item = &'t SyntaxTree>,
    ) -> Result<(), FilterError> {
        let has_own_collation = |tree: &&SyntaxTree| {
            let column = self.column(tree);
            column.is_some_and(|column| column.column_type.collation.is_some())
        };
        match operands.find(has_own_collation) {
            Some(tree) if !matches!(operator, "=" | "<>") => Err(self.refused(tree)),
            _ => Ok(()),
        }
    }

    /// Rewrites `column = ANY ('{a,b}')`. The constant is an array of citext.
    fn quantified(&self, operator: &str, operands: &mut [SyntaxTree; 2]) -> Result<(), FilterError> {
        let [column, array] = operands;
        let at = array.at;
        let SyntaxKind::Text(text) = &array.kind else { return Err(self.refused(column)) };
        if !COMPARISONS.contains(&operator) {
            return Err(self.refused(column));
        }
        self.check_order(operator, std::iter::once(&*column))?;
        let items = self.constant(text, at)?;
        let item = |item: Option<SqlValue<'_>>| match item {
            Some(SqlValue::Text(text)) => folded(SyntaxTree::new(SyntaxKind::Text(text.into_owned()), at)),
            _ => SyntaxTree::new(SyntaxKind::Null, at),
        };
        let items: Vec<_> = items.into_items().into_iter().map(item).collect();
        *array = SyntaxTree::new(SyntaxKind::Array(items), at);
        replace(array, as_texts);
        self.fold(column)
    }

    /// Replaces a column, or a constant that is compared with one, by its text in lower case.
    fn fold(&self, tree: &mut SyntaxTree) -> Result<(), FilterError> {
        match &tree.kind {
            SyntaxKind::Text(_) => {}
            SyntaxKind::Null => return Ok(()),
            _ if self.is_column(tree) => {}
            // Postgres compares with text as text.
            _ => return Err(self.refused(tree)),
        }
        let at = tree.at;
        let operand = std::mem::replace(tree, SyntaxTree::new(SyntaxKind::Null, at));
        *tree = folded(operand);
        Ok(())
    }

    /// Replaces a column of arrays, or a constant that is compared with one, by the array in lower
    /// case.
    fn fold_array(&self, tree: &mut SyntaxTree) -> Result<(), FilterError> {
        match &tree.kind {
            SyntaxKind::Text(text) => _ = self.constant(text, tree.at)?,
            SyntaxKind::Null => return Ok(()),
            _ if self.is_array(tree) => {}
            _ => return Err(self.refused_array(tree)),
        }
        let at = tree.at;
        *tree = folded(std::mem::replace(tree, SyntaxTree::new(SyntaxKind::Null, at)));
        replace(tree, as_texts);
        Ok(())
    }

    /// Parses a constant array of citext.
    fn constant(&self, text: &str, at: usize) -> Result<Array, FilterError> {
        Array::parse(text, Scalar::Text, true).map_err(|error| {
            let (sqlstate, message) = error.describe(ValueType::Array(Scalar::Text), Some(text));
            FilterError::invalid(self.text, at, sqlstate, message)
        })
    }

    fn refused(&self, tree: &SyntaxTree) -> FilterError {
        match self.is_array(tree) {
            true => self.refused_array(tree),
            false => self.unsupported(
                tree,
                "citext (but in comparisons with constants and with citext, LIKE, and ::text) is",
            ),
        }
    }

    fn refused_array(&self, tree: &SyntaxTree) -> FilterError {
        let what = "citext[] (but in =, <>, @>, <@, && and ANY with constants, and cardinality) is";
        self.unsupported(tree, what)
    }

    fn unsupported(&self, tree: &SyntaxTree, what: &str) -> FilterError {
        let location = crate::error::location(self.text, tree.at);
        FilterError::Unsupported { what: what.to_owned(), location, nearest: None }
    }
}

/// Returns the column that an expression names.
pub(super) fn named<'s>(schema: &'s Schema, tree: &SyntaxTree) -> Option<&'s Column> {
    let SyntaxKind::Name(parts) = &tree.kind else { return None };
    schema.columns.iter().find(|column| parts.last() == Some(&column.name))
}

/// Returns whether the type is of texts, or of arrays of them.
fn is_text(name: &TypeName) -> bool {
    name.schema.is_none() && matches!(name.name.as_str(), "text" | "varchar" | "bpchar")
}

/// Replaces an expression by one that is made of it.
pub(super) fn replace(tree: &mut SyntaxTree, change: impl FnOnce(SyntaxTree) -> SyntaxKind) {
    let at = tree.at;
    let old = std::mem::replace(tree, SyntaxTree::new(SyntaxKind::Null, at));
    *tree = SyntaxTree::new(change(old), at);
}

fn as_text(tree: &mut SyntaxTree) {
    replace(tree, |tree| SyntaxKind::Cast(Box::new(tree), TypeName::plain("text")));
}

fn as_texts(tree: SyntaxTree) -> SyntaxKind {
    let name = TypeName { is_array: true, ..TypeName::plain("text") };
    SyntaxKind::Cast(Box::new(tree), name)
}

fn folded(mut tree: SyntaxTree) -> SyntaxTree {
    let at = tree.at;
    as_text(&mut tree);
    let default = SyntaxKind::Collate(Box::new(tree), vec!["default".to_owned()]);
    SyntaxTree::new(SyntaxKind::Call("lower".to_owned(), vec![SyntaxTree::new(default, at)]), at)
}
