//! The type that several expressions share (select_common_type).

use super::kind::{Scalar, Type};

/// `Err` has the two that can't be matched.
pub(super) fn kind(kinds: &[Type]) -> Result<Type, (Type, Type)> {
    let mut common = kinds.first().copied().unwrap_or(Type::Unknown);
    for &next in kinds.iter().skip(1) {
        if next == Type::Unknown || next == common {
            continue;
        }
        if common == Type::Unknown {
            common = next;
        } else if next.category() != common.category() {
            return Err((common, next));
        } else if !is_preferred(common) && common.becomes(next) && !next.becomes(common) {
            common = next;
        }
    }
    Ok(if common == Type::Unknown { Type::Scalar(Scalar::Text) } else { common })
}

fn is_preferred(kind: Type) -> bool {
    matches!(kind, Type::Scalar(scalar) if scalar.is_preferred())
}
