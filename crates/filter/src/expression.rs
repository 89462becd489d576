//! Clauses that Postgres evaluates: parsed into a syntax tree and formatted as SQL again.
//!
//! Invariant: text from a client never reaches Postgres verbatim. [`Expression::sql`] is written
//! from the tree: names in double quotes, texts in single quotes, operands in parentheses. Texts
//! are quoted for `standard_conforming_strings = on`. Subqueries, aggregates, window functions,
//! rows and `*` are refused.
//! Invariant: every column is a column of the schema. Other names are refused with Postgres'
//! message.
//! Enforced by: `parsing_sql_again_gives_the_same_tree` (below).
//! Out of scope: which functions, operators and types are allowed. The caller checks
//! [`Expression::calls`], [`Expression::operators`] and [`Expression::types`].
//!
//! Bounds: length and depth as for [`Filter`](super::Filter). At most [`MAX_CALLS`] calls: Postgres
//! checks statement_timeout only between rows and frees no memory within a row. At most
//! [`MAX_NESTED`] nested calls, casts and arrays: each may multiply the length of its value.
//! Counted as calls: operators that add the lengths of their operands, casts, and each copy of a
//! column in an array or an argument list.

use std::collections::BTreeSet;

use super::clock_dependence::depends_on_clock;
use super::error::FilterError;
use super::schema::Schema;
use super::syntax::{self, Subqueries, SyntaxKind, SyntaxTree, TypeName};
use super::{MAX_CLAUSE_BYTES, check_length, typing};

/// Maximum number of function calls and other operations that create a value from a row's value.
const MAX_CALLS: usize = 32;
/// Maximum nesting of calls, casts, arrays and [`LENGTHENING`] operators.
const MAX_NESTED: usize = 8;
/// Operators whose result may be as long as both operands together, and whose time may be the
/// product of both lengths. They are operators of text, arrays, jsonb, tsquery, numeric and path.
const LENGTHENING: &[&str] = &["||", "&&", "<->", "^", "+", "*", "/", "%"];
/// [`LENGTHENING`] operators whose result has a fixed length if both operands are [`FIXED_LENGTH`].
const ARITHMETIC: &[&str] = &["+", "*", "/", "%"];
/// Types of fixed length whose arithmetic results in types of fixed length.
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
/// Maximum type modifier: `char(n)` and `bit(n)` pad to it.
const MAX_MODIFIER: i32 = 1024;

/// An enum that a clause may name as a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnumType {
    /// The enum's schema.
    pub schema: String,
    /// pg_type.typname.
    pub name: String,
}

/// A where clause that Postgres evaluates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    sql: String,
    columns: BTreeSet<usize>,
    calls: BTreeSet<(String, usize)>,
    operators: BTreeSet<String>,
    types: BTreeSet<String>,
    depends_on_clock: bool,
}

impl Expression {
    /// Parses a clause. `$1` is replaced by `params[0]`, as a constant in quotes.
    ///
    /// Types are of `pg_catalog` or in `enums`. An enum may be named without its schema.
    ///
    /// # Errors
    /// See [`FilterError`]. Constructs outside the grammar are refused by name.
    pub fn parse(
        text: &str,
        params: &[&str],
        schema: &Schema,
        enums: &[EnumType],
    ) -> Result<Expression, FilterError> {
        check_length(text, params, MAX_CLAUSE_BYTES)?;
        if text.contains('\0') || params.iter().any(|param| param.contains('\0')) {
            let message = "invalid byte sequence for encoding \"UTF8\": 0x00".to_owned();
            return Err(FilterError::invalid(text, 0, "22021", message));
        }
        let tree = syntax::parse(text, params, schema.server_version, enums, Subqueries::Refused)?;
        Expression::of_tree(&tree, text, schema, enums)
    }

    /// Returns a part of a clause as an expression. `text` is the whole clause.
    pub(crate) fn of_tree(
        tree: &SyntaxTree,
        text: &str,
        schema: &Schema,
        enums: &[EnumType],
    ) -> Result<Expression, FilterError> {
        let mut reader = ExpressionReader {
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
                depends_on_clock: depends_on_clock(tree, schema),
            },
        };
        reader.read(tree, 0)?;
        Ok(reader.found)
    }

    /// Returns the clause as SQL: one expression, which may be embedded in another without
    /// parentheses.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Returns the columns that the clause names, as positions in [`Schema::columns`], sorted.
    pub fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.columns.iter().copied()
    }

    /// Returns the functions that the clause calls, without a schema, with the number of arguments.
    pub fn calls(&self) -> impl Iterator<Item = (&str, usize)> {
        self.calls.iter().map(|(name, arguments)| (name.as_str(), *arguments))
    }

    /// Returns the operators of the clause. LIKE is `~~`.
    pub fn operators(&self) -> impl Iterator<Item = &str> {
        self.operators.iter().map(String::as_str)
    }

    /// Returns whether a text of the clause may be read as the current time, such as `today`.
    pub fn depends_on_clock(&self) -> bool {
        self.depends_on_clock
    }

    /// Returns the types of `pg_catalog` that the clause casts to. For an array, its element type.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.types.iter().map(String::as_str)
    }
}

struct ExpressionReader<'t> {
    text: &'t str,
    schema: &'t Schema,
    enums: &'t [EnumType],
    calls: usize,
    found: Expression,
}

