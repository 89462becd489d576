//! Types that filters support.

use std::fmt::{self, Display, Formatter};

/// A supported scalar type.
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
    Json,
    Jsonb,
    Bytea,
    Inet,
    Cidr,
    Macaddr,
    Int4range,
    Int8range,
    Numrange,
    Tsrange,
    Tstzrange,
    Daterange,
    /// The enum with this oid.
    Enum(u32),
}

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SqlType {
    /// A text constant without a type yet. It takes the type of the other operand.
    Unknown,
    Scalar(Scalar),
    Array(Scalar),
    /// An unsupported type: the type of the column at this position. It allows only IS NULL.
    Opaque(usize),
}

/// Type category (pg_type.typcategory).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    Boolean,
    Number,
    String,
    DateTime,
    Timespan,
    Network,
    Range,
    Enum,
    BitString,
    Geometric,
    User,
    Array,
    Unknown,
    Pseudo,
}

impl Category {
    /// Returns the letter in pg_type.typcategory.
    pub(crate) fn letter(self) -> char {
        match self {
            Category::Boolean => 'B',
            Category::Number => 'N',
            Category::String => 'S',
            Category::DateTime => 'D',
            Category::Timespan => 'T',
            Category::BitString => 'V',
            Category::Geometric => 'G',
            Category::Network => 'I',
            Category::Range => 'R',
            Category::Enum => 'E',
            Category::User => 'U',
            Category::Array => 'A',
            Category::Unknown => 'X',
            Category::Pseudo => 'P',
        }
    }
}

/// Rows of pg_type: name in the catalog, name in messages, oid, oid of the array type. Enums have
/// no row.
const PG_TYPES: [(Scalar, &str, &str, u32, u32); 29] = [
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
    (Scalar::Json, "json", "json", 114, 199),
    (Scalar::Jsonb, "jsonb", "jsonb", 3802, 3807),
    (Scalar::Bytea, "bytea", "bytea", 17, 1001),
    (Scalar::Inet, "inet", "inet", 869, 1041),
    (Scalar::Cidr, "cidr", "cidr", 650, 651),
    (Scalar::Macaddr, "macaddr", "macaddr", 829, 1040),
    (Scalar::Int4range, "int4range", "int4range", 3904, 3905),
    (Scalar::Int8range, "int8range", "int8range", 3926, 3927),
    (Scalar::Numrange, "numrange", "numrange", 3906, 3907),
    (Scalar::Tsrange, "tsrange", "tsrange", 3908, 3909),
    (Scalar::Tstzrange, "tstzrange", "tstzrange", 3910, 3911),
    (Scalar::Daterange, "daterange", "daterange", 3912, 3913),
];

impl Scalar {
    /// Returns the type with this name in the catalog.
    pub(crate) fn by_name(name: &str) -> Option<Scalar> {
        PG_TYPES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub(crate) fn all() -> impl Iterator<Item = Scalar> {
        PG_TYPES.iter().map(|row| row.0)
    }

    /// Returns whether a type of Postgres has this name.
    pub(crate) fn is_name(name: &str) -> bool {
        Scalar::by_name(name).is_some()
    }

    /// Returns the name in the catalog. The name of an enum is in the schema.
    pub(crate) fn catalog_name(self) -> &'static str {
        PG_TYPES.iter().find(|row| row.0 == self).map_or("enum", |row| row.1)
    }

