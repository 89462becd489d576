//! Subqueries of a clause: the sets of values that they select, and the clauses of their tables.
//!
//! Invariant: every name in a subquery is a column of its own table. Names of an outer table are
//! refused, but for `inner = outer` in EXISTS. Such an EXISTS becomes `(outer IN (SELECT inner …))
//! IS TRUE`: both are true if a row matches, and false otherwise, also with NULLs.
//! Enforced by: [`resolve`] looks up every name; `subqueries_agree_with_postgres_15` and `_18`.

use std::borrow::Cow;
use std::fmt;

use forebay_values::EvalError;

use super::error::FilterError;
use super::index_key::IndexKey;
use super::schema::{ColumnType, Schema};
use super::syntax::{IsTest, Subselect, SyntaxKind, SyntaxTree};
use super::typing::{self, key_class};
use super::{ClauseScope, Filter, PostgresRules, TextRow};

/// Maximum number of subqueries in a clause.
pub const MAX_SUBQUERIES: usize = 8;
/// Maximum nesting of subqueries.
pub const MAX_SUBQUERY_DEPTH: usize = 4;

/// Name of a table that a subquery reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    /// Its schema. A clause that names none means `public`.
    pub schema: String,
    /// pg_class.relname.
    pub name: String,
}

/// Set of values that a subquery selects: those of the rows of a table that match a clause.
#[derive(Clone, Debug)]
pub struct SubquerySet {
    table: TableName,
    select: String,
    columns: Vec<(usize, ColumnType)>,
    filter: Option<Box<Filter>>,
}

/// Contents of the sets of a filter's subqueries. Sets are numbered as in [`Filter::sets`].
pub trait SetContents {
    /// Returns whether the set has this value.
    fn contains(&self, set: usize, key: &SetKey) -> bool;

    /// Returns whether no row is selected, not even one with a NULL.
    fn is_empty(&self, set: usize) -> bool;

    /// Returns whether a selected row has a NULL. Asked only of sets of one column.
    fn has_null(&self, set: usize) -> bool;
}

/// Value of a set: that of its column, or those of its columns. None is NULL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SetKey {
    /// Of a subquery with one column.
    Value(IndexKey),
    /// Of a subquery with several columns, in their order.
    Row(Box<[IndexKey]>),
}

/// Returns the schema of a table that subqueries read.
pub(crate) type FindTable<'f, 't> = &'f dyn Fn(&TableName) -> Option<&'t Schema>;

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

impl SubquerySet {
    /// Returns the table.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Returns the subquery as canonical SQL. Equal subqueries select equal sets.
    pub fn select(&self) -> &str {
        &self.select
    }

    /// Returns the selected columns, as positions in the schema of the table.
    pub fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.columns.iter().map(|(index, _)| *index)
    }

    pub(crate) fn column_types(&self) -> &[(usize, ColumnType)] {
        &self.columns
    }

    /// Returns the clause that rows of the table must match; `None`: all match. It may have
    /// subqueries itself.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    /// Returns the value that a row of the table adds to the set; `None`: a column is NULL.
    ///
    /// # Errors
    /// Fails if a text is not a value of its column's type.
    pub fn key(&self, row: &dyn TextRow) -> Result<Option<SetKey>, EvalError> {
        let key = |(index, column_type): &(usize, ColumnType)| match row.text(*index) {
            Some(text) => IndexKey::of_row(column_type, text),
            None => Ok(None),
        };
        match &self.columns[..] {
            [column] => Ok(key(column)?.map(SetKey::Value)),
            columns => {
                let keys = columns.iter().map(key).collect::<Result<Option<Box<[_]>>, _>>();
                Ok(keys?.map(SetKey::Row))
            }
        }
    }
}

/// Returns the tables of the subqueries of a syntax tree.
pub(crate) fn tables(tree: &SyntaxTree) -> Vec<TableName> {
    let mut found = Vec::new();
    add_tables(tree, &mut found);
    found.sort_unstable();
    found.dedup();
    found
}

fn add_tables(tree: &SyntaxTree, found: &mut Vec<TableName>) {
    if let Some(select) = tree.kind.subselect() {
        found.push(select.table.clone());
        select.condition.iter().for_each(|condition| add_tables(condition, found));
    }
    tree.kind.each_child(&mut |child| add_tables(child, found));
}

