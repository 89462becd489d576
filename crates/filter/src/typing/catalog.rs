//! Operator table: the rows of pg_operator for the supported scalar types. `tests/it/catalog.rs`
//! compares it with real servers.

use forebay_values::Scalar;
use forebay_values::Scalar::*;

use super::foreign_type::ForeignType;
use super::sql_type::{Category, SqlType, TypeRules};

/// Operand type of an operator, or argument type of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandType {
    Scalar(Scalar),
    Array(Scalar),
    Foreign(&'static ForeignType),
    /// `any`.
    Any,
    /// `anyelement`.
    Element,
    /// `anynonarray`: any type that is not an array.
    NonArray,
    /// `anyarray`.
    AnyArray,
    /// `anycompatible`.
    Compatible,
    /// `anycompatiblearray`.
    CompatibleArray,
}

impl OperandType {
    /// Returns the type with this name in pg_type. An array is written `text[]`.
    pub(crate) fn by_name(name: &str) -> Self {
        match name {
            "any" => OperandType::Any,
            "anyelement" => OperandType::Element,
            "anynonarray" => OperandType::NonArray,
            "anyarray" => OperandType::AnyArray,
            "anycompatible" => OperandType::Compatible,
            "anycompatiblearray" => OperandType::CompatibleArray,
            _ => {
                let array = name.strip_suffix("[]").and_then(Scalar::by_name).map(OperandType::Array);
                let foreign = || ForeignType::by_name(name).map(OperandType::Foreign);
                let known = array.or_else(|| Scalar::by_name(name).map(OperandType::Scalar));
                known.or_else(foreign).unwrap_or_else(|| unreachable!("the tables name known types: {name}"))
            }
        }
    }

    /// Returns the name in pg_type. Arrays have the name of their element.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OperandType::Scalar(scalar) | OperandType::Array(scalar) => scalar.catalog_name(),
            OperandType::Foreign(foreign) => foreign.name,
            OperandType::Any => "any",
            OperandType::Element => "anyelement",
            OperandType::NonArray => "anynonarray",
            OperandType::AnyArray => "anyarray",
            OperandType::Compatible => "anycompatible",
            OperandType::CompatibleArray => "anycompatiblearray",
        }
    }

    /// Returns whether it is exactly this type.
    pub(crate) fn is(self, given: SqlType) -> bool {
        match (self, given) {
            (OperandType::Scalar(slot), SqlType::Scalar(given)) => slot == given,
            (OperandType::Array(slot), SqlType::Array(given)) => slot == given,
            _ => false,
        }
    }

    /// Returns whether Postgres casts the type to it implicitly. Polymorphic types also depend on
    /// the other operands: see `polymorphic.rs`.
    pub(crate) fn accepts(self, given: SqlType) -> bool {
        match self {
            OperandType::Scalar(scalar) => given.casts_implicitly_to(SqlType::Scalar(scalar)),
            OperandType::Array(scalar) => given.casts_implicitly_to(SqlType::Array(scalar)),
            OperandType::Foreign(foreign) => foreign.accepts(given),
            OperandType::Any
            | OperandType::Element
            | OperandType::NonArray
            | OperandType::AnyArray
            | OperandType::Compatible
            | OperandType::CompatibleArray => true,
        }
    }

    pub(crate) fn category(self) -> Category {
        match self {
            OperandType::Scalar(scalar) => scalar.category(),
            OperandType::Array(_) => Category::Array,
            OperandType::Foreign(foreign) => foreign.category,
            OperandType::Any
            | OperandType::Element
            | OperandType::NonArray
            | OperandType::AnyArray
            | OperandType::Compatible
            | OperandType::CompatibleArray => Category::Pseudo,
        }
    }

    pub(crate) fn is_preferred(self) -> bool {
        match self {
            OperandType::Scalar(scalar) => scalar.is_preferred(),
            OperandType::Foreign(foreign) => foreign.is_preferred,
            _ => false,
        }
    }
}

/// One row of pg_operator: operand types and result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) left: OperandType,
    pub(crate) right: OperandType,
    pub(crate) result: Scalar,
}

