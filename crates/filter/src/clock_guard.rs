//! Clock guard: makes a clause fail in Postgres on texts of a row that mean the current time.
//!
//! Postgres reads `now`, `today`, `tomorrow` and `yesterday` in a text as the current time. A shape
//! follows only changes of rows, so such a text must have no value.
//!
//! Invariant: the clause has the same value as before on all other texts.
//! Enforced by: no other text with one of these words is a date or time, so only texts that fail
//! anyway are changed. The guard changes only operands of casts that read a text.

use crate::syntax::{SyntaxKind, SyntaxTree, TypeName};

/// Words that Postgres reads as the current time.
const WORDS: &str = "now|today|tomorrow|yesterday";

/// Text in place of such a word. No date or time has it.
const REPLACEMENT: &str = "the current time";

/// Guards the casts at these positions.
pub(crate) fn guard(tree: &mut SyntaxTree, casts: &[usize]) {
    tree.kind.each_child_mut(&mut |child| guard(child, casts));
    if let SyntaxKind::Cast(operand, _) = &mut tree.kind
        && casts.contains(&tree.at)
    {
        guard_operand(operand);
    }
}

fn guard_operand(operand: &mut SyntaxTree) {
    let at = operand.at;
    let node = |kind| SyntaxTree::new(kind, at);
    let unguarded = std::mem::replace(operand, node(SyntaxKind::Null));
    let text = node(SyntaxKind::Cast(Box::new(unguarded), TypeName::plain("text")));
    // Regular expressions refuse nondeterministic and conflicting collations. The words are ASCII.
    let text = node(SyntaxKind::Collate(Box::new(text), vec!["C".to_owned()]));
    let constants = [WORDS, REPLACEMENT, "gi"].map(|constant| node(SyntaxKind::Text(constant.to_owned())));
    let arguments = [text].into_iter().chain(constants).collect();
    *operand = node(SyntaxKind::Call("regexp_replace".to_owned(), arguments));
}
