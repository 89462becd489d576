//! Syntax trees of where clauses, before typing.
//!
//! Invariant: a tree is at most [`MAX_DEPTH`] levels high, so code that walks it may recurse. A
//! chain of AND or OR is one level. A chain of other operators has half a level for each.
//! Enforced by: `parser.rs` counts its recursion and the height of each node.
//!
//! Decision: this crate has its own parser, because precedence and error locations must be those of
//! Postgres. sqlparser 0.63 parses `-2 ^ 2` as `-(2 ^ 2)` and `@ a + b` as `(@ a) + b`, which
//! Postgres does not. It reports no location for most errors. Speed is no reason: a clause is
//! parsed once.

mod canonical;
pub(crate) mod citext;
pub(crate) mod domain_array;
mod keywords;
mod lexer;
mod parser;
mod predicate;
mod primary;
mod special_call;
mod subquery;
mod type_name;
mod weight;

pub(crate) use parser::{Subqueries, parse};
pub(crate) use subquery::Subselect;
pub(crate) use type_name::TypeName;
pub(crate) use weight::{MAX_OPERAND_BYTES, MAX_WEIGHT, has_long_operand, weight};

/// Maximum depth of a tree, in levels. The left operand of an operator counts as half a level, so
/// that long sums are within it.
pub(crate) const MAX_DEPTH: usize = 64;

/// Node of a syntax tree. `at` is the byte position in the clause that Postgres reports in errors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyntaxTree {
    pub(crate) kind: SyntaxKind,
    pub(crate) at: usize,
    /// Height in half levels: how often the parser recurses for the canonical text.
    pub(crate) height: usize,
}

/// Kind of a node, with its children.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SyntaxKind {
    /// The parts of a dotted name.
    Name(Vec<String>),
    /// A string constant or a parameter, not typed yet.
    Text(String),
    /// A number as written, including a minus sign directly before it.
    Number(String),
    Bool(bool),
    Null,
    And(Vec<SyntaxTree>),
    Or(Vec<SyntaxTree>),
    Not(Box<SyntaxTree>),
    Unary(String, Box<SyntaxTree>),
    /// An operator and its operands. LIKE is the operator `~~`, as in Postgres.
    Binary(String, Box<[SyntaxTree; 2]>),
    Between {
        negated: bool,
        symmetric: bool,
        operands: Box<[SyntaxTree; 3]>,
    },
    In {
        negated: bool,
        operand: Box<SyntaxTree>,
        list: Vec<SyntaxTree>,
    },
    /// `operand IN (SELECT …)`. The operand is a name or a row of names.
    InSelect {
        negated: bool,
        operand: Box<SyntaxTree>,
        select: Box<Subselect>,
    },
    /// `EXISTS (SELECT …)`.
    Exists(Box<Subselect>),
    /// `left op ANY (right)` or `ALL`.
    Quantified {
        operator: String,
        all: bool,
        operands: Box<[SyntaxTree; 2]>,
    },
    Is {
        negated: bool,
        test: IsTest,
        operand: Box<SyntaxTree>,
    },
    Distinct {
        negated: bool,
        operands: Box<[SyntaxTree; 2]>,
    },
    Cast(Box<SyntaxTree>, TypeName),
    Collate(Box<SyntaxTree>, Vec<String>),
    Call(String, Vec<SyntaxTree>),
    /// COALESCE, GREATEST, LEAST, NULLIF.
    Choice(ChoiceFunction, Vec<SyntaxTree>),
    Case {
        operand: Option<Box<SyntaxTree>>,
        arms: Vec<(SyntaxTree, SyntaxTree)>,
        otherwise: Option<Box<SyntaxTree>>,
    },
    Array(Vec<SyntaxTree>),
    /// `(a, b)` or `ROW(a, b)`.
    Row(Vec<SyntaxTree>),
    Subscript(Box<SyntaxTree>, Vec<Subscript>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsTest {
    Null,
    True,
    False,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChoiceFunction {
    Coalesce,
    Greatest,
    Least,
    NullIf,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subscript {
    Index(SyntaxTree),
    Slice(Option<SyntaxTree>, Option<SyntaxTree>),
}

impl SyntaxTree {
    pub(crate) fn new(kind: SyntaxKind, at: usize) -> Self {
        let mut height = 0;
        match &kind {
            SyntaxKind::Binary(_, operands) => {
                height = operands[0].height.max(operands[1].height + 1);
            }
            kind => kind.each_child(&mut |child| height = height.max(child.height + 1)),
        }
        let condition = kind.subselect().and_then(|select| select.condition.as_ref());
        height = condition.map_or(height, |condition| height.max(condition.height + 1));
        SyntaxTree { kind, at, height: height + 1 }
    }
}

/// Calls `visit` for each child of a node. `iter` is the method that borrows the items of a list:
/// `iter` or `iter_mut`.
macro_rules! visit_children {
    ($node:expr, $iter:ident, $visit:expr) => {
        match $node {
            SyntaxKind::Name(_)
            | SyntaxKind::Text(_)
            | SyntaxKind::Number(_)
            | SyntaxKind::Bool(_)
            | SyntaxKind::Null
            | SyntaxKind::Exists(_) => {}
            SyntaxKind::And(list)
            | SyntaxKind::Or(list)
            | SyntaxKind::Call(_, list)
            | SyntaxKind::Choice(_, list)
            | SyntaxKind::Row(list)
            | SyntaxKind::Array(list) => list.$iter().for_each($visit),
            SyntaxKind::Not(operand)
            | SyntaxKind::Unary(_, operand)
            | SyntaxKind::Is { operand, .. }
            | SyntaxKind::InSelect { operand, .. }
            | SyntaxKind::Cast(operand, _)
            | SyntaxKind::Collate(operand, _) => $visit(operand),
            SyntaxKind::Binary(_, operands)
            | SyntaxKind::Quantified { operands, .. }
            | SyntaxKind::Distinct { operands, .. } => operands.$iter().for_each($visit),
            SyntaxKind::Between { operands, .. } => operands.$iter().for_each($visit),
            SyntaxKind::In { operand, list, .. } => {
                $visit(operand);
                list.$iter().for_each($visit);
            }
            SyntaxKind::Case { operand, arms, otherwise } => {
                operand.$iter().chain(otherwise).for_each(|tree| $visit(tree));
                for (when, then) in arms {
                    $visit(when);
                    $visit(then);
                }
            }
            SyntaxKind::Subscript(base, subscripts) => {
                $visit(base);
                for subscript in subscripts {
                    match subscript {
                        Subscript::Index(index) => $visit(index),
                        Subscript::Slice(from, to) => from.$iter().chain(to).for_each(&mut *$visit),
                    }
                }
            }
        }
    };
}

impl SyntaxKind {
    /// Returns the SELECT of a subquery.
    pub(crate) fn subselect(&self) -> Option<&Subselect> {
        match self {
            SyntaxKind::InSelect { select, .. } | SyntaxKind::Exists(select) => Some(select),
            _ => None,
        }
    }

    /// Calls `visit` for each child. The parts of a SELECT are no children: their names are those
    /// of another table.
    pub(crate) fn each_child(&self, visit: &mut impl FnMut(&SyntaxTree)) {
        visit_children!(self, iter, visit);
    }

    /// Calls `visit` for each child, which may be replaced.
    pub(crate) fn each_child_mut(&mut self, visit: &mut impl FnMut(&mut SyntaxTree)) {
        visit_children!(self, iter_mut, visit);
    }
}
