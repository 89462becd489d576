//! Operator table: the rows of pg_operator for the supported scalar types. `tests/it/catalog.rs`
//! compares it with real servers.

use super::sql_type::Scalar::{self, *};

/// What an operator accepts as an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandType {
    Is(Scalar),
    /// `anynonarray`: any type that is not an array.
    NonArray,
}

/// One row of pg_operator: operand types and result type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    pub(crate) left: OperandType,
    pub(crate) right: OperandType,
    pub(crate) result: Scalar,
}

/// Returns the rows of a binary operator; none if it is not supported.
pub(crate) fn binary(name: &str) -> Vec<Operator> {
    match name {
        "=" | "<>" | "<" | ">" | "<=" | ">=" => comparisons(),
        "+" => [numbers(), rows(&PLUS)].concat(),
        "-" => [numbers(), rows(&MINUS)].concat(),
        "*" => [numbers(), rows(&TIMES)].concat(),
        "/" => [numbers(), rows(&[(Interval, Float8, Interval)])].concat(),
        "%" => [same(&INTEGERS), same(&[Numeric])].concat(),
        "^" => same(&[Float8, Numeric]),
        "&" | "|" | "#" => same(&INTEGERS),
        "||" => vec![
            Operator { left: OperandType::Is(Text), right: OperandType::Is(Text), result: Text },
            Operator { left: OperandType::Is(Text), right: OperandType::NonArray, result: Text },
            Operator { left: OperandType::NonArray, right: OperandType::Is(Text), result: Text },
        ],
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

fn rows(rows: &[(Scalar, Scalar, Scalar)]) -> Vec<Operator> {
    let row = |&(left, right, result): &(Scalar, Scalar, Scalar)| Operator {
        left: OperandType::Is(left),
        right: OperandType::Is(right),
        result,
    };
    rows.iter().map(row).collect()
}

fn same(types: &[Scalar]) -> Vec<Operator> {
    rows(&types.iter().map(|&scalar| (scalar, scalar, scalar)).collect::<Vec<_>>())
}

/// Returns every pair of the list, with the later type of each pair as the result.
fn pairs(types: &[Scalar]) -> Vec<(Scalar, Scalar, Scalar)> {
    let place = |scalar: Scalar| types.iter().position(|other| *other == scalar);
    let wider = |left: Scalar, right: Scalar| if place(left) > place(right) { left } else { right };
    types.iter().flat_map(|&l| types.iter().map(move |&r| (l, r, wider(l, r)))).collect()
}

/// Returns the rows of `+ - * /` on two numbers.
fn numbers() -> Vec<Operator> {
    [rows(&pairs(&INTEGERS)), rows(&pairs(&FLOATS)), same(&[Numeric])].concat()
}

fn comparisons() -> Vec<Operator> {
    let all = [
        rows(&pairs(&INTEGERS)),
        rows(&pairs(&FLOATS)),
        rows(&pairs(&[Date, Timestamp, Timestamptz])),
        same(&[Numeric, Bool, Text, Bpchar, Uuid, Time, Timetz, Interval]),
    ];
    all.concat().into_iter().map(|operator| Operator { result: Bool, ..operator }).collect()
}
