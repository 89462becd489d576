//! Which functions, operators and types of Postgres a client's clause may use.
//!
//! Invariant: whatever Postgres takes for a name that is allowed here reads nothing but its
//! arguments: no table, no catalog, no file, no setting that a client could learn from; and it
//! changes nothing.
//! Kept by: only what came with Postgres counts (`oid < 16384`, in `pg_catalog`, which is the whole
//! search_path of such a statement). A function is allowed for a number of arguments if each
//! function that Postgres might take is immutable, no aggregate and no set, and takes values of
//! plain types. A type is allowed if its texts are read without the catalog.
//!
//! Functions that make long values of short ones are left out: Postgres has no bound for a
//! statement's memory.

use std::collections::{HashMap, HashSet};

use forebay_postgres::reservoir::tokio_postgres::{self, Client};
use forebay_shapes::filter::Expression;

/// Types whose texts depend on settings that every snapshot sets, or on the time.
const BY_SETTINGS: &str = "date,time,timetz,timestamp,timestamptz,interval,money";

/// Functions that depend on nothing but such settings, though Postgres calls some of them stable.
const FUNCTIONS_BY_SETTINGS: &str =
    "concat,date,date_part,date_trunc,extract,timezone,to_char,to_date,to_number,to_timestamp";

/// Functions whose value may be many times as long as their arguments.
const LENGTHENING: &str = "array_fill,array_replace,bit,bpchar,concat_ws,encode,factorial,jsonb_pretty,lpad,quote_ident,\
    quote_literal,quote_nullable,regexp_replace,repeat,replace,rpad,varbit";

/// Types of arguments that stand for others.
const POLYMORPHIC: &str = "any,anyelement,anyarray,anynonarray,anyenum,anyrange,anymultirange,anycompatible,\
    anycompatiblearray,anycompatiblenonarray,anycompatiblerange,anycompatiblemultirange";

/// A row for each type, operator and function: what it is, its name, how many arguments it takes,
/// whether it is allowed. An array's input function is stable, and so no array is among the types;
/// an oid as an argument names something of the catalog.
const ASKING: &str = "
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
SELECT 'operator', o.oprname::text, 0, 0, bool_and(o.oid < 16384 AND p.provolatile <> 'v' AND NOT p.proretset)
FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
WHERE o.oprnamespace = 'pg_catalog'::regnamespace GROUP BY o.oprname
UNION ALL
SELECT 'function', p.proname::text, p.pronargs - p.pronargdefaults,
    CASE WHEN p.provariadic = 0 THEN p.pronargs::int4 ELSE 2147483647 END,
    p.oid < 16384 AND p.prokind = 'f' AND NOT p.proretset
        AND (p.provolatile = 'i' OR p.proname = ANY ('{FUNCTIONS_BY_SETTINGS}'))
        AND p.proname <> ALL ('{LENGTHENING}') AND p.proname NOT LIKE 'pg\\_%'
        AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) AS a (oid) WHERE a.oid NOT IN (SELECT oid FROM argument))
FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace";

/// What a clause may use of Postgres itself.
#[derive(Debug, Default)]
pub struct Builtins {
    types: HashSet<String>,
    operators: HashSet<String>,
    functions: HashMap<String, Vec<Function>>,
}

/// One of the functions of a name.
#[derive(Debug)]
struct Function {
    arguments: std::ops::RangeInclusive<usize>,
    is_allowed: bool,
}

/// What a clause may not use. Its text may be shown to the client that wrote the clause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAllowed {
    /// A function.
    #[error(
        "the function {name} of {arguments} arguments is not supported in subsets: only immutable functions of pg_catalog \
         are, and not all of them"
    )]
    Function {
        /// Its name.
        name: String,
        /// How many it was given.
        arguments: usize,
    },
    /// An operator.
    #[error("the operator {0} is not supported in subsets: only those of pg_catalog are")]
    Operator(String),
    /// A type.
    #[error("the type {0} is not supported in subsets")]
    Type(String),
}

impl Builtins {
    /// Asks the catalog. The answer is the same for all servers of a major version.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn ask(client: &Client) -> Result<Builtins, tokio_postgres::Error> {
        let asking = [
            // Longest first: one is the end of another.
            ("FUNCTIONS_BY_SETTINGS", FUNCTIONS_BY_SETTINGS),
            ("BY_SETTINGS", BY_SETTINGS),
            ("LENGTHENING", LENGTHENING),
            ("POLYMORPHIC", POLYMORPHIC),
        ];
        let asking = asking.iter().fold(ASKING.to_owned(), |sql, (place, names)| sql.replace(place, names));
        let mut builtins = Builtins::default();
        for row in client.query_typed(&asking, &[]).await? {
            let name: String = row.try_get("name")?;
            let is_allowed: bool = row.try_get("is_allowed")?;
            let count =
                |column| Ok::<_, tokio_postgres::Error>(row.try_get::<_, i32>(column)?.max(0) as usize);
            match row.try_get("kind")? {
                "type" => _ = builtins.types.insert(name),
                "operator" if is_allowed => _ = builtins.operators.insert(name),
                "function" => {
                    let arguments = count("least")?..=count("most")?;
                    builtins.functions.entry(name).or_default().push(Function { arguments, is_allowed });
                }
                _ => {}
            }
        }
        Ok(builtins)
    }

    /// Whether a type of this name is one of Postgres' own, and allowed.
    pub fn has_type(&self, name: &str) -> bool {
        self.types.contains(name)
    }

    /// Checks all that a clause uses but its columns.
    ///
    /// # Errors
    /// The first that isn't allowed.
    pub fn check(&self, expression: &Expression) -> Result<(), NotAllowed> {
        for (name, arguments) in expression.calls() {
            let all = self.functions.get(name).map_or(&[][..], Vec::as_slice);
            let mut fitting =
                all.iter().filter(|function| function.arguments.contains(&arguments)).peekable();
            if fitting.peek().is_none() || !fitting.all(|function| function.is_allowed) {
                return Err(NotAllowed::Function { name: name.to_owned(), arguments });
            }
        }
        if let Some(other) = expression.operators().find(|name| !self.operators.contains(*name)) {
            return Err(NotAllowed::Operator(other.to_owned()));
        }
        match expression.types().find(|name| !self.has_type(name)) {
            Some(other) => Err(NotAllowed::Type(other.to_owned())),
            None => Ok(()),
        }
    }
}
