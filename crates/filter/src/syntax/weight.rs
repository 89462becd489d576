//! Weight of a tree: the nodes and bytes that typing makes of it.
//!
//! Typing copies the operands of BETWEEN, IN and CASE. Copies within copies multiply, so a short
//! clause could take any amount of time and memory.
//!
//! The time of LIKE and of some functions is the product of the lengths of their operands, so
//! constants in them have a limit of their own.

use super::{SyntaxKind, SyntaxTree};

/// Maximum weight of a clause.
pub(crate) const MAX_WEIGHT: usize = 8 << 20;

/// Maximum length of a constant in a pattern or an argument, in bytes.
pub(crate) const MAX_OPERAND_BYTES: usize = 64 * 1024;

/// Returns whether a pattern of LIKE or an argument of a function has a constant above
/// [`MAX_OPERAND_BYTES`].
pub(crate) fn has_long_operand(tree: &SyntaxTree) -> bool {
    has_long_text(tree, false)
}

fn has_long_text(tree: &SyntaxTree, is_operand: bool) -> bool {
    let has_operands = match &tree.kind {
        SyntaxKind::Text(text) | SyntaxKind::Number(text) => {
            return is_operand && text.len() > MAX_OPERAND_BYTES;
        }
        // The text of an array is no pattern. The number of patterns has a limit of its own.
        SyntaxKind::Quantified { operands, .. } if matches!(operands[1].kind, SyntaxKind::Text(_)) => {
            return has_long_text(&operands[0], is_operand);
        }
        SyntaxKind::Binary(operator, _) | SyntaxKind::Quantified { operator, .. } => {
            matches!(&**operator, "~~" | "!~~" | "~~*" | "!~~*")
        }
        SyntaxKind::Call(..) => true,
        _ => false,
    };
    let mut is_long = false;
    tree.kind.each_child(&mut |child| is_long = is_long || has_long_text(child, is_operand || has_operands));
    is_long
}

/// Returns the weight of a tree.
pub(crate) fn weight(tree: &SyntaxTree) -> usize {
    let mut sum: usize = 1;
    let mut add = |tree: &SyntaxTree, copies: usize| {
        sum = sum.saturating_add(weight(tree).saturating_mul(copies));
    };
    match &tree.kind {
        SyntaxKind::Text(text) | SyntaxKind::Number(text) => return text.len().saturating_add(1),
        SyntaxKind::Between { symmetric, operands, .. } => {
            let [operand, low, high] = &**operands;
            let copies = if *symmetric { 2 } else { 1 };
            add(operand, 2 * copies);
            add(low, copies);
            add(high, copies);
        }
        SyntaxKind::In { operand, list, .. } => {
            let is_row = matches!(operand.kind, SyntaxKind::Row(_));
            let copied = list.iter().filter(|item| is_row || !is_constant(item)).count();
            add(operand, 1 + copied);
            list.iter().for_each(|item| add(item, 1));
        }
        SyntaxKind::InSelect { operand, select, .. } => {
            add(operand, 1);
            select.condition.iter().for_each(|condition| add(condition, 1));
        }
        SyntaxKind::Exists(select) => select.condition.iter().for_each(|condition| add(condition, 1)),
        SyntaxKind::Case { operand: Some(operand), arms, otherwise } => {
            add(operand, 1 + arms.len());
            otherwise.iter().for_each(|tree| add(tree, 1));
            for (when, then) in arms {
                add(when, 1);
                add(then, 1);
            }
        }
        kind => kind.each_child(&mut |child| add(child, 1)),
    }
    sum
}

fn is_constant(tree: &SyntaxTree) -> bool {
    matches!(tree.kind, SyntaxKind::Text(_) | SyntaxKind::Number(_) | SyntaxKind::Bool(_) | SyntaxKind::Null)
}
