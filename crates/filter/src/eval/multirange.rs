//! Evaluation of operators on multiranges.

use forebay_values::SqlValue;

use crate::typing::expr::MultirangeOperator;

/// Applies an operator. One operand is a multirange, the other one too, or a range or an element.
pub(super) fn relates(operator: MultirangeOperator, left: &SqlValue<'_>, right: &SqlValue<'_>) -> bool {
    match operator {
        MultirangeOperator::Contains => contains(left, right),
        MultirangeOperator::ContainedBy => contains(right, left),
        MultirangeOperator::Overlaps => match (left, right) {
            (SqlValue::Multirange(left), SqlValue::Multirange(right)) => left.overlaps(right),
            (SqlValue::Multirange(ranges), SqlValue::Range(range))
            | (SqlValue::Range(range), SqlValue::Multirange(ranges)) => ranges.overlaps_range(range),
            other => unreachable!("one is a multirange by type: {other:?}"),
        },
    }
}

fn contains(whole: &SqlValue<'_>, part: &SqlValue<'_>) -> bool {
    match (whole, part) {
        (SqlValue::Multirange(whole), SqlValue::Multirange(part)) => whole.contains(part),
        (SqlValue::Multirange(whole), SqlValue::Range(part)) => whole.has_range(part),
        (SqlValue::Range(whole), SqlValue::Multirange(part)) => part.is_within(whole),
        (SqlValue::Multirange(whole), element) => whole.has_element(element),
        other => unreachable!("one is a multirange by type: {other:?}"),
    }
}
