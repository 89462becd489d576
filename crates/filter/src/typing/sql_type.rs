//! Types of expressions: categories and casts.

use std::fmt::{self, Display, Formatter};

use forebay_values::{InputError, Scalar, SqlValue, ValueType};

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

/// Rules of scalar types for operators, functions and casts.
pub(crate) trait TypeRules: Copy {
    fn category(self) -> Category;

    /// Returns whether the type is preferred in its category (pg_type.typispreferred).
    fn is_preferred(self) -> bool;

    /// Returns whether Postgres casts the type to `target` implicitly (pg_cast, context `i`).
    fn casts_implicitly_to(self, target: Self) -> bool;

    /// Returns whether Postgres has an explicit cast to `target`, other than through text.
    fn casts_explicitly_to(self, target: Self) -> bool;
}

impl TypeRules for Scalar {
    fn category(self) -> Category {
        use Scalar::*;
        match self {
            Bool => Category::Boolean,
            Int2 | Int4 | Int8 | Numeric | Float4 | Float8 => Category::Number,
            Text | Varchar | Bpchar => Category::String,
            Uuid | Json | Jsonb | Bytea | Macaddr => Category::User,
            Inet | Cidr => Category::Network,
            Int4range | Int8range | Numrange | Tsrange | Tstzrange | Daterange => Category::Range,
            Int4multirange | Int8multirange | Nummultirange => Category::Range,
            Tsmultirange | Tstzmultirange | Datemultirange => Category::Range,
            Enum(_) => Category::Enum,
            Date | Time | Timetz | Timestamp | Timestamptz => Category::DateTime,
            Interval => Category::Timespan,
        }
    }

    fn is_preferred(self) -> bool {
        use Scalar::*;
        matches!(self, Bool | Float8 | Text | Timestamptz | Interval | Inet)
    }

    fn casts_implicitly_to(self, target: Scalar) -> bool {
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

    fn casts_explicitly_to(self, target: Scalar) -> bool {
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
        Some(match ValueType::by_oid(oid)? {
            ValueType::Scalar(scalar) => SqlType::Scalar(scalar),
            ValueType::Array(scalar) => SqlType::Array(scalar),
        })
    }

    /// Returns the type of the values. Those without a type, or of an unsupported one, are texts.
    #[inline]
    pub(crate) fn value_type(self) -> ValueType {
        match self {
            SqlType::Scalar(scalar) => ValueType::Scalar(scalar),
            SqlType::Array(scalar) => ValueType::Array(scalar),
            SqlType::Unknown | SqlType::Opaque(_) => ValueType::TEXT,
        }
    }

    /// Parses a text as a value of the type. `modern`: as Postgres 16 and newer do.
    #[inline]
    pub(crate) fn read(self, text: &str, modern: bool) -> Result<SqlValue<'_>, InputError> {
        SqlValue::parse(text, self.value_type(), modern)
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
