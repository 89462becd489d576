//! Builtins: the functions, operators and types of Postgres that a client's clause may use.
//!
//! Invariant: a clause that uses only these reads nothing but its row: no table, catalog, file or
//! setting. It changes nothing.
//! Enforced by: only objects that come with Postgres count (`oid < 16384`, in `pg_catalog`, which
//! is the whole search_path of such a statement).
//! - A function is allowed if it is one of [`FUNCTIONS`], and if every function of that name and
//!   number of arguments is immutable, no aggregate, returns no set, and takes plain types.
//! - An operator is allowed if every operator of its name is immutable, or stable only because of
//!   settings that every snapshot sets: `||`, and operators between times or money. Operators that
//!   take a jsonpath are excluded.
//! - A type is allowed if its input function doesn't read the catalog.
//! - If the database has a user-defined cast function between two types of Postgres, nothing is
//!   allowed: Postgres may call that function implicitly.
//!
//! Functions whose result may be many times as long as their arguments are excluded: Postgres has
//! no limit for a statement's memory.

use std::collections::{HashMap, HashSet};

use forebay_replication::reservoir::tokio_postgres::{self, Client};
use forebay_shapes::filter::Expression;

/// Types whose text depends on the time, or on settings that every snapshot sets.
const BY_SETTINGS: &str = "date,time,timetz,timestamp,timestamptz,interval,money";

/// Functions that depend only on such settings, although Postgres marks some of them stable.
const FUNCTIONS_BY_SETTINGS: &str =
    "concat,date,date_part,date_trunc,extract,timezone,to_char,to_date,to_number,to_timestamp";

/// Functions whose result is about as long as their arguments at most, or of fixed length.
/// Functions of later versions are excluded until they are reviewed. Also excluded are
/// `regexp_match`, which copies its text for each group, and functions that take a jsonpath.
const FUNCTIONS: &str = "\
    ascii,bit_count,bit_length,btrim,casefold,char_length,character_length,chr,concat,crc32,crc32c,decode,get_bit,get_byte,\
    initcap,left,length,like_escape,lower,ltrim,md5,octet_length,overlay,position,regexp_count,regexp_instr,regexp_like,\
    regexp_substr,reverse,right,rtrim,sha224,sha256,sha384,sha512,split_part,starts_with,string_to_array,strpos,substr,\
    substring,to_bin,to_hex,to_oct,translate,upper,\
    abs,acos,acosd,acosh,asin,asind,asinh,atan,atan2,atan2d,atand,atanh,cbrt,ceil,ceiling,cos,cosd,cosh,cot,cotd,degrees,\
    div,erf,erfc,exp,floor,gamma,gcd,lcm,lgamma,ln,log,log10,min_scale,mod,num_nonnulls,num_nulls,pi,pow,power,radians,\
    round,scale,sign,sin,sind,sinh,sqrt,tan,tand,tanh,to_number,trim_scale,trunc,width_bucket,\
    age,date,date_add,date_bin,date_part,date_subtract,date_trunc,extract,isfinite,justify_days,justify_hours,\
    justify_interval,make_date,make_interval,make_time,make_timestamp,timezone,to_char,to_date,to_timestamp,\
    array_dims,array_length,array_lower,array_ndims,array_position,array_positions,array_remove,array_reverse,array_sort,\
    array_upper,cardinality,trim_array,\
    json_array_length,json_extract_path,json_extract_path_text,json_typeof,jsonb_array_element,jsonb_array_element_text,\
    jsonb_array_length,jsonb_contained,jsonb_contains,jsonb_exists,jsonb_exists_all,jsonb_exists_any,jsonb_extract_path,\
    jsonb_extract_path_text,jsonb_object_field,jsonb_object_field_text,jsonb_strip_nulls,jsonb_typeof,\
    uuid_extract_timestamp,uuid_extract_version,\
    abbrev,broadcast,family,host,hostmask,inet_merge,inet_same_family,macaddr8_set7bit,masklen,netmask,network,set_masklen,\
    daterange,int4range,int8range,isempty,lower_inc,lower_inf,numrange,range_merge,tsrange,tstzrange,upper_inc,upper_inf,\
    area,bound_box,box,center,circle,diagonal,diameter,height,isclosed,isopen,line,lseg,npoints,point,radius,slope,width";

