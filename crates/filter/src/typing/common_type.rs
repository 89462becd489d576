//! Common type of several expressions (select_common_type).

use forebay_values::Scalar;

use super::sql_type::{SqlType, TypeRules};

/// Returns the common type. `Err` holds the two types that have none.
pub(super) fn select(kinds: &[SqlType]) -> Result<SqlType, (SqlType, SqlType)> {
    let mut common = kinds.first().copied().unwrap_or(SqlType::Unknown);
    for &next in kinds.iter().skip(1) {
        if next == SqlType::Unknown || next == common {
            continue;
        }
        if common == SqlType::Unknown {
            common = next;
        } else if next.category() != common.category() {
            return Err((common, next));
        } else if !is_preferred(common)
            && common.casts_implicitly_to(next)
            && !next.casts_implicitly_to(common)
        {
            common = next;
        }
    }
    Ok(if common == SqlType::Unknown { SqlType::Scalar(Scalar::Text) } else { common })
}

fn is_preferred(kind: SqlType) -> bool {
    matches!(kind, SqlType::Scalar(scalar) if scalar.is_preferred())
}