impl ExpressionReader<'_> {
    fn read(&mut self, tree: &SyntaxTree, mut nested: usize) -> Result<(), FilterError> {
        match &tree.kind {
            SyntaxKind::Name(parts) => {
                self.found.columns.insert(typing::find_column(parts, self.schema, self.text, tree.at)?);
            }
            SyntaxKind::Call(name, arguments) => {
                self.found.calls.insert((name.clone(), arguments.len()));
                self.count_calls(1, tree.at)?;
                // The call itself was counted for one of the arguments.
                self.count_calls(copied(arguments).saturating_sub(1), tree.at)?;
                nested += 1;
            }
            SyntaxKind::Unary(operator, _)
            | SyntaxKind::Binary(operator, _)
            | SyntaxKind::Quantified { operator, .. } => {
                self.found.operators.insert(operator.clone());
                if LENGTHENING.contains(&operator.as_str()) && !self.is_fixed_length(tree) {
                    self.count_calls(1, tree.at)?;
                    nested += 1;
                }
            }
            SyntaxKind::Cast(operand, name) => {
                self.cast(name, tree.at)?;
                // The length of a constant is bounded by the clause.
                self.count_calls(
                    usize::from(!matches!(operand.kind, SyntaxKind::Text(_) | SyntaxKind::Null)),
                    tree.at,
                )?;
                nested += 1;
            }
            SyntaxKind::Array(elements) => {
                self.count_calls(copied(elements), tree.at)?;
                nested += 1;
            }
            SyntaxKind::Collate(_, name) => match &name[..] {
                [_] => {}
                [schema, _] if schema == "pg_catalog" => {}
                _ => return Err(self.unsupported(tree.at, format!("COLLATE \"{}\" is", name.join(".")))),
            },
            SyntaxKind::Row(_) => return Err(self.unsupported(tree.at, "rows are".to_owned())),
            SyntaxKind::InSelect { .. } | SyntaxKind::Exists(_) => {
                return Err(self.unsupported(tree.at, "subqueries are".to_owned()));
            }
            SyntaxKind::Text(_)
            | SyntaxKind::Number(_)
            | SyntaxKind::Bool(_)
            | SyntaxKind::Null
            | SyntaxKind::And(_)
            | SyntaxKind::Or(_)
            | SyntaxKind::Not(_)
            | SyntaxKind::Between { .. }
            | SyntaxKind::In { .. }
            | SyntaxKind::Is { .. }
            | SyntaxKind::Distinct { .. }
            | SyntaxKind::Choice(..)
            | SyntaxKind::Case { .. }
            | SyntaxKind::Subscript(..) => {}
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
        match name
            .modifiers
            .iter()
            .find(|modifier| **modifier > MAX_MODIFIER && !matches!(&*name.name, "varchar" | "interval"))
        {
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

    /// Returns whether the type is known to be [`FIXED_LENGTH`]. A constant in quotes takes the
    /// type of the other operand.
    fn is_fixed_length(&self, tree: &SyntaxTree) -> bool {
        let is_fixed = |name: &str| FIXED_LENGTH.contains(&name);
        match &tree.kind {
            SyntaxKind::Name(parts) => typing::find_column(parts, self.schema, self.text, tree.at)
                .is_ok_and(|index| is_fixed(&self.schema.columns[index].column_type.name)),
            // More digits may be a numeric.
            SyntaxKind::Number(number) => {
                let digits = number.strip_prefix('-').unwrap_or(number);
                digits.len() <= 18 && digits.bytes().all(|byte| byte.is_ascii_digit())
            }
            SyntaxKind::Text(_) => true,
            SyntaxKind::Cast(_, name) => name.schema.is_none() && !name.is_array && is_fixed(&name.name),
            SyntaxKind::Unary(operator, operand) => operator == "-" && self.is_fixed_length(operand),
            SyntaxKind::Binary(operator, operands) => {
                (operator == "-" || ARITHMETIC.contains(&operator.as_str()))
                    && operands.iter().all(|operand| self.is_fixed_length(operand))
            }
            _ => false,
        }
    }

    /// `what` includes the verb: `the type xml is`.
    fn unsupported(&self, at: usize, what: String) -> FilterError {
        FilterError::unsupported_construct(self.text, at, what)
    }
}

/// Returns how many of these may be as long as a row's value: all but constants.
fn copied(trees: &[SyntaxTree]) -> usize {
    trees.iter().filter(|tree| !is_constant(tree)).count()
}

fn is_constant(tree: &SyntaxTree) -> bool {
    match &tree.kind {
        SyntaxKind::Text(_) | SyntaxKind::Number(_) | SyntaxKind::Bool(_) | SyntaxKind::Null => true,
        SyntaxKind::Unary(_, operand) | SyntaxKind::Cast(operand, _) => is_constant(operand),
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
    fn sql_has_every_name_and_text_quoted() {
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
    fn columns_calls_operators_and_types_are_reported() {
        let clause = "lower(note) || upper(note) LIKE 'a%' AND id ^ 2 > '3'::int8 OR -id IN (1)";
        let found = parse(clause, &[]).unwrap();
        assert_eq!(found.columns().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(found.calls().collect::<Vec<_>>(), [("lower", 1), ("upper", 1)]);
        assert_eq!(found.operators().collect::<Vec<_>>(), ["-", ">", "^", "||", "~~"]);
        assert_eq!(found.types().collect::<Vec<_>>(), ["int8"]);
    }

    #[test]
    fn names_that_are_no_column_and_constructs_beyond_one_row_are_refused_by_name() {
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
    fn calls_and_lengthening_operations_are_bounded() {
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
    fn operations_of_fixed_length_are_bounded_by_the_clause_alone() {
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
        /// No character of a clause can end the quoted text or name that it is in.
        #[test]
        fn parsing_sql_again_gives_the_same_tree(
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
