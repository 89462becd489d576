//! The types that a filter can judge.

use std::fmt::{self, Display, Formatter};

/// A scalar type whose values we understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scalar {
    Bool,
    Int2,
    Int4,
    Int8,
    Numeric,
    Float4,
    Float8,
    Text,
    Varchar,
    Bpchar,
    Uuid,
    Date,
    Time,
    Timetz,
    Timestamp,
    Timestamptz,
    Interval,
}

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    /// A constant that takes the type of what it meets.
    Unknown,
    Scalar(Scalar),
    Array(Scalar),
    /// A column's type that only IS NULL and, if it is an enum, `::text` can use; by the column's place.
    Opaque(usize),
}

/// Postgres' categories, as far as ours need them (pg_type.typcategory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    Boolean,
    Number,
    String,
    DateTime,
    Timespan,
    User,
    Array,
    Unknown,
    Pseudo,
}

/// pg_type: name in the catalog, name in messages, oid, oid of the array.
const NAMES: [(Scalar, &str, &str, u32, u32); 17] = [
    (Scalar::Bool, "bool", "boolean", 16, 1000),
    (Scalar::Int2, "int2", "smallint", 21, 1005),
    (Scalar::Int4, "int4", "integer", 23, 1007),
    (Scalar::Int8, "int8", "bigint", 20, 1016),
    (Scalar::Numeric, "numeric", "numeric", 1700, 1231),
    (Scalar::Float4, "float4", "real", 700, 1021),
    (Scalar::Float8, "float8", "double precision", 701, 1022),
    (Scalar::Text, "text", "text", 25, 1009),
    (Scalar::Varchar, "varchar", "character varying", 1043, 1015),
    (Scalar::Bpchar, "bpchar", "character", 1042, 1014),
    (Scalar::Uuid, "uuid", "uuid", 2950, 2951),
    (Scalar::Date, "date", "date", 1082, 1182),
    (Scalar::Time, "time", "time without time zone", 1083, 1183),
    (Scalar::Timetz, "timetz", "time with time zone", 1266, 1270),
    (Scalar::Timestamp, "timestamp", "timestamp without time zone", 1114, 1115),
    (Scalar::Timestamptz, "timestamptz", "timestamp with time zone", 1184, 1185),
    (Scalar::Interval, "interval", "interval", 1186, 1187),
];

impl Scalar {
    fn names(self) -> &'static (Scalar, &'static str, &'static str, u32, u32) {
        &NAMES[self as usize]
    }

    /// By the name in the catalog.
    pub(crate) fn by_name(name: &str) -> Option<Scalar> {
        NAMES.iter().find(|names| names.1 == name).map(|names| names.0)
    }

    /// As messages name it.
    pub(crate) fn name(self) -> &'static str {
        self.names().2
    }

    pub(crate) fn is_text(self) -> bool {
        matches!(self, Scalar::Text | Scalar::Varchar | Scalar::Bpchar)
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Scalar::Int2 | Scalar::Int4 | Scalar::Int8)
    }

    pub(crate) fn category(self) -> Category {
        use Scalar::*;
        match self {
            Bool => Category::Boolean,
            Int2 | Int4 | Int8 | Numeric | Float4 | Float8 => Category::Number,
            Text | Varchar | Bpchar => Category::String,
            Uuid => Category::User,
            Date | Time | Timetz | Timestamp | Timestamptz => Category::DateTime,
            Interval => Category::Timespan,
        }
    }

    /// Whether Postgres prefers it over others of its category.
    pub(crate) fn is_preferred(self) -> bool {
        matches!(self, Scalar::Bool | Scalar::Float8 | Scalar::Text | Scalar::Timestamptz | Scalar::Interval)
    }

    /// Whether Postgres turns it into `target` unasked (pg_cast, context `i`).
    pub(crate) fn becomes(self, target: Scalar) -> bool {
        use Scalar::*;
        self == target
            || match self {
                Int2 => matches!(target, Int4 | Int8 | Numeric | Float4 | Float8),
                Int4 => matches!(target, Int8 | Numeric | Float4 | Float8),
                Int8 => matches!(target, Numeric | Float4 | Float8),
                Numeric => matches!(target, Float4 | Float8),
                Float4 => target == Float8,
                Text | Varchar | Bpchar => target.is_text(),
                Date => matches!(target, Timestamp | Timestamptz),
                Time => matches!(target, Interval | Timetz),
                Timestamp => target == Timestamptz,
                Bool | Float8 | Uuid | Timetz | Timestamptz | Interval => false,
            }
    }

    /// Whether Postgres has a cast, asked for by name, other than through text.
    pub(crate) fn casts_to(self, target: Scalar) -> bool {
        use Scalar::*;
        let number = |scalar: Scalar| scalar.category() == Category::Number;
        self.becomes(target)
            || match self {
                Bool => target == Int4 || target.is_text(),
                Int4 if target == Bool => true,
                Int2 | Int4 | Int8 | Numeric | Float4 | Float8 => number(target),
                Timestamp => matches!(target, Date | Time),
                Timestamptz => matches!(target, Date | Time | Timestamp | Timetz),
                Interval => target == Time,
                Timetz => target == Time,
                Text | Varchar | Bpchar | Uuid | Date | Time => false,
            }
    }
}

impl Type {
    pub(crate) const TEXT: Type = Type::Scalar(Scalar::Text);
    pub(crate) const BOOL: Type = Type::Scalar(Scalar::Bool);

    /// By pg_type.oid.
    pub(crate) fn by_oid(oid: u32) -> Option<Type> {
        NAMES.iter().find_map(|(scalar, _, _, own, array)| match oid {
            _ if oid == *own => Some(Type::Scalar(*scalar)),
            _ if oid == *array => Some(Type::Array(*scalar)),
            _ => None,
        })
    }

    pub(crate) fn category(self) -> Category {
        match self {
            Type::Unknown => Category::Unknown,
            Type::Scalar(scalar) => scalar.category(),
            Type::Array(_) => Category::Array,
            Type::Opaque(_) => Category::User,
        }
    }

    pub(crate) fn is_collatable(self) -> bool {
        matches!(self, Type::Scalar(scalar) | Type::Array(scalar) if scalar.is_text())
    }

    /// Whether Postgres turns it into `target` unasked.
    pub(crate) fn becomes(self, target: Type) -> bool {
        match (self, target) {
            (Type::Unknown, _) => true,
            (Type::Scalar(from), Type::Scalar(to)) => from.becomes(to),
            // Arrays follow their elements (find_coercion_pathway).
            (Type::Array(from), Type::Array(to)) => from.becomes(to),
            _ => self == target,
        }
    }
}

impl Display for Type {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Type::Unknown => f.write_str("unknown"),
            Type::Scalar(scalar) => f.write_str(scalar.name()),
            Type::Array(scalar) => write!(f, "{}[]", scalar.name()),
            Type::Opaque(_) => f.write_str("a type that is"),
        }
    }
}
