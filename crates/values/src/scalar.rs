//! Types of values: their names and oids in pg_type.

use std::fmt::{self, Display, Formatter};

/// A scalar type.
///
/// The enum is complete: code that handles values must handle those of each type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// `bool`
    Bool,
    /// `int2`
    Int2,
    /// `int4`
    Int4,
    /// `int8`
    Int8,
    /// `numeric`
    Numeric,
    /// `float4`
    Float4,
    /// `float8`
    Float8,
    /// `text`
    Text,
    /// `varchar`
    Varchar,
    /// `bpchar`
    Bpchar,
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `time`
    Time,
    /// `timetz`
    Timetz,
    /// `timestamp`
    Timestamp,
    /// `timestamptz`
    Timestamptz,
    /// `interval`
    Interval,
    /// `json`
    Json,
    /// `jsonb`
    Jsonb,
    /// `bytea`
    Bytea,
    /// `inet`
    Inet,
    /// `cidr`
    Cidr,
    /// `macaddr`
    Macaddr,
    /// `int4range`
    Int4range,
    /// `int8range`
    Int8range,
    /// `numrange`
    Numrange,
    /// `tsrange`
    Tsrange,
    /// `tstzrange`
    Tstzrange,
    /// `daterange`
    Daterange,
    /// `int4multirange`
    Int4multirange,
    /// `int8multirange`
    Int8multirange,
    /// `nummultirange`
    Nummultirange,
    /// `tsmultirange`
    Tsmultirange,
    /// `tstzmultirange`
    Tstzmultirange,
    /// `datemultirange`
    Datemultirange,
    /// The enum with this oid. Its values are labels, which compare as texts here.
    Enum(u32),
}

/// The type of a value: a scalar type, or arrays of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// A scalar type.
    Scalar(Scalar),
    /// Arrays of this type, of any dimensions.
    Array(Scalar),
}

/// Rows of pg_type: name in the catalog, name in messages, oid, oid of the array type. Enums have
/// no row.
const PG_TYPES: [(Scalar, &str, &str, u32, u32); 35] = [
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
    (Scalar::Int4multirange, "int4multirange", "int4multirange", 4451, 6150),
    (Scalar::Int8multirange, "int8multirange", "int8multirange", 4536, 6157),
    (Scalar::Nummultirange, "nummultirange", "nummultirange", 4532, 6151),
    (Scalar::Tsmultirange, "tsmultirange", "tsmultirange", 4533, 6152),
    (Scalar::Tstzmultirange, "tstzmultirange", "tstzmultirange", 4534, 6153),
    (Scalar::Datemultirange, "datemultirange", "datemultirange", 4535, 6155),
];

impl Scalar {
    /// Returns the type with this name in the catalog.
    pub fn by_name(name: &str) -> Option<Scalar> {
        PG_TYPES.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns all types but enums.
    pub fn all() -> impl Iterator<Item = Scalar> {
        PG_TYPES.iter().map(|row| row.0)
    }

    /// Returns the name in the catalog. The name of an enum is in the schema.
    pub fn catalog_name(self) -> &'static str {
        PG_TYPES.iter().find(|row| row.0 == self).map_or("enum", |row| row.1)
    }

    /// Returns the name in messages. The name of an enum is in the schema.
    pub fn name(self) -> &'static str {
        PG_TYPES.iter().find(|row| row.0 == self).map_or("enum", |row| row.2)
    }

    /// Returns the type of a range's bounds.
    pub fn range_element(self) -> Option<Scalar> {
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

    /// Returns the type of a multirange's ranges.
    pub fn multirange_range(self) -> Option<Scalar> {
        Some(match self {
            Scalar::Int4multirange => Scalar::Int4range,
            Scalar::Int8multirange => Scalar::Int8range,
            Scalar::Nummultirange => Scalar::Numrange,
            Scalar::Tsmultirange => Scalar::Tsrange,
            Scalar::Tstzmultirange => Scalar::Tstzrange,
            Scalar::Datemultirange => Scalar::Daterange,
            _ => return None,
        })
    }

    /// Returns whether it is an enum.
    pub fn is_enum(self) -> bool {
        matches!(self, Scalar::Enum(_))
    }

    /// Returns whether it is text, varchar or bpchar.
    pub fn is_text(self) -> bool {
        matches!(self, Scalar::Text | Scalar::Varchar | Scalar::Bpchar)
    }

    /// Returns whether it is int2, int4 or int8.
    pub fn is_integer(self) -> bool {
        matches!(self, Scalar::Int2 | Scalar::Int4 | Scalar::Int8)
    }
}

impl ValueType {
    /// The type text.
    pub const TEXT: ValueType = ValueType::Scalar(Scalar::Text);

    /// Returns the type with this oid in pg_type.
    pub fn by_oid(oid: u32) -> Option<ValueType> {
        PG_TYPES.iter().find_map(|(scalar, _, _, scalar_oid, array_oid)| match oid {
            _ if oid == *scalar_oid => Some(ValueType::Scalar(*scalar)),
            _ if oid == *array_oid => Some(ValueType::Array(*scalar)),
            _ => None,
        })
    }
}

impl Display for ValueType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            ValueType::Scalar(scalar) => f.write_str(scalar.name()),
            ValueType::Array(scalar) => write!(f, "{}[]", scalar.name()),
        }
    }
}