/// Returns the rows of a binary operator; none if the operator is not supported.
pub(crate) fn binary(name: &str) -> Vec<Operator> {
    match name {
        "=" | "<>" | "<" | ">" | "<=" | ">=" => comparisons(),
        "+" => [numbers(), rows(&PLUS)].concat(),
        "-" => [numbers(), rows(&MINUS), rows(&[(Jsonb, Text, Jsonb), (Jsonb, Int4, Jsonb)])].concat(),
        "->" => rows(&[(Json, Text, Json), (Json, Int4, Json), (Jsonb, Text, Jsonb), (Jsonb, Int4, Jsonb)]),
        "->>" => rows(&[(Json, Text, Text), (Json, Int4, Text), (Jsonb, Text, Text), (Jsonb, Int4, Text)]),
        "?" => rows(&[(Jsonb, Text, Bool)]),
        "*" => [numbers(), rows(&TIMES)].concat(),
        "/" => [numbers(), rows(&[(Interval, Float8, Interval)])].concat(),
        "%" => [same_type(&INTEGERS), same_type(&[Numeric])].concat(),
        "^" => same_type(&[Float8, Numeric]),
        "&" | "|" | "#" => same_type(&INTEGERS),
        "||" => vec![
            Operator { left: OperandType::Scalar(Bytea), right: OperandType::Scalar(Bytea), result: Bytea },
            Operator { left: OperandType::Scalar(Text), right: OperandType::Scalar(Text), result: Text },
            Operator { left: OperandType::Scalar(Text), right: OperandType::NonArray, result: Text },
            Operator { left: OperandType::NonArray, right: OperandType::Scalar(Text), result: Text },
            Operator { left: OperandType::Scalar(Jsonb), right: OperandType::Scalar(Jsonb), result: Jsonb },
        ],
        "^@" => rows(&[(Text, Text, Bool)]),
        "~~" | "!~~" | "~~*" | "!~~*" => rows(&[(Bpchar, Text, Bool), (Text, Text, Bool)]),
        _ => Vec::new(),
    }
}

/// Returns the operand types of a prefix operator. The result has the operand's type.
pub(crate) fn prefix(name: &str) -> &'static [Scalar] {
    match name {
        "+" | "@" => &[Int2, Int4, Int8, Float4, Float8, Numeric],
        "-" => &[Int2, Int4, Int8, Float4, Float8, Numeric, Interval],
        "~" => &INTEGERS,
        "|/" => &[Float8],
        _ => &[],
    }
}

const INTEGERS: [Scalar; 3] = [Int2, Int4, Int8];
const FLOATS: [Scalar; 2] = [Float4, Float8];
const PLUS: [(Scalar, Scalar, Scalar); 17] = [
    (Date, Int4, Date),
    (Date, Interval, Timestamp),
    (Date, Time, Timestamp),
    (Date, Timetz, Timestamptz),
    (Int4, Date, Date),
    (Interval, Date, Timestamp),
    (Interval, Interval, Interval),
    (Interval, Time, Time),
    (Interval, Timestamp, Timestamp),
    (Interval, Timestamptz, Timestamptz),
    (Interval, Timetz, Timetz),
    (Time, Date, Timestamp),
    (Time, Interval, Time),
    (Timestamp, Interval, Timestamp),
    (Timestamptz, Interval, Timestamptz),
    (Timetz, Date, Timestamptz),
    (Timetz, Interval, Timetz),
];
const MINUS: [(Scalar, Scalar, Scalar); 11] = [
    (Date, Date, Int4),
    (Date, Int4, Date),
    (Date, Interval, Timestamp),
    (Interval, Interval, Interval),
    (Time, Interval, Time),
    (Time, Time, Interval),
    (Timestamp, Interval, Timestamp),
    (Timestamp, Timestamp, Interval),
    (Timestamptz, Interval, Timestamptz),
    (Timestamptz, Timestamptz, Interval),
    (Timetz, Interval, Timetz),
];
const TIMES: [(Scalar, Scalar, Scalar); 2] = [(Interval, Float8, Interval), (Float8, Interval, Interval)];

/// Converts from tuples of left operand, right operand and result.
fn rows(rows: &[(Scalar, Scalar, Scalar)]) -> Vec<Operator> {
    let row = |&(left, right, result): &(Scalar, Scalar, Scalar)| Operator {
        left: OperandType::Scalar(left),
        right: OperandType::Scalar(right),
        result,
    };
    rows.iter().map(row).collect()
}

/// Returns the rows whose operands and result all have one type, for each of the types.
fn same_type(types: &[Scalar]) -> Vec<Operator> {
    rows(&types.iter().map(|&scalar| (scalar, scalar, scalar)).collect::<Vec<_>>())
}

/// Returns every pair of types. The result is the one that is later in the list.
fn pairs(types: &[Scalar]) -> Vec<(Scalar, Scalar, Scalar)> {
    let position = |scalar: Scalar| types.iter().position(|other| *other == scalar);
    let wider = |left: Scalar, right: Scalar| if position(left) > position(right) { left } else { right };
    types.iter().flat_map(|&l| types.iter().map(move |&r| (l, r, wider(l, r)))).collect()
}

/// Returns the rows of `+ - * /` on two numbers.
fn numbers() -> Vec<Operator> {
    [rows(&pairs(&INTEGERS)), rows(&pairs(&FLOATS)), same_type(&[Numeric])].concat()
}

fn comparisons() -> Vec<Operator> {
    let all = [
        rows(&pairs(&INTEGERS)),
        rows(&pairs(&FLOATS)),
        rows(&pairs(&[Date, Timestamp, Timestamptz])),
        same_type(&[Numeric, Bool, Text, Bpchar, Uuid, Time, Timetz, Interval, Jsonb, Bytea, Inet, Macaddr]),
    ];
    all.concat().into_iter().map(|operator| Operator { result: Bool, ..operator }).collect()
}
