//! Clauses that only Postgres judges: read into a tree, and written again from it.
//!
//! Invariant: nothing that a client wrote reaches Postgres as it was written. [`Expression::sql`]
//! is written from a tree: every name in double quotes, every text in single quotes (for
//! `standard_conforming_strings = on`), every operand in parentheses. It has no subquery, no
//! aggregate, no window, no row and no `*`, for the tree can't hold any.
//! Invariant: every column is one of the schema's; a name that isn't is refused in Postgres' words.
//! Not here: which functions, operators and types may be used. The caller asks
//! [`Expression::calls`], [`Expression::operators`] and [`Expression::types`], and refuses what it
//! doesn't know.
//!
//! Bounds: a clause's length and depth, as for [`Filter`](super::Filter); [`MAX_CALLS`] calls,
//! since Postgres looks at its statement_timeout only between rows and frees nothing within one;
//! and [`MAX_NESTED`] calls, casts and arrays within one another, since each may make its value
//! several times as long. What makes a new value counts as a call: operators that add up their
//! operands' lengths, casts, and each copy of a column in an array or a list of arguments.

use std::collections::BTreeSet;

use super::error::{FilterError, location};
use super::schema::Schema;
use super::syntax::{self, Kind, Tree, TypeName};
use super::{check_length, typing};

/// Function calls, and whatever else makes a new value of a row's.
const MAX_CALLS: usize = 32;
/// Calls, casts, arrays and [`LENGTHENING`] operators within one another.
const MAX_NESTED: usize = 8;
/// Operators whose value may be as long as both operands together, and may take as long to make as
/// one is long times the other: those of text, arrays, jsonb, tsquery, numeric and path.
const LENGTHENING: &[&str] = &["||", "&&", "<->", "^", "+", "*", "/", "%"];
/// Those that don't if both operands are of [`FIXED_LENGTH`].
const ARITHMETIC: &[&str] = &["+", "*", "/", "%"];
/// Types whose values are all of one length, and whose arithmetic makes only such values.
const FIXED_LENGTH: &[&str] = &[
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "money",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "interval",
];
/// The largest number in parentheses after a type's name: `char(n)` and `bit(n)` fill up to it.
const MAX_MODIFIER: i32 = 1024;

/// An enum that a clause may name as a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumType {
    /// Its schema.
    pub schema: String,
    /// pg_type.typname.
    pub name: String,
}

/// A where clause that was read, and is judged by Postgres alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    sql: String,
    columns: BTreeSet<usize>,
    calls: BTreeSet<(String, usize)>,
    operators: BTreeSet<String>,
    types: BTreeSet<String>,
}

impl Expression {
    /// Reads a clause; `$1` stands for `params[0]`, as a constant in quotes would. Types are of
    /// `pg_catalog`, or one of `enums`; an enum may be named without its schema.
    ///
    /// # Errors
    /// See [`FilterError`]: what the grammar doesn't know is refused by name.
    pub fn parse(
        text: &str,
        params: &[&str],
        schema: &Schema,
        enums: &[EnumType],
    ) -> Result<Expression, FilterError> {
        check_length(text, params)?;
        if text.contains('\0') || params.iter().any(|param| param.contains('\0')) {
            let message = "invalid byte sequence for encoding \"UTF8\": 0x00".to_owned();
            return Err(FilterError::invalid(text, 0, "22021", message));
        }
        let tree = syntax::parse(text, params, schema.server_version, enums)?;
        let mut reader = Reader {
            text,
            schema,
            enums,
            calls: 0,
            found: Expression {
                sql: tree.to_string(),
                columns: BTreeSet::new(),
                calls: BTreeSet::new(),
                operators: BTreeSet::new(),
                types: BTreeSet::new(),
            },
        };
        reader.read(&tree, 0)?;
        Ok(reader.found)
    }

    /// The clause, written anew: one expression, whatever stands around it in parentheses.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// The columns that it names, by their places in [`Schema::columns`], in order.
    pub fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.columns.iter().copied()
    }

    /// The functions that it calls, without a schema, each with the number of its arguments.
    pub fn calls(&self) -> impl Iterator<Item = (&str, usize)> {
        self.calls.iter().map(|(name, arguments)| (name.as_str(), *arguments))
    }

    /// The operators that it names; LIKE is `~~`.
    pub fn operators(&self) -> impl Iterator<Item = &str> {
        self.operators.iter().map(String::as_str)
    }

    /// The types of `pg_catalog` that it casts to; of an array, its element's.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(String::as_str)
    }
}

struct Reader<'t> {
    text: &'t str,
    schema: &'t Schema,
    enums: &'t [EnumType],
    calls: usize,
    found: Expression,
}

