//! Expressions whose types are known: what is evaluated.

use super::kind::{Scalar, Type};
use crate::syntax::Test;
use crate::value::Value;
use crate::value::letters::{Case, Casing};

/// A typed expression. Operands have the types that the operator takes: casts are nodes of their own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Const(Option<Value<'static>>),
    Column {
        index: usize,
        kind: Type,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Is {
        negated: bool,
        test: Test,
        operand: Box<Expr>,
    },
    Distinct {
        negated: bool,
        blank: bool,
        operands: Box<[Expr; 2]>,
    },
    /// NULL if its operand is.
    Unary(Unary, Box<Expr>),
    /// NULL if either operand is.
    Binary(Binary, Box<[Expr; 2]>),
    /// `left op ANY (right)` or ALL.
    Quantified {
        operator: Binary,
        all: bool,
        operands: Box<[Expr; 2]>,
    },
    /// Of elements, or of arrays.
    Array {
        nested: bool,
        items: Vec<Expr>,
    },
    Index(Box<Expr>, Vec<Expr>),
    Slice(Box<Expr>, Vec<(Option<Expr>, Option<Expr>)>),
    Coalesce(Vec<Expr>),
    Extreme {
        greatest: bool,
        blank: bool,
        items: Vec<Expr>,
    },
    /// concat(): the texts of all that aren't NULL.
    Concat(Vec<(Expr, Type)>),
    Case {
        operand: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Box<Expr>,
    },
    /// What a CASE compares: its operand, evaluated once.
    CaseOperand,
    ArrayCat(Box<[Expr; 2]>),
    /// The array, and the element.
    ArrayPush {
        at_end: bool,
        operands: Box<[Expr; 2]>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    /// Of the type it was given.
    Negate(Scalar),
    Abs(Scalar),
    BitNot,
    SquareRoot,
    Case(Casing, Case),
    Dimensions,
    JustifyHours,
    JustifyDays,
    JustifyInterval,
    /// From one type to another; `modern`: as Postgres 16 and newer read texts.
    Cast {
        from: Type,
        to: Type,
        modern: bool,
    },
    /// To a length or a precision.
    Fit(Fit),
    /// A moment, so many microseconds later: into or out of a time zone.
    Shift(i64),
    /// The same, of a time with time zone, whose zone lies so many seconds west.
    MoveZone(i32),
}

/// A type's modifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// varchar(n): cut.
    Length(usize),
    /// char(n): cut or padded.
    Padded(usize),
    /// numeric(p, s).
    Digits { precision: i32, scale: i32 },
    /// timestamp(p) and the like: digits of the seconds.
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
    /// `blank`: blanks at the ends of texts don't count.
    Compare {
        comparison: Comparison,
        blank: bool,
    },
    /// With the result's type.
    Arithmetic(Arithmetic, Scalar),
    Concat,
    /// `casing`: whether letters' case matters (`None`) or not.
    Like {
        negated: bool,
        casing: Option<Casing>,
    },
    LikeEscape,
    /// `@>`; `<@` has its operands turned round.
    Contains {
        blank: bool,
        turned: bool,
    },
    Overlaps {
        blank: bool,
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

    /// Whether it is only about being the same.
    pub(crate) fn is_equality(self) -> bool {
        matches!(self, Comparison::Equal | Comparison::NotEqual)
    }

    /// With the operands turned round.
    pub(crate) fn turned(self) -> Self {
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
        Expr::Const(Some(Value::Bool(value)))
    }

    pub(crate) fn unary(unary: Unary, operand: Expr) -> Expr {
        Expr::Unary(unary, Box::new(operand))
    }

    pub(crate) fn is_const(&self) -> bool {
        matches!(self, Expr::Const(_))
    }
}
