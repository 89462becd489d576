//! Collation derivation: which collation a comparison uses (parse_collate.c).

use forebay_values::Collation;

use super::expr::Comparison;
use super::sql_type::SqlType;
use super::{TypedExpr, Typer};
use crate::error::FilterError;
use crate::schema::Schema;
use crate::syntax::SyntaxTree;

/// Where an expression's collation comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CollationSource {
    /// The database's default, or a type without collation.
    #[default]
    Default,
    /// The collation of the column at this position.
    Column(usize),
    /// `COLLATE "C"`.
    ExplicitC,
    /// The operand of a CASE with `COLLATE "C"`. In comparisons with it, that isn't explicit.
    ImplicitC,
    /// `COLLATE "default"`.
    ExplicitDefault,
    /// Two columns with different collations.
    Conflict,
}

impl CollationSource {
    pub(super) fn column(index: usize) -> Self {
        CollationSource::Column(index)
    }

    /// Returns the source in the comparisons of a CASE whose operand has this one (CaseTestExpr).
    pub(super) fn of_case_operand(self) -> Self {
        match self {
            CollationSource::ExplicitC => CollationSource::ImplicitC,
            CollationSource::ExplicitDefault => CollationSource::Default,
            CollationSource::Default
            | CollationSource::Column(_)
            | CollationSource::ImplicitC
            | CollationSource::Conflict => self,
        }
    }

    pub(super) fn find(self, schema: &Schema) -> &Collation {
        match self {
            CollationSource::Column(index) => {
                schema.columns[index].column_type.collation.as_ref().unwrap_or(&schema.database_collation)
            }
            CollationSource::ExplicitC | CollationSource::ImplicitC => &Collation::C,
            CollationSource::Default | CollationSource::ExplicitDefault | CollationSource::Conflict => {
                &schema.database_collation
            }
        }
    }
}

impl Typer<'_> {
    /// Derives the collation of an expression from its operands.
    pub(super) fn merge<'t>(
        &self,
        operands: impl IntoIterator<Item = &'t TypedExpr>,
        at: usize,
    ) -> Result<CollationSource, FilterError> {
        let mut merged = CollationSource::Default;
        for operand in operands {
            merged = self.stronger(merged, operand.collation, at)?;
        }
        Ok(merged)
    }

    fn stronger(
        &self,
        left: CollationSource,
        right: CollationSource,
        at: usize,
    ) -> Result<CollationSource, FilterError> {
        let explicit =
            |collation| matches!(collation, CollationSource::ExplicitC | CollationSource::ExplicitDefault);
        let own = |collation: CollationSource| match collation {
            CollationSource::Column(index) => self.schema.columns[index].column_type.collation.is_some(),
            CollationSource::ImplicitC => true,
            _ => false,
        };
        Ok(match (left, right) {
            _ if left == right => left,
            _ if explicit(left) && explicit(right) => {
                let message = "collation mismatch between explicit collations \"C\" and \"default\"";
                return Err(self.invalid(at, "42P21", message.to_owned()));
            }
            _ if explicit(left) => left,
            _ if explicit(right) => right,
            (CollationSource::Conflict, _) | (_, CollationSource::Conflict) => CollationSource::Conflict,
            _ if own(left) && own(right) && left.find(self.schema) != right.find(self.schema) => {
                CollationSource::Conflict
            }
            _ if own(left) => left,
            _ => right,
        })
    }

    /// Refuses collations under which the comparison can't be evaluated on bytes.
    pub(super) fn check_comparison(
        &self,
        collation: CollationSource,
        comparison: Comparison,
        at: usize,
    ) -> Result<(), FilterError> {
        if comparison.is_equality() {
            self.check_equality(collation, at)
        } else {
            self.check_ordering(collation, at)
        }
    }

    /// Refuses collations that treat different bytes as equal.
    pub(super) fn check_equality(&self, collation: CollationSource, at: usize) -> Result<(), FilterError> {
        if collation == CollationSource::Conflict {
            let message = "could not determine which collation to use for string comparison";
            return Err(self.invalid(at, "42P22", message.to_owned()));
        }
        if *self.collation(collation) == Collation::Nondeterministic {
            return Err(
                self.unsupported(at, "comparing text under a nondeterministic collation is".to_owned())
            );
        }
        Ok(())
    }

    /// Refuses collations that do not order texts by bytes, or that treat different bytes as equal.
    pub(super) fn check_ordering(&self, collation: CollationSource, at: usize) -> Result<(), FilterError> {
        self.check_equality(collation, at)?;
        let collation = self.collation(collation);
        if !collation.orders_by_bytes() {
            let name = collation.name();
            return Err(
                self.unsupported(at, format!("ordering text under the collation \"{name}\" (but C) is"))
            );
        }
        Ok(())
    }

    pub(super) fn collate(
        &self,
        operand: &SyntaxTree,
        name: &[String],
        at: usize,
    ) -> Result<TypedExpr, FilterError> {
        let typed = self.tree(operand)?;
        let collation = match name.last().map(String::as_str) {
            Some("C" | "POSIX") => CollationSource::ExplicitC,
            Some("default") => CollationSource::ExplicitDefault,
            _ => return Err(self.unsupported(at, format!("COLLATE \"{}\" is", name.join(".")))),
        };
        if !typed.kind.is_collatable() && typed.kind != SqlType::Unknown {
            self.refuse_opaque(typed.kind, at)?;
            let message = format!("collations are not supported by type {}", self.shown(typed.kind));
            return Err(self.invalid(at, "42804", message));
        }
        Ok(TypedExpr { collation, ..typed })
    }
}
