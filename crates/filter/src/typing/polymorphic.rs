//! Polymorphic argument types: which types they stand for in a call (parse_coerce.c:
//! check_generic_type_consistency, enforce_generic_type_consistency).

use super::catalog::OperandType;
use super::common_type;
use super::sql_type::SqlType;

/// The types that the two families of polymorphic types stand for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polymorphism {
    /// Of `anyelement`, `anynonarray` and `anyarray`: all arguments have one element type.
    element: Family,
    /// Of `anycompatible` and `anycompatiblearray`: arguments are cast to a common type.
    compatible: Family,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Family {
    /// The function has no such arguments.
    #[default]
    Absent,
    /// All such arguments are untyped constants.
    Untyped,
    Known(SqlType),
}

impl Polymorphism {
    /// Returns whether Postgres can't determine the type.
    pub(crate) fn is_undetermined(&self) -> bool {
        self.element == Family::Untyped
    }

    /// Returns the type of a slot in the call, for an argument of type `given`. `None`: the slot's
    /// type is not supported.
    pub(crate) fn actual(&self, slot: OperandType, given: SqlType) -> Option<SqlType> {
        let array = |kind: SqlType| match kind {
            SqlType::Scalar(scalar) => Some(SqlType::Array(scalar)),
            SqlType::Unknown | SqlType::Array(_) | SqlType::Opaque(_) => None,
        };
        let element = match self.element {
            Family::Known(kind) => kind,
            Family::Absent | Family::Untyped => given,
        };
        let compatible = match self.compatible {
            Family::Known(kind) => kind,
            Family::Absent | Family::Untyped => SqlType::TEXT,
        };
        match slot {
            OperandType::Scalar(scalar) => Some(SqlType::Scalar(scalar)),
            OperandType::Array(scalar) => Some(SqlType::Array(scalar)),
            OperandType::Any => Some(given),
            OperandType::NonArray | OperandType::Element => Some(element),
            OperandType::AnyArray => array(element),
            OperandType::Compatible => Some(compatible),
            OperandType::CompatibleArray => array(compatible),
            OperandType::Foreign(_) => None,
        }
    }
}

/// Determines the polymorphic types. `None`: the arguments don't fit one another.
pub(crate) fn solve(slots: &[OperandType], given: &[SqlType]) -> Option<Polymorphism> {
    let mut element = Family::Absent;
    let mut compatible = None;
    for (slot, given) in slots.iter().zip(given) {
        let of_element = match (slot, given) {
            (OperandType::AnyArray | OperandType::CompatibleArray, SqlType::Array(scalar)) => {
                SqlType::Scalar(*scalar)
            }
            (OperandType::AnyArray | OperandType::CompatibleArray, SqlType::Unknown) => SqlType::Unknown,
            (OperandType::AnyArray | OperandType::CompatibleArray, _) => return None,
            (OperandType::NonArray, SqlType::Array(_)) => return None,
            _ => *given,
        };
        match slot {
            OperandType::NonArray | OperandType::Element | OperandType::AnyArray => {
                element = match (element, of_element) {
                    (Family::Known(known), SqlType::Unknown) => Family::Known(known),
                    (_, SqlType::Unknown) => Family::Untyped,
                    (Family::Known(known), kind) if known != kind => return None,
                    (_, kind) => Family::Known(kind),
                };
            }
            OperandType::Compatible | OperandType::CompatibleArray => {
                compatible.get_or_insert_with(Vec::new).push(of_element);
            }
            OperandType::Scalar(_) | OperandType::Array(_) | OperandType::Any | OperandType::Foreign(_) => {}
        }
    }
    let compatible = match compatible {
        None => Family::Absent,
        Some(kinds) if kinds.iter().all(|kind| *kind == SqlType::Unknown) => Family::Untyped,
        Some(kinds) => {
            let common = common_type::select(&kinds).ok()?;
            if !kinds.iter().all(|kind| kind.casts_implicitly_to(common)) {
                return None;
            }
            Family::Known(common)
        }
    };
    Some(Polymorphism { element, compatible })
}