    /// Returns the name in messages. The name of an enum is in the schema.
    pub(crate) fn name(self) -> &'static str {
        PG_TYPES.iter().find(|row| row.0 == self).map_or("enum", |row| row.2)
    }

    /// Returns the type of a range's bounds.
    pub(crate) fn range_element(self) -> Option<Scalar> {
        Some(match self {
            Scalar::Int4range => Scalar::Int4,
            Scalar::Int8range => Scalar::Int8,
            Scalar::Numrange => Scalar::Numeric,
            Scalar::Tsrange => Scalar::Timestamp,
            Scalar::Tstzrange => Scalar::Timestamptz,
            Scalar::Daterange => Scalar::Date,
            _ => return None,
        })
    }

    pub(crate) fn is_enum(self) -> bool {
        matches!(self, Scalar::Enum(_))
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
            Uuid | Json | Jsonb | Bytea | Macaddr => Category::User,
            Inet | Cidr => Category::Network,
            Int4range | Int8range | Numrange | Tsrange | Tstzrange | Daterange => Category::Range,
            Enum(_) => Category::Enum,
            Date | Time | Timetz | Timestamp | Timestamptz => Category::DateTime,
            Interval => Category::Timespan,
        }
    }

    /// Returns whether the type is preferred in its category (pg_type.typispreferred).
    pub(crate) fn is_preferred(self) -> bool {
        use Scalar::*;
        matches!(self, Bool | Float8 | Text | Timestamptz | Interval | Inet)
    }

    /// Returns whether Postgres casts the type to `target` implicitly (pg_cast, context `i`).
    pub(crate) fn casts_implicitly_to(self, target: Scalar) -> bool {
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
                Cidr => target == Inet,
                _ => false,
            }
    }

    /// Returns whether Postgres has an explicit cast to `target`, other than through text.
    pub(crate) fn casts_explicitly_to(self, target: Scalar) -> bool {
        use Scalar::*;
        let number = |scalar: Scalar| scalar.category() == Category::Number;
        self.casts_implicitly_to(target)
            || match self {
                Bool => target == Int4 || target.is_text(),
                Int4 if target == Bool => true,
                Int2 | Int4 | Int8 | Numeric | Float4 | Float8 => number(target),
                Timestamp => matches!(target, Date | Time),
                Timestamptz => matches!(target, Date | Time | Timestamp | Timetz),
                Interval => target == Time,
                Timetz => target == Time,
                Json => target == Jsonb,
                Jsonb => target == Json || target == Bool || number(target),
                Inet => target == Cidr,
                _ => false,
            }
    }
}

impl SqlType {
    pub(crate) const TEXT: SqlType = SqlType::Scalar(Scalar::Text);
    pub(crate) const BOOL: SqlType = SqlType::Scalar(Scalar::Bool);

    /// Returns the type with this oid in pg_type.
    pub(crate) fn by_oid(oid: u32) -> Option<SqlType> {
        PG_TYPES.iter().find_map(|(scalar, _, _, scalar_oid, array_oid)| match oid {
            _ if oid == *scalar_oid => Some(SqlType::Scalar(*scalar)),
            _ if oid == *array_oid => Some(SqlType::Array(*scalar)),
            _ => None,
        })
    }

    pub(crate) fn category(self) -> Category {
        match self {
            SqlType::Unknown => Category::Unknown,
            SqlType::Scalar(scalar) => scalar.category(),
            SqlType::Array(_) => Category::Array,
            SqlType::Opaque(_) => Category::User,
        }
    }

    pub(crate) fn is_collatable(self) -> bool {
        matches!(self, SqlType::Scalar(scalar) | SqlType::Array(scalar) if scalar.is_text())
    }

    /// Returns whether Postgres casts the type to `target` implicitly.
    pub(crate) fn casts_implicitly_to(self, target: SqlType) -> bool {
        match (self, target) {
            (SqlType::Unknown, _) => true,
            (SqlType::Scalar(from), SqlType::Scalar(to)) => from.casts_implicitly_to(to),
            // Casts of arrays are casts of their elements (find_coercion_pathway).
            (SqlType::Array(from), SqlType::Array(to)) => from.casts_implicitly_to(to),
            _ => self == target,
        }
    }
}

impl Display for SqlType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            SqlType::Unknown => f.write_str("unknown"),
            SqlType::Scalar(scalar) => f.write_str(scalar.name()),
            SqlType::Array(scalar) => write!(f, "{}[]", scalar.name()),
            SqlType::Opaque(_) => f.write_str("a type that is"),
        }
    }
}