/// Operators that take a jsonpath. Postgres holds all selected values at once, and `[0,0]` selects
/// a value twice.
const OPERATORS_OF_PATHS: &str = "@?,@@";

/// Polymorphic argument types.
const POLYMORPHIC: &str = "any,anyelement,anyarray,anynonarray,anyenum,anyrange,anymultirange,anycompatible,\
    anycompatiblearray,anycompatiblenonarray,anycompatiblerange,anycompatiblemultirange";

/// Selects a row for each type, operator and function: kind, name, least and greatest number of
/// arguments, and whether it is allowed; and a row for each cast function of the database. Arrays
/// are not among the types, because their input function is stable. An oid argument refers to an
/// object of the catalog, so it isn't a plain type.
const BUILTINS_SQL: &str = "
WITH plain AS (
    SELECT t.oid, t.typname, t.typarray FROM pg_type t JOIN pg_proc p ON p.oid = t.typinput
    WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.oid < 16384 AND t.typname NOT LIKE 'pg\\_%'
        AND (t.typtype IN ('r', 'm')
            OR t.typtype = 'b' AND (p.provolatile = 'i' OR t.typname = ANY ('{BY_SETTINGS}')))
), argument AS (
    SELECT unnest(ARRAY[oid, typarray]) AS oid FROM plain WHERE typname <> 'oid'
    UNION ALL SELECT oid FROM pg_type
    WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = ANY ('{POLYMORPHIC}')
)
SELECT 'type' AS kind, typname::text AS name, 0 AS least, 0 AS most, true AS is_allowed FROM plain
UNION ALL
SELECT 'operator', o.oprname::text, 0, 0, bool_and(o.oid < 16384 AND NOT p.proretset
    AND o.oprname <> ALL ('{OPERATORS_OF_PATHS}')
    AND (p.provolatile = 'i' OR p.provolatile = 's' AND (o.oprname = '||' OR l.oid IS NOT NULL AND r.oid IS NOT NULL)))
FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
LEFT JOIN plain l ON l.oid = o.oprleft AND l.typname = ANY ('{BY_SETTINGS}')
LEFT JOIN plain r ON r.oid = o.oprright AND r.typname = ANY ('{BY_SETTINGS}')
WHERE o.oprnamespace = 'pg_catalog'::regnamespace GROUP BY o.oprname
UNION ALL
SELECT 'function', p.proname::text, p.pronargs - p.pronargdefaults,
    CASE WHEN p.provariadic = 0 THEN p.pronargs::int4 ELSE 2147483647 END,
    p.oid < 16384 AND p.prokind = 'f' AND NOT p.proretset
        AND (p.provolatile = 'i' OR p.proname = ANY ('{FUNCTIONS_BY_SETTINGS}'))
        AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS a (oid) WHERE a.oid NOT IN (SELECT oid FROM argument))
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY ('{FUNCTIONS}')
UNION ALL
SELECT 'cast', format('%s to %s', castsource::regtype, casttarget::regtype), 0, 0, false
FROM pg_cast WHERE castfunc >= 16384 AND castsource < 16384 AND casttarget < 16384";

/// The functions, operators and types that a clause may use.
#[derive(Debug, Default)]
pub struct Builtins {
    types: HashSet<String>,
    operators: HashSet<String>,
    functions: HashMap<String, Vec<BuiltinFunction>>,
    /// A cast between two of Postgres' types that calls a function of the database.
    own_cast: Option<String>,
}

/// One of the functions of a name.
#[derive(Debug)]
struct BuiltinFunction {
    /// Numbers of arguments that it can be called with.
    arguments: std::ops::RangeInclusive<usize>,
    is_allowed: bool,
}