impl Reader<'_> {
    fn read(&mut self, tree: &Tree, mut nested: usize) -> Result<(), FilterError> {
        match &tree.kind {
            Kind::Name(parts) => {
                self.found.columns.insert(typing::find_column(parts, self.schema, self.text, tree.at)?);
            }
            Kind::Call(name, arguments) => {
                self.found.calls.insert((name.clone(), arguments.len()));
                self.count_calls(1, tree.at)?;
                // Its own count is for one of them.
                self.count_calls(copied(arguments).saturating_sub(1), tree.at)?;
                nested += 1;
            }
            Kind::Unary(operator, _) | Kind::Binary(operator, _) | Kind::Quantified { operator, .. } => {
                self.found.operators.insert(operator.clone());
                if LENGTHENING.contains(&operator.as_str()) && !self.is_fixed_length(tree) {
                    self.count_calls(1, tree.at)?;
                    nested += 1;
                }
            }
            Kind::Cast(operand, name) => {
                self.cast(name, tree.at)?;
                // A constant in quotes is as long as the clause says.
                self.count_calls(usize::from(!matches!(operand.kind, Kind::Text(_) | Kind::Null)), tree.at)?;
                nested += 1;
            }
            Kind::Array(elements) => {
                self.count_calls(copied(elements), tree.at)?;
                nested += 1;
            }
            Kind::Collate(_, name) => match &name[..] {
                [_] => {}
                [schema, _] if schema == "pg_catalog" => {}
                _ => return Err(self.unsupported(tree.at, format!("COLLATE \"{}\" is", name.join(".")))),
            },
            Kind::Text(_)
            | Kind::Number(_)
            | Kind::Bool(_)
            | Kind::Null
            | Kind::And(_)
            | Kind::Or(_)
            | Kind::Not(_)
            | Kind::Between { .. }
            | Kind::In { .. }
            | Kind::Is { .. }
            | Kind::Distinct { .. }
            | Kind::Choice(..)
            | Kind::Case { .. }
            | Kind::Subscript(..) => {}
        }
        if nested > MAX_NESTED {
            let what =
                format!("more than {MAX_NESTED} calls, casts, arrays and operators within one another are");
            return Err(self.unsupported(tree.at, what));
        }
        let mut outcome = Ok(());
        tree.kind.each_child(&mut |child| {
            if outcome.is_ok() {
                outcome = self.read(child, nested);
            }
        });
        outcome
    }

    fn cast(&mut self, name: &TypeName, at: usize) -> Result<(), FilterError> {
        match &name.schema {
            None => {
                self.found.types.insert(name.name.clone());
            }
            Some(schema) if self.enums.iter().any(|of| of.schema == *schema && of.name == name.name) => {}
            Some(schema) => {
                return Err(self.unsupported(at, format!("the type {schema}.{} is", name.name)));
            }
        }
        match name.modifiers.iter().find(|modifier| **modifier > MAX_MODIFIER && name.name != "varchar") {
            Some(large) => Err(self.unsupported(at, format!("{}({large}) is", name.name))),
            None => Ok(()),
        }
    }

    fn count_calls(&mut self, calls: usize, at: usize) -> Result<(), FilterError> {
        self.calls += calls;
        match self.calls > MAX_CALLS {
            true => Err(self.unsupported(at, format!("more than {MAX_CALLS} function calls are"))),
            false => Ok(()),
        }
    }

    /// Whether it is sure to be of a type of [`FIXED_LENGTH`]. Postgres takes a constant in quotes
    /// for what the other operand is.
    fn is_fixed_length(&self, tree: &Tree) -> bool {
        let is_fixed = |name: &str| FIXED_LENGTH.contains(&name);
        match &tree.kind {
            Kind::Name(parts) => typing::find_column(parts, self.schema, self.text, tree.at)
                .is_ok_and(|index| is_fixed(&self.schema.columns[index].column_type.name)),
            // A longer one may be a numeric.
            Kind::Number(number) => {
                let digits = number.strip_prefix('-').unwrap_or(number);
                digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit())
            }
            Kind::Text(_) => true,
            Kind::Cast(_, name) => name.schema.is_none() && !name.is_array && is_fixed(&name.name),
            Kind::Unary(operator, operand) => operator == "-" && self.is_fixed_length(operand),
            Kind::Binary(operator, operands) => {
                (operator == "-" || ARITHMETIC.contains(&operator.as_str()))
                    && operands.iter().all(|operand| self.is_fixed_length(operand))
            }
            _ => false,
        }
    }

    /// `what` says it whole: `the type xml is`.
    fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::Unsupported { what, location: location(self.text, at) }
    }
}

/// How many of these may be as long as a row's value: all but constants.
fn copied(trees: &[Tree]) -> usize {
    trees.iter().filter(|tree| !is_constant(tree)).count()
}

