//! Where clauses as trees, before any type is known.
//!
//! Invariant: a tree is at most [`MAX_DEPTH`] levels high, whatever the text was, so everything that walks it may
//! recurse; long chains of AND or OR are one level.
//! Kept by: `parser.rs` counts its own recursion, and the height of each node that it makes.
//!
//! The parser is our own, and no library, because precedence and places must be Postgres' own: sqlparser 0.63 reads
//! `-2 ^ 2` as `-(2 ^ 2)` and `@ a + b` as `(@ a) + b`, both other than Postgres, and tells no place of most errors.

mod canonical;
mod keywords;
mod lexer;
mod parser;
mod primary;
mod special;
mod type_name;

pub(crate) use parser::parse;
pub(crate) use type_name::TypeName;

/// The highest tree.
pub(crate) const MAX_DEPTH: usize = 64;

/// One node, and the byte of the clause that it is about, where Postgres would point.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tree {
    pub(crate) kind: Kind,
    pub(crate) at: usize,
    pub(crate) height: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// The parts of a dotted name.
    Name(Vec<String>),
    /// A string constant or a parameter: of no type yet.
    Text(String),
    /// As written, with a minus where one stands right before it.
    Number(String),
    Bool(bool),
    Null,
    And(Vec<Tree>),
    Or(Vec<Tree>),
    Not(Box<Tree>),
    Unary(String, Box<Tree>),
    /// LIKE is `~~`, as in Postgres.
    Binary(String, Box<[Tree; 2]>),
    Between {
        negated: bool,
        symmetric: bool,
        operands: Box<[Tree; 3]>,
    },
    In {
        negated: bool,
        operand: Box<Tree>,
        list: Vec<Tree>,
    },
    /// `left op ANY (right)` or `ALL`.
    Quantified {
        operator: String,
        all: bool,
        operands: Box<[Tree; 2]>,
    },
    Is {
        negated: bool,
        test: Test,
        operand: Box<Tree>,
    },
    Distinct {
        negated: bool,
        operands: Box<[Tree; 2]>,
    },
    Cast(Box<Tree>, TypeName),
    Collate(Box<Tree>, Vec<String>),
    Call(String, Vec<Tree>),
    /// COALESCE, GREATEST, LEAST, NULLIF.
    Choice(Choice, Vec<Tree>),
    Case {
        operand: Option<Box<Tree>>,
        arms: Vec<(Tree, Tree)>,
        otherwise: Option<Box<Tree>>,
    },
    Array(Vec<Tree>),
    Subscript(Box<Tree>, Vec<Subscript>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Null,
    True,
    False,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Coalesce,
    Greatest,
    Least,
    NullIf,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Subscript {
    Index(Tree),
    Slice(Option<Tree>, Option<Tree>),
}

impl Tree {
    pub(crate) fn new(kind: Kind, at: usize) -> Self {
        let mut height = 0;
        kind.each_child(&mut |child| height = height.max(child.height));
        Tree { kind, at, height: height + 1 }
    }
}

impl Kind {
    pub(crate) fn each_child(&self, visit: &mut impl FnMut(&Tree)) {
        match self {
            Kind::Name(_) | Kind::Text(_) | Kind::Number(_) | Kind::Bool(_) | Kind::Null => {}
            Kind::And(list)
            | Kind::Or(list)
            | Kind::Call(_, list)
            | Kind::Choice(_, list)
            | Kind::Array(list) => {
                list.iter().for_each(visit);
            }
            Kind::Not(operand)
            | Kind::Unary(_, operand)
            | Kind::Is { operand, .. }
            | Kind::Cast(operand, _)
            | Kind::Collate(operand, _) => visit(operand),
            Kind::Binary(_, operands)
            | Kind::Quantified { operands, .. }
            | Kind::Distinct { operands, .. } => operands.iter().for_each(visit),
            Kind::Between { operands, .. } => operands.iter().for_each(visit),
            Kind::In { operand, list, .. } => {
                visit(operand);
                list.iter().for_each(visit);
            }
            Kind::Case { operand, arms, otherwise } => {
                operand.iter().chain(otherwise).for_each(|tree| visit(tree));
                arms.iter().for_each(|(when, then)| {
                    visit(when);
                    visit(then);
                });
            }
            Kind::Subscript(base, subscripts) => {
                visit(base);
                for subscript in subscripts {
                    match subscript {
                        Subscript::Index(index) => visit(index),
                        Subscript::Slice(from, to) => from.iter().chain(to).for_each(&mut *visit),
                    }
                }
            }
        }
    }
}