/// A builtin that a clause may not use. The text may be shown to the client that wrote the clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisallowedBuiltin {
    /// A function.
    #[error(
        "the function {name} of {arguments} arguments is not supported in where clauses: only immutable functions of pg_catalog \
         are, and not all of them"
    )]
    Function {
        /// Its name.
        name: String,
        /// Number of arguments in the call.
        arguments: usize,
    },
    /// An operator.
    #[error("the operator {0} is not supported in where clauses: only those of pg_catalog are")]
    Operator(String),
    /// A type.
    #[error("the type {0} is not supported in where clauses")]
    Type(String),
    /// Any clause may call this cast implicitly.
    #[error(
        "this where clause is not supported: the cast from {0} calls a function that isn't Postgres' own"
    )]
    Cast(String),
    /// A text that Postgres may read as the current time.
    #[error(
        "a where clause whose value depends on the current time is not supported: a text may be `now` or `today` where \
         it becomes a date or time"
    )]
    Clock,
}

impl Builtins {
    /// Reads the builtins from the catalog. They are the same for all servers of a major version.
    ///
    /// # Errors
    /// Fails if the query fails.
    pub async fn load(client: &Client) -> Result<Builtins, tokio_postgres::Error> {
        let lists = [
            ("{FUNCTIONS_BY_SETTINGS}", FUNCTIONS_BY_SETTINGS),
            ("{FUNCTIONS}", FUNCTIONS),
            ("{OPERATORS_OF_PATHS}", OPERATORS_OF_PATHS),
            ("{BY_SETTINGS}", BY_SETTINGS),
            ("{POLYMORPHIC}", POLYMORPHIC),
        ];
        let sql = lists
            .iter()
            .fold(BUILTINS_SQL.to_owned(), |sql, (place, names)| sql.replace(place, &format!("{{{names}}}")));
        let mut builtins = Builtins::default();
        for row in client.query_typed(&sql, &[]).await? {
            let name: String = row.try_get("name")?;
            let is_allowed: bool = row.try_get("is_allowed")?;
            let count =
                |column| Ok::<_, tokio_postgres::Error>(row.try_get::<_, i32>(column)?.max(0) as usize);
            match row.try_get("kind")? {
                "type" => _ = builtins.types.insert(name),
                "cast" => builtins.own_cast = Some(name),
                "operator" if is_allowed => _ = builtins.operators.insert(name),
                "function" => {
                    let arguments = count("least")?..=count("most")?;
                    builtins
                        .functions
                        .entry(name)
                        .or_default()
                        .push(BuiltinFunction { arguments, is_allowed });
                }
                _ => {}
            }
        }
        Ok(builtins)
    }

    /// Returns whether a type is built in and allowed.
    pub fn has_type(&self, name: &str) -> bool {
        self.types.contains(name)
    }

    /// Checks the functions, operators and types of a clause; not its columns.
    ///
    /// # Errors
    /// Returns the first that isn't allowed.
    pub fn check(&self, expression: &Expression) -> Result<(), DisallowedBuiltin> {
        if let Some(cast) = &self.own_cast {
            return Err(DisallowedBuiltin::Cast(cast.clone()));
        }
        for (name, arguments) in expression.calls() {
            let all = self.functions.get(name).map_or(&[][..], Vec::as_slice);
            let mut fitting =
                all.iter().filter(|function| function.arguments.contains(&arguments)).peekable();
            if fitting.peek().is_none() || !fitting.all(|function| function.is_allowed) {
                return Err(DisallowedBuiltin::Function { name: name.to_owned(), arguments });
            }
        }
        if let Some(other) = expression.operators().find(|name| !self.operators.contains(*name)) {
            return Err(DisallowedBuiltin::Operator(other.to_owned()));
        }
        match expression.types().find(|name| !self.has_type(name)) {
            Some(other) => Err(DisallowedBuiltin::Type(other.to_owned())),
            None => Ok(()),
        }
    }
}