/// Types the subqueries of a clause. Rewrites EXISTS as IN. Returns the sets, each once.
pub(crate) fn resolve(
    tree: &mut SyntaxTree,
    scope: &ClauseScope<'_>,
    find: Option<FindTable<'_, '_>>,
) -> Result<Vec<SubquerySet>, FilterError> {
    let mut resolver = SubqueryResolver { scope, find, sets: Vec::new() };
    resolver.tree(tree)?;
    Ok(resolver.sets)
}

struct SubqueryResolver<'r, 't> {
    scope: &'r ClauseScope<'r>,
    /// `None`: subqueries are refused.
    find: Option<FindTable<'r, 't>>,
    sets: Vec<SubquerySet>,
}

impl SubqueryResolver<'_, '_> {
    fn tree(&mut self, tree: &mut SyntaxTree) -> Result<(), FilterError> {
        if let SyntaxKind::Name(parts) = &tree.kind {
            return self.check_name(parts, tree.at);
        }
        if let SyntaxKind::Exists(select) = &tree.kind {
            let inner = self.inner_schema(select)?;
            *tree = self.as_in(select, tree.at, &inner)?;
        }
        let mut outcome = Ok(());
        tree.kind.each_child_mut(&mut |child| {
            if outcome.is_ok() {
                outcome = self.tree(child);
            }
        });
        outcome?;
        match &mut tree.kind {
            SyntaxKind::InSelect { select, .. } => self.select(select),
            _ => Ok(()),
        }
    }

    /// Refuses a name that only an outer table has.
    fn check_name(&self, parts: &[String], at: usize) -> Result<(), FilterError> {
        let is_outer = self.scope.outer.is_some_and(|outer| outer.has_name_or_outer(parts));
        match is_outer && !self.scope.has_name(parts) {
            true => Err(self.refused(at, "references to an outer table (but column = column in EXISTS) are")),
            false => Ok(()),
        }
    }

    /// Returns the schema of a subquery's table, under the table's alias.
    fn inner_schema<'s>(&'s self, select: &Subselect) -> Result<Cow<'s, Schema>, FilterError> {
        let text = self.scope.text;
        let find = self.find.ok_or_else(|| FilterError::unsupported(text, select.at, "subqueries"))?;
        let schema = find(&select.table).ok_or_else(|| {
            let message = format!("relation \"{}\" does not exist", select.table);
            FilterError::invalid(text, select.at, "42P01", message)
        })?;
        let name = select.alias.as_ref().unwrap_or(&select.table.name);
        if schema.table.as_ref() == Some(name) {
            return Ok(Cow::Borrowed(schema));
        }
        Ok(Cow::Owned(Schema { table: Some(name.clone()), ..schema.clone() }))
    }

    /// Types the SELECT, and adds its set.
    fn select(&mut self, select: &mut Subselect) -> Result<(), FilterError> {
        let inner = self.inner_schema(select)?.into_owned();
        let scope = ClauseScope { schema: &inner, text: self.scope.text, outer: Some(self.scope) };
        let mut columns = Vec::new();
        for column in &select.columns {
            let SyntaxKind::Name(parts) = &column.kind else { unreachable!("the parser reads names") };
            if !scope.has_name(parts) && self.scope.has_name_or_outer(parts) {
                return Err(self.refused(column.at, "columns of an outer table in a subquery's list are"));
            }
            let index = typing::find_column(parts, &inner, scope.text, column.at)?;
            let column_type = inner.columns[index].column_type.clone();
            if column_type.is_citext() || key_class(&column_type).is_none() {
                let what = format!("a subquery's column of type {} is", column_type.name);
                return Err(self.refused(column.at, &what));
            }
            columns.push((index, column_type));
        }
        let filter = match &mut select.condition {
            Some(condition) => {
                let filter = Filter::of_tree(condition, &scope, PostgresRules::None, self.find)?;
                Some(Box::new(filter))
            }
            None => None,
        };
        let set = SubquerySet { table: select.table.clone(), select: select.to_string(), columns, filter };
        if !self.sets.iter().any(|known| known.select == set.select) {
            self.sets.push(set);
        }
        Ok(())
    }

    /// Returns `EXISTS (SELECT 1 FROM table WHERE inner = outer AND …)` as
    /// `(outer IN (SELECT inner FROM table WHERE …)) IS TRUE`.
    fn as_in(&self, select: &Subselect, at: usize, inner: &Schema) -> Result<SyntaxTree, FilterError> {
        let scope = ClauseScope { schema: inner, text: self.scope.text, outer: Some(self.scope) };
        let (mut operands, mut columns, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for conjunct in conjuncts(select.condition.as_ref()) {
            if !scope.names_outer(conjunct) {
                rest.push(conjunct.clone());
                continue;
            }
            let (column, operand) = scope.correlation(conjunct).ok_or_else(|| {
                self.refused(conjunct.at, "references to an outer table (but column = column in EXISTS) are")
            })?;
            columns.push(column);
            operands.push(operand);
        }
        let operand = match operands.len() {
            0 => {
                let what = "EXISTS without column = column of the outer table is";
                return Err(self.refused(at, what));
            }
            1 => operands.swap_remove(0),
            _ => SyntaxTree::new(SyntaxKind::Row(operands), at),
        };
        let condition = match rest.len() {
            0 | 1 => rest.pop(),
            _ => Some(SyntaxTree::new(SyntaxKind::And(rest), at)),
        };
        let select = Subselect { columns, condition, ..select.clone() };
        let kind =
            SyntaxKind::InSelect { negated: false, operand: Box::new(operand), select: Box::new(select) };
        let operand = Box::new(SyntaxTree::new(kind, at));
        Ok(SyntaxTree::new(SyntaxKind::Is { negated: false, test: IsTest::True, operand }, at))
    }

    fn refused(&self, at: usize, what: &str) -> FilterError {
        FilterError::unsupported_construct(self.scope.text, at, what.to_owned())
            .or_nearest(Some("column IN (SELECT column FROM table WHERE condition)"))
    }
}

