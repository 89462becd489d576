//! Which collation a comparison uses (parse_collate.c).

use super::kind::Type;
use super::{Typed, Typer};
use crate::error::FilterError;
use crate::schema::{Collation, Schema};
use crate::syntax::Tree;

/// Where an expression's collation comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Collated {
    /// The database's, or none at all.
    #[default]
    Default,
    /// A column's own, by the column's place.
    Column(usize),
    /// COLLATE "C".
    ExplicitC,
    /// COLLATE "default".
    ExplicitDefault,
    /// Two columns', which differ.
    Conflict,
}

impl Collated {
    pub(super) fn column(index: usize) -> Self {
        Collated::Column(index)
    }

    pub(super) fn find(self, schema: &Schema) -> &Collation {
        match self {
            Collated::Column(index) => {
                schema.columns[index].column_type.collation.as_ref().unwrap_or(&schema.database_collation)
            }
            Collated::ExplicitC => &Collation::C,
            Collated::Default | Collated::ExplicitDefault | Collated::Conflict => &schema.database_collation,
        }
    }
}

impl Typer<'_> {
    /// Of an expression with these operands.
    pub(super) fn merge<'t>(
        &self,
        operands: impl IntoIterator<Item = &'t Typed>,
        at: usize,
    ) -> Result<Collated, FilterError> {
        let mut merged = Collated::Default;
        for operand in operands {
            merged = self.stronger(merged, operand.collated, at)?;
        }
        Ok(merged)
    }

    fn stronger(&self, left: Collated, right: Collated, at: usize) -> Result<Collated, FilterError> {
        let explicit = |collated| matches!(collated, Collated::ExplicitC | Collated::ExplicitDefault);
        let own = |collated: Collated| match collated {
            Collated::Column(index) => self.schema.columns[index].column_type.collation.is_some(),
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
            (Collated::Conflict, _) | (_, Collated::Conflict) => Collated::Conflict,
            _ if own(left) && own(right) && left.find(self.schema) != right.find(self.schema) => {
                Collated::Conflict
            }
            _ if own(left) => left,
            _ => right,
        })
    }

    /// Refuses what can't be compared exactly: any ordering but by bytes, and equality that isn't of bytes.
    pub(super) fn check_comparison(
        &self,
        collated: Collated,
        equality: bool,
        at: usize,
    ) -> Result<(), FilterError> {
        if collated == Collated::Conflict {
            let message = "could not determine which collation to use for string comparison";
            return Err(self.invalid(at, "42P22", message.to_owned()));
        }
        let collation = self.collation(collated);
        if *collation == Collation::Nondeterministic {
            return Err(
                self.unsupported(at, "comparing text under a nondeterministic collation is".to_owned())
            );
        }
        if !equality && !collation.orders_by_bytes() {
            let name = collation.name();
            return Err(
                self.unsupported(at, format!("ordering text under the collation \"{name}\" (but C) is"))
            );
        }
        Ok(())
    }

    pub(super) fn collate(&self, operand: &Tree, name: &[String], at: usize) -> Result<Typed, FilterError> {
        let typed = self.tree(operand)?;
        let collated = match name.last().map(String::as_str) {
            Some("C" | "POSIX") => Collated::ExplicitC,
            Some("default") => Collated::ExplicitDefault,
            _ => return Err(self.unsupported(at, format!("COLLATE \"{}\" is", name.join(".")))),
        };
        if !typed.kind.is_collatable() && typed.kind != Type::Unknown {
            self.refuse_opaque(typed.kind, at)?;
            let message = format!("collations are not supported by type {}", typed.kind);
            return Err(self.invalid(at, "42804", message));
        }
        Ok(Typed { collated, ..typed })
    }
}