fn is_constant(tree: &Tree) -> bool {
    match &tree.kind {
        Kind::Text(_) | Kind::Number(_) | Kind::Bool(_) | Kind::Null => true,
        Kind::Unary(_, operand) | Kind::Cast(operand, _) => is_constant(operand),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Collation, Column};
    use super::*;

    fn schema() -> Schema {
        Schema {
            table: Some("items".to_owned()),
            columns: vec![
                Column::new("id", 23, "int4"),
                Column::new("note", 25, "text"),
                Column::new("seen", 1184, "timestamptz"),
                Column::new("n", 1700, "numeric"),
            ],
            database_collation: Collation::Icu("en-US".to_owned()),
            server_version: 15,
        }
    }

    fn parse(text: &str, params: &[&str]) -> Result<Expression, FilterError> {
        let mood = EnumType { schema: "a\"b".to_owned(), name: "mood".to_owned() };
        Expression::parse(text, params, &schema(), &[mood])
    }

    fn sql(text: &str, params: &[&str]) -> String {
        parse(text, params).unwrap_or_else(|error| panic!("{text}: {error}")).sql().to_owned()
    }

    #[test]
    fn a_clause_is_written_anew_with_everything_quoted() {
        for (text, params, expected) in [
            ("note > $1", &["o'clock"][..], r#"("note" > 'o''clock')"#),
            ("items.note ~ 'a' -- so", &[], r#"("items"."note" ~ 'a')"#),
            ("$1 = ANY($2)", &["\\", "{'; DROP}"], r"('\' = ANY ('{''; DROP}'))"),
            ("'x'::mood = $$y'$$::mood", &[], r#"(('x')::"a""b"."mood" = ('y''')::"a""b"."mood")"#),
            ("mood 'x' = '{}'::mood[]", &[], r#"(('x')::"a""b"."mood" = ('{}')::"a""b"."mood"[])"#),
            ("pg_catalog.length(note) = 1", &[], r#"("length"("note") = 1)"#),
            ("substring(note FROM 2 FOR 3) = ''", &[], r#"("substring"("note", 2, 3) = '')"#),
            ("substring(note, 2) = ''", &[], r#"("substring"("note", 2) = '')"#),
            ("substring(note FOR 2) = ''", &[], r#"("substring"("note", 1, (2)::"int4") = '')"#),
            ("extract(YEAR FROM seen) = 1", &[], r#"("extract"('year', "seen") = 1)"#),
            ("position('a' IN note) = 1", &[], r#"("position"("note", 'a') = 1)"#),
            ("trim(leading 'x' from note) = ''", &[], r#"("ltrim"("note", 'x') = '')"#),
            ("trim(note) = ''", &[], r#"("btrim"("note") = '')"#),
            ("nullif(note, '') IS NULL", &[], r#"(NULLIF("note", '') IS NULL)"#),
        ] {
            assert_eq!(sql(text, params), expected, "{text}");
        }
    }

    #[test]
    fn what_it_uses_is_told() {
        let clause = "lower(note) || upper(note) LIKE 'a%' AND id ^ 2 > '3'::int8 OR -id IN (1)";
        let found = parse(clause, &[]).unwrap();
        assert_eq!(found.columns().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found.calls().collect::<Vec<_>>(), [("lower", 1), ("upper", 1)]);
        assert_eq!(found.operators().collect::<Vec<_>>(), ["-", ">", "^", "||", "~~"]);
        assert_eq!(found.types().collect::<Vec<_>>(), ["int8"]);
    }

    #[test]
    fn what_is_no_plain_column_or_no_expression_of_one_row_is_refused_by_name() {
        for (clause, words) in [
            ("ctid IS NULL", "column \"ctid\" does not exist"),
            ("tableoid > 0", "column \"tableoid\" does not exist"),
            ("items IS NULL", "column \"items\" does not exist"),
            ("items.xmin IS NULL", "column items.xmin does not exist"),
            ("other.id = 1", "missing FROM-clause entry for table \"other\""),
            ("public.items.id = 1", "the name public.items.id is"),
            ("items.* IS NULL", "whole rows are"),
            ("(items).id = 1", "fields of composite values are"),
            ("ROW(id) IS NULL", "rows are"),
            ("id = (SELECT 1)", "subqueries are"),
            ("id IN (TABLE items)", "At location 22: syntax error at or near \"TABLE\""),
            ("id = ANY(VALUES (1))", "subqueries are"),
            ("EXISTS (SELECT 1)", "subqueries are"),
            ("ARRAY(SELECT 1) IS NULL", "subqueries are"),
            ("count(*) > 0", "aggregates are"),
            ("rank() OVER () > 0", "window functions are"),
            ("public.f(id)", "the function public.f is"),
            ("concat(VARIADIC ARRAY['a']) = ''", "VARIADIC arguments are"),
            ("f(a => 1)", "arguments by name are"),
            ("id OPERATOR(public.=) 1", "operators of a schema are"),
            ("note COLLATE public.x = ''", "COLLATE \"public.x\" is"),
            ("'1'::public.other IS NULL", "the type public.other is"),
            ("note::char(1000000) = ''", "bpchar(1000000) is"),
            ("U&'\\0041' = note", "strings and names with Unicode escapes are"),
            ("id = 1; DELETE FROM items", "At location 21: syntax error at or near \";\""),
            ("id = 1 /* /* */", "At location 22: unterminated /* comment"),
            ("note = 'a\0b'", "invalid byte sequence"),
            ("id = $2", "there is no value for parameter $2"),
            ("current_user = ''", "functions of the session are"),
        ] {
            let error = parse(clause, &["x"]).map(|found| panic!("{}", found.sql())).unwrap_err().to_string();
            assert!(error.starts_with(words), "{clause}: {error}");
        }
        assert!(parse("note = $1", &["a\0b"]).is_err());
    }

    #[test]
    fn calls_and_what_makes_values_longer_are_bounded() {
        let nested = |times: usize| format!("{}note{} = ''", "upper(".repeat(times), ")".repeat(times));
        assert!(parse(&nested(MAX_NESTED), &[]).is_ok());
        assert!(parse(&nested(MAX_NESTED + 1), &[]).is_err());
        let casts = |times: usize| format!("{}'x'{} = ''", "ARRAY[".repeat(times), "]::text".repeat(times));
        assert!(parse(&casts(MAX_NESTED / 2), &[]).is_ok());
        assert!(parse(&casts(MAX_NESTED / 2 + 1), &[]).is_err());
        for call in [
            "length(note) = 1",
            "id ^ 2 = 1",
            "note || 'x' > ''",
            "n * n = 1",
            "n + 1 > 1",
            "id * 1.5 > 1",
            "n / 3 = 1",
            "n % 3 = 1",
            "id::text > ''",
            "1e9999::text > ''",
            "'1'::numeric * id > 1",
        ] {
            assert!(parse(&[call; MAX_CALLS].join(" OR "), &[]).is_ok(), "{call}");
            assert!(parse(&[call; MAX_CALLS + 1].join(" OR "), &[]).is_err(), "{call}");
        }
        for operator in ["||", "*", "+", "^"] {
            let chain = |times: usize| format!("{} IS NULL", vec!["n"; times + 1].join(operator));
            assert!(parse(&chain(MAX_NESTED), &[]).is_ok(), "{operator}");
            assert!(parse(&chain(MAX_NESTED + 1), &[]).is_err(), "{operator}");
        }
        let copies = |around: [&str; 2], times: usize| {
            format!("{}{}{} IS NULL", around[0], vec!["note"; times].join(", "), around[1])
        };
        for around in [["concat(", ")"], ["ARRAY[", "]"]] {
            assert!(parse(&copies(around, MAX_CALLS), &[]).is_ok(), "{around:?}");
            assert!(parse(&copies(around, MAX_CALLS + 1), &[]).is_err(), "{around:?}");
        }
    }

    #[test]
    fn what_makes_no_value_longer_is_bounded_by_the_clause_alone() {
        let constants = vec!["'x'::text"; 100].join(", ");
        for clause in [
            "id + 1 = 2 OR id * '3' / -4 % 5 > 6".to_owned(),
            "seen + '1 day' > '2024-01-01'::date + 1".to_owned(),
            format!("note = ANY(ARRAY[{constants}]) OR note IN ({constants})"),
        ] {
            assert!(parse(&clause, &[]).is_ok(), "{clause}");
            assert!(parse(&[clause.as_str(); 20].join(" OR "), &[]).is_ok(), "{clause}");
        }
        assert!(parse(&format!("id{} = 1", " + 1".repeat(50)), &[]).is_ok());
    }

    proptest! {
        /// What is written reads as what it was written from: nothing in a clause ends the text or
        /// the name that it is in.
        #[test]
        fn what_is_written_reads_as_the_same_tree(
            text in "(id|note|\\$1|'|''|\"|\"id\"|E'|\\\\|--|/\\*|\\*/|;|\\$\\$|::|text|\\(|\\)|\\[|\\]|ARRAY|lower|[=<>+*~!@#?|-]|,|1|1\\.5e3| |\n){1,24}",
            param in "['\"\\\\$;a -]{0,6}",
        ) {
            let Ok(found) = parse(&text, &[&param]) else { return Ok(()) };
            let again = parse(found.sql(), &[]);
            prop_assert_eq!(again.as_ref().map(Expression::sql), Ok(found.sql()), "{}", text);
            prop_assert_eq!(again, Ok(found.clone()));
        }
    }
}