impl ClauseScope<'_> {
    /// Returns whether the table of this scope has the column.
    fn has_name(&self, parts: &[String]) -> bool {
        typing::find_column(parts, self.schema, self.text, 0).is_ok()
    }

    /// Returns whether the table of this scope or one further out has the column.
    fn has_name_or_outer(&self, parts: &[String]) -> bool {
        self.has_name(parts) || self.outer.is_some_and(|outer| outer.has_name_or_outer(parts))
    }

    fn is_outer_name(&self, tree: &SyntaxTree) -> bool {
        match &tree.kind {
            SyntaxKind::Name(parts) => {
                !self.has_name(parts) && self.outer.is_some_and(|outer| outer.has_name_or_outer(parts))
            }
            _ => false,
        }
    }

    /// Returns whether the tree names a column of an outer table, but for names in subqueries.
    fn names_outer(&self, tree: &SyntaxTree) -> bool {
        let mut found = self.is_outer_name(tree);
        tree.kind.each_child(&mut |child| found |= self.names_outer(child));
        found
    }

    /// Returns the inner and the outer column of `inner = outer`.
    fn correlation(&self, conjunct: &SyntaxTree) -> Option<(SyntaxTree, SyntaxTree)> {
        let SyntaxKind::Binary(operator, operands) = &conjunct.kind else { return None };
        let [left, right] = &**operands;
        let is_pair = matches!((&left.kind, &right.kind), (SyntaxKind::Name(_), SyntaxKind::Name(_)));
        match (self.is_outer_name(left), self.is_outer_name(right)) {
            (true, false) if operator == "=" && is_pair => Some((right.clone(), left.clone())),
            (false, true) if operator == "=" && is_pair => Some((left.clone(), right.clone())),
            _ => None,
        }
    }
}

/// Returns the operands of AND; of any other condition, the condition.
fn conjuncts(condition: Option<&SyntaxTree>) -> &[SyntaxTree] {
    match condition {
        None => &[],
        Some(SyntaxTree { kind: SyntaxKind::And(operands), .. }) => operands,
        Some(other) => std::slice::from_ref(other),
    }
}
