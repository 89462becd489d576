//! Typed expressions, which `eval/` evaluates.

use std::sync::Arc;

use forebay_values::{
    Arithmetic, ArrayEnd, Casing, InetOperator, RangeArithmetic, RangeFunction, RangeOperator, Scalar,
    SqlValue, TypeModifier,
};

use super::sql_type::SqlType;
use crate::eval::function::Function;
use crate::eval::json::JsonOperator;
use crate::syntax::IsTest;

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
    /// `operands IN (SELECT …)`. The operands are columns.
    InSet {
        /// Number of the set in `Filter::sets`.
        set: usize,
        operands: Vec<Expr>,
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
    /// A call of a function in `functions/`.
    Call {
        function: Function,
        /// NULL if an argument is NULL.
        is_strict: bool,
        /// Depends on the session's settings.
        is_stable: bool,
        arguments: Vec<Expr>,
    },
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
    /// concat() and concat_ws(): the texts of all arguments that are not NULL.
    Concat {
        separator: Option<Box<Expr>>,
        items: Vec<(Expr, SqlType)>,
    },
    NullIf {
        ignore_blanks: bool,
        operands: Box<[Expr; 2]>,
    },
    /// `<`, `<=`, `>` or `>=` of rows: pairs of operands, and whether their trailing blanks are
    /// ignored.
    RowComparison {
        comparison: Comparison,
        pairs: Vec<(Box<[Expr; 2]>, bool)>,
    },
    Case {
        operand: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Box<Expr>,
    },
    /// The operand of the enclosing CASE, which is evaluated once.
    CaseOperand,
    /// The position of an enum's label, from 0; for an array of labels, the array of positions.
    Position {
        labels: Arc<[String]>,
        operand: Box<Expr>,
    },
    /// The label at a position: the inverse of `Position`.
    Label {
        labels: Arc<[String]>,
        operand: Box<Expr>,
    },
    ArrayCat(Box<[Expr; 2]>),
    /// A function whose first argument is an array.
    ArrayCall {
        function: ArrayFunction,
        ignore_blanks: bool,
        items: Vec<Expr>,
    },
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
    Range(RangeFunction),
    /// Cast. `modern`: parse texts as Postgres 16 and newer.
    Cast {
        from: SqlType,
        to: SqlType,
        modern: bool,
    },
    /// Cast of jsonb to a boolean or a number. `null_is_null`: as in Postgres 18 and newer.
    JsonCast {
        to: Scalar,
        null_is_null: bool,
    },
    /// Cast to a length or a precision.
    Fit(TypeModifier),
    /// Adds microseconds to a timestamp: conversion into or out of a time zone.
    Shift(i64),
    /// Converts a timetz to the zone this many seconds west of Greenwich.
    MoveZone(i32),
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
    /// `^@`.
    StartsWith,
    /// LIKE, or ILIKE if there is a `casing`.
    Like {
        negated: bool,
        casing: Option<Casing>,
    },
    /// `@>`. With `swapped`: `<@`.
    Contains {
        ignore_blanks: bool,
        swapped: bool,
    },
    Overlaps {
        ignore_blanks: bool,
    },
    Json(JsonOperator),
    /// Operator on two ranges.
    Range(RangeOperator),
    /// Operator that makes a range of two, and the type of their bounds.
    RangeArithmetic(RangeArithmetic, Scalar),
    /// `range @> element`. With `swapped`: `element <@ range`.
    RangeHas {
        swapped: bool,
        /// Postgres 17 and newer: in an empty constant range is no element, and in an unbounded one
        /// is every element, NULL too.
        simplifies: bool,
    },
    /// Operator on a multirange and a multirange, a range or an element.
    Multirange(MultirangeOperator),
    Inet(InetOperator),
    /// `||` on bytea.
    ConcatBytes,
}

/// Operator on two multiranges, or on a multirange and a range or an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MultirangeOperator {
    /// `@>`
    Contains,
    /// `<@`
    ContainedBy,
    /// `&&`
    Overlaps,
}

/// Function whose first argument is an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayFunction {
    /// array_length
    Length,
    /// array_lower
    Lower,
    /// array_upper
    Upper,
    /// array_dims
    Bounds,
    /// cardinality
    Cardinality,
    /// array_position
    Find,
    /// array_remove
    Remove,
    /// array_replace
    Replace,
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
