//! Typed expressions, which `eval/` evaluates.

use super::sql_type::{Scalar, SqlType};
use crate::eval::function::{BinaryFunction, UnaryFunction};
use crate::syntax::IsTest;
use crate::value::SqlValue;
use crate::value::array::ArrayEnd;
use crate::value::letter_case::Casing;

/// A typed expression. Operands have the operator's types: implicit casts are separate nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Const(Option<SqlValue<'static>>),
    Column {
        index: usize,
        kind: SqlType,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    /// A condition that only Postgres can evaluate, and the columns that it uses, sorted.
    Postgres {
        columns: Vec<usize>,
    },
    Is {
        negated: bool,
        test: IsTest,
        operand: Box<Expr>,
    },
    Distinct {
        negated: bool,
        ignore_blanks: bool,
        operands: Box<[Expr; 2]>,
    },
    /// NULL if the operand is NULL.
    Unary(Unary, Box<Expr>),
    /// NULL if either operand is NULL.
    Binary(Binary, Box<[Expr; 2]>),
    /// `left op ANY (right)` or `left op ALL (right)`.
    Quantified {
        operator: Binary,
        all: bool,
        operands: Box<[Expr; 2]>,
    },
    /// `ARRAY[…]` of elements, or of arrays (`nested`).
    Array {
        nested: bool,
        items: Vec<Expr>,
    },
    Index(Box<Expr>, Vec<Expr>),
    Slice(Box<Expr>, Vec<(Option<Expr>, Option<Expr>)>),
    Coalesce(Vec<Expr>),
    Extreme {
        greatest: bool,
        ignore_blanks: bool,
        items: Vec<Expr>,
    },
    /// concat(): the texts of all arguments that are not NULL.
    Concat(Vec<(Expr, SqlType)>),
    Case {
        operand: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Box<Expr>,
    },
    /// The operand of the enclosing CASE, which is evaluated once.
    CaseOperand,
    ArrayCat(Box<[Expr; 2]>),
    /// array_append and array_prepend: the array, and the element.
    ArrayPush {
        end: ArrayEnd,
        operands: Box<[Expr; 2]>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    /// `-` on this type.
    Negate(Scalar),
    Abs(Scalar),
    BitNot,
    SquareRoot,
    Function(UnaryFunction),
    /// Cast. `modern`: parse texts as Postgres 16 and newer.
    Cast {
        from: SqlType,
        to: SqlType,
        modern: bool,
    },
    /// Cast to a length or a precision.
    Fit(TypeModifier),
    /// Adds microseconds to a timestamp: conversion into or out of a time zone.
    Shift(i64),
    /// Converts a timetz to the zone this many seconds west of Greenwich.
    MoveZone(i32),
}

/// Length or precision of a type (pg_attribute.atttypmod).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TypeModifier {
    /// varchar(n): longer texts are truncated.
    Length(usize),
    /// char(n): texts are truncated or padded.
    Padded(usize),
    /// numeric(p, s).
    Digits { precision: i32, scale: i32 },
    /// Digits of the seconds: timestamp(p), time(p), interval(p).
    Fraction(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Binary {
    /// `ignore_blanks`: trailing blanks are ignored, as for bpchar.
    Compare {
        comparison: Comparison,
        ignore_blanks: bool,
    },
    /// The operator, and the type of its result.
    Arithmetic(Arithmetic, Scalar),
    Concat,
    /// LIKE, or ILIKE if there is a `casing`.
    Like {
        negated: bool,
        casing: Option<Casing>,
    },
    Function(BinaryFunction),
    /// `@>`. With `swapped`: `<@`.
    Contains {
        ignore_blanks: bool,
        swapped: bool,
    },
    Overlaps {
        ignore_blanks: bool,
    },
}

impl Comparison {
    pub(crate) fn of(operator: &str) -> Option<Self> {
        Some(match operator {
            "=" => Comparison::Equal,
            "<>" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }

    /// Returns whether it is `=` or `<>`.
    pub(crate) fn is_equality(self) -> bool {
        matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// Returns the comparison with swapped operands.
    pub(crate) fn swapped(self) -> Self {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            Comparison::Equal | Comparison::NotEqual => self,
        }
    }
}

impl Expr {
    pub(crate) const NULL: Expr = Expr::Const(None);

    pub(crate) fn truth(value: bool) -> Expr {
        Expr::Const(Some(SqlValue::Bool(value)))
    }

    pub(crate) fn unary(unary: Unary, operand: Expr) -> Expr {
        Expr::Unary(unary, Box::new(operand))
    }

    pub(crate) fn is_const(&self) -> bool {
        matches!(self, Expr::Const(_))
    }
}
