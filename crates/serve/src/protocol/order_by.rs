//! Order of a subset's rows: parses `order_by` and writes it as SQL.
//!
//! Invariant: the SQL consists of quoted names and fixed keywords only. Expressions are refused.
//! Enforced by: the parser accepts only the grammar below, and the SQL is written from its result.
//!
//! ```text
//! list := item ("," item)*
//! item := key ["ASC" | "DESC"] ["NULLS" ("FIRST" | "LAST")]
//! key  := [[schema "."] table "."] column | position
//! ```

use std::iter::Peekable;
use std::str::CharIndices;

use forebay_replication::TableName;

use super::names::{self, MAX_COLUMNS, NameError};

/// Maximum number of items in a list.
const MAX_ITEMS: usize = MAX_COLUMNS;

/// Words that name a column only in quotes: Postgres' reserved words, including those that may name
/// types and functions.
const RESERVED: &str = " all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate \
    collation column concurrently constraint create cross current_catalog current_date current_role current_schema \
    current_time current_timestamp current_user default deferrable desc distinct do else end except fetch for foreign freeze from \
    full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit localtime \
    localtimestamp natural not notnull offset on only or order outer overlaps placing primary references returning right select \
    session_user similar some symmetric system_user table tablesample then to trailing union unique user using variadic verbose \
    when where window with ";

/// Reserved words that are constants. They get another error than [`RESERVED`].
const CONSTANTS: [&str; 3] = ["true", "false", "null"];

/// One item of an `order_by` list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderByItem {
    /// Column to order by.
    pub key: OrderKey,
    /// Whether the greatest value comes first.
    pub descending: bool,
    /// Where NULLs come. `None`: they count as greater than all values.
    pub nulls: Option<NullsOrder>,
}

/// Column to order by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderKey {
    /// Name of the column, as in the catalog. The parser doesn't check that it exists.
    Column(String),
    /// Position among the selected columns, from 1, as in SQL.
    Position(u32),
}

/// Where NULLs come in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullsOrder {
    /// Before all values.
    First,
    /// After all values.
    Last,
}

/// Why an order is refused. The client receives the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderByError {
    /// The text is not valid SQL. The message is the one of Postgres.
    #[error("syntax error at or near \"{0}\"")]
    Syntax(String),
    /// The list is incomplete.
    #[error("syntax error at end of input")]
    End,
    /// The list contains an expression.
    #[error(
        "only columns and constants, ASC, DESC and NULLS FIRST or LAST are supported in order_by, not \"{0}\""
    )]
    Unsupported(String),
    /// A constant that is not a position.
    #[error("non-integer constant in ORDER BY")]
    Constant,
    /// A position without a selected column.
    #[error("ORDER BY position {0} is not in select list")]
    Position(u32),
    /// A column of another table.
    #[error("missing FROM-clause entry for table {0}")]
    Table(String),
    /// Not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The list has too many items.
    #[error("too many columns in order_by (the most is {MAX_ITEMS})")]
    TooMany,
}

impl OrderByItem {
    /// Returns the item as SQL. A position denotes one of the selected columns, in order.
    ///
    /// # Errors
    /// If there is no column at the position.
    pub fn sql(&self, selected: &[impl AsRef<str>]) -> Result<String, OrderByError> {
        let mut sql = match &self.key {
            OrderKey::Column(name) => names::quoted(name),
            OrderKey::Position(position) => {
                let index = usize::try_from(*position).ok().and_then(|position| position.checked_sub(1));
                let column =
                    index.and_then(|index| selected.get(index)).ok_or(OrderByError::Position(*position))?;
                names::quoted(column.as_ref())
            }
        };
        if self.descending {
            sql.push_str(" DESC");
        }
        match self.nulls {
            Some(NullsOrder::First) => sql.push_str(" NULLS FIRST"),
            Some(NullsOrder::Last) => sql.push_str(" NULLS LAST"),
            None => {}
        }
        Ok(sql)
    }
}

/// Parses an `order_by` list. Columns may be qualified with the name of `table`.
pub(super) fn parse(text: &str, table: Option<&TableName>) -> Result<Vec<OrderByItem>, OrderByError> {
    let mut lexer = OrderByLexer { text, characters: text.char_indices().peekable() };
    let mut list = Vec::new();
    let mut token = lexer.next()?;
    loop {
        if list.len() == MAX_ITEMS {
            return Err(OrderByError::TooMany);
        }
        let (key, after) = parse_key(token, &mut lexer, table)?;
        let (item, after) = parse_direction(key, after, &mut lexer)?;
        list.push(item);
        match after {
            OrderByToken::End => return Ok(list),
            OrderByToken::Symbol(",") => token = lexer.next()?,
            other => return Err(other.unexpected()),
        }
    }
}

fn parse_key<'a>(
    first: OrderByToken<'a>,
    lexer: &mut OrderByLexer<'a>,
    table: Option<&TableName>,
) -> Result<(OrderKey, OrderByToken<'a>), OrderByError> {
    let mut path = match first {
        OrderByToken::Number(digits) => {
            let position = digits.parse().map_err(|_| OrderByError::Constant)?;
            return Ok((OrderKey::Position(position), lexer.next()?));
        }
        OrderByToken::Symbol("'") => return Err(OrderByError::Constant),
        OrderByToken::Word(word) if CONSTANTS.contains(&&*word.to_ascii_lowercase()) => {
            return Err(OrderByError::Constant);
        }
        OrderByToken::Word(word) if is_reserved(word) => return Err(OrderByError::Syntax(word.to_owned())),
        OrderByToken::Word(word) => vec![names::folded(word)?],
        OrderByToken::Quoted(name) => vec![names::checked(name)?],
        other @ (OrderByToken::Symbol(_) | OrderByToken::End) => return Err(other.unexpected()),
    };
    let mut after = lexer.next()?;
    while after == OrderByToken::Symbol(".") {
        path.push(match lexer.next()? {
            OrderByToken::Word(word) => names::folded(word)?,
            OrderByToken::Quoted(name) => names::checked(name)?,
            other @ (OrderByToken::Number(_) | OrderByToken::Symbol(_) | OrderByToken::End) => {
                return Err(other.unexpected());
            }
        });
        after = lexer.next()?;
    }
    let Some((column, qualifiers)) = path.split_last() else {
        return Err(OrderByError::End);
    };
    check_table(qualifiers, table)?;
    Ok((OrderKey::Column(column.clone()), after))
}

fn check_table(qualifiers: &[String], table: Option<&TableName>) -> Result<(), OrderByError> {
    let is_ours = match (qualifiers, table) {
        ([], _) => true,
        ([name], Some(table)) => *name == table.name,
        ([schema, name], Some(table)) => *name == table.name && *schema == table.schema,
        _ => false,
    };
    let name = || names::quoted(qualifiers.last().map_or("", String::as_str));
    if is_ours { Ok(()) } else { Err(OrderByError::Table(name())) }
}

fn parse_direction<'a>(
    key: OrderKey,
    mut token: OrderByToken<'a>,
    lexer: &mut OrderByLexer<'a>,
) -> Result<(OrderByItem, OrderByToken<'a>), OrderByError> {
    let descending = token.is_word("desc");
    if descending || token.is_word("asc") {
        token = lexer.next()?;
    }
    let mut nulls = None;
    if token.is_word("nulls") {
        nulls = Some(match lexer.next()? {
            word if word.is_word("first") => NullsOrder::First,
            word if word.is_word("last") => NullsOrder::Last,
            other => return Err(other.unexpected()),
        });
        token = lexer.next()?;
    }
    Ok((OrderByItem { key, descending, nulls }, token))
}

fn is_reserved(word: &str) -> bool {
    word.is_ascii() && RESERVED.contains(&format!(" {} ", word.to_ascii_lowercase()))
}

/// Token of an `order_by` list.
#[derive(Debug, PartialEq, Eq)]
enum OrderByToken<'a> {
    /// An unquoted word, as written.
    Word(&'a str),
    /// Content of the quotes.
    Quoted(String),
    /// A digit, with the letters, digits, `_`, `$` and dots that follow.
    Number(&'a str),
    /// One other character.
    Symbol(&'a str),
    End,
}

impl OrderByToken<'_> {
    fn is_word(&self, keyword: &str) -> bool {
        matches!(self, OrderByToken::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// Returns the error for a token that doesn't fit.
    fn unexpected(self) -> OrderByError {
        match self {
            OrderByToken::End => OrderByError::End,
            OrderByToken::Symbol(symbol @ ("," | "." | ";" | ")")) => OrderByError::Syntax(symbol.to_owned()),
            OrderByToken::Symbol(symbol) => OrderByError::Unsupported(symbol.to_owned()),
            OrderByToken::Word(word) if ["collate", "using", "at"].contains(&&*word.to_ascii_lowercase()) => {
                OrderByError::Unsupported(names::excerpt(word))
            }
            OrderByToken::Word(text) | OrderByToken::Number(text) => {
                OrderByError::Syntax(names::excerpt(text))
            }
            OrderByToken::Quoted(name) => OrderByError::Syntax(names::excerpt(&names::quoted(&name))),
        }
    }
}

/// Splits an `order_by` list into tokens.
struct OrderByLexer<'a> {
    text: &'a str,
    characters: Peekable<CharIndices<'a>>,
}

impl<'a> OrderByLexer<'a> {
    fn next(&mut self) -> Result<OrderByToken<'a>, OrderByError> {
        while self
            .characters
            .next_if(|(_, character)| matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0c'))
            .is_some()
        {}
        let Some((start, first)) = self.characters.next() else {
            return Ok(OrderByToken::End);
        };
        Ok(match first {
            '"' => OrderByToken::Quoted(self.quoted()?),
            '0'..='9' => OrderByToken::Number(
                self.rest_of(start, |character| character == '.' || names::continues_name(character)),
            ),
            first if names::begins_name(first) => {
                OrderByToken::Word(self.rest_of(start, names::continues_name))
            }
            _ => OrderByToken::Symbol(self.rest_of(start, |_| false)),
        })
    }

    fn rest_of(&mut self, start: usize, belongs: impl Fn(char) -> bool) -> &'a str {
        while self.characters.next_if(|(_, character)| belongs(*character)).is_some() {}
        let end = self.characters.peek().map_or(self.text.len(), |(at, _)| *at);
        &self.text[start..end]
    }

    fn quoted(&mut self) -> Result<String, OrderByError> {
        let mut name = String::new();
        while let Some((_, character)) = self.characters.next() {
            if character == '"' && self.characters.next_if(|(_, next)| *next == '"').is_none() {
                return Ok(name);
            }
            name.push(character);
        }
        Err(OrderByError::End)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sql(text: &str) -> Result<String, OrderByError> {
        let table = TableName::new("app", "Items");
        let list = parse(text, Some(&table))?;
        let items: Result<Vec<_>, _> = list.iter().map(|item| item.sql(&["id", "na\"me"])).collect();
        Ok(items?.join(", "))
    }

    #[test]
    fn an_order_is_rewritten_with_quoted_names() {
        for (text, written) in [
            ("id", r#""id""#),
            ("ID asc", r#""id""#),
            (r#""ID" Desc"#, r#""ID" DESC"#),
            (" a , b\tdesc\n", r#""a", "b" DESC"#),
            ("a NULLS FIRST", r#""a" NULLS FIRST"#),
            ("a DESC nulls last,b", r#""a" DESC NULLS LAST, "b""#),
            (r#""x"" DESC; --" asc"#, r#""x"" DESC; --""#),
            (r#""Items".id"#, r#""id""#),
            (r#"app."Items"."iD""#, r#""iD""#),
            (r#""Items".order"#, r#""order""#),
            ("nulls nulls first", r#""nulls" NULLS FIRST"#),
            ("first, last, name, größe", r#""first", "last", "name", "größe""#),
            (r#""select", "a,b""#, r#""select", "a,b""#),
            ("2 DESC", r#""na""me" DESC"#),
            ("1,2", r#""id", "na""me""#),
        ] {
            assert_eq!(sql(text).as_deref(), Ok(written), "{text}");
        }
    }

    #[test]
    fn an_invalid_order_is_an_error_that_names_the_token() {
        for (text, problem) in [
            ("", "syntax error at end of input"),
            ("a,", "syntax error at end of input"),
            (r#""a"#, "syntax error at end of input"),
            ("a.", "syntax error at end of input"),
            ("a nulls", "syntax error at end of input"),
            (",a", r#"syntax error at or near ",""#),
            ("a b", r#"syntax error at or near "b""#),
            ("a asc desc", r#"syntax error at or near "desc""#),
            ("a nulls second", r#"syntax error at or near "second""#),
            ("a; DROP TABLE x", r#"syntax error at or near ";""#),
            ("order", r#"syntax error at or near "order""#),
            ("desc", r#"syntax error at or near "desc""#),
            ("Current_User", r#"syntax error at or near "Current_User""#),
            ("a limit 1", r#"syntax error at or near "limit""#),
            ("'a'", "non-integer constant in ORDER BY"),
            ("NULL desc", "non-integer constant in ORDER BY"),
            ("true", "non-integer constant in ORDER BY"),
            ("1.5", "non-integer constant in ORDER BY"),
            ("1e3", "non-integer constant in ORDER BY"),
            ("99999999999", "non-integer constant in ORDER BY"),
            ("0", "ORDER BY position 0 is not in select list"),
            ("3", "ORDER BY position 3 is not in select list"),
            ("other.id", r#"missing FROM-clause entry for table "other""#),
            ("public.\"Items\".id", r#"missing FROM-clause entry for table "Items""#),
            (r#""""#, "Invalid zero-length delimited identifier"),
            (&"a".repeat(64), "Identifier is too long (max length is 63 bytes)"),
        ] {
            assert_eq!(sql(text).unwrap_err().to_string(), problem, "{text}");
        }
    }

    #[test]
    fn expressions_are_refused_and_named() {
        for (text, named) in [
            ("lower(a)", "("),
            ("(a)", "("),
            ("a + 1", "+"),
            ("-1", "-"),
            ("a->>'b'", "-"),
            ("a::text", ":"),
            ("a[1]", "["),
            ("a COLLATE \"C\"", "COLLATE"),
            ("a using >", "using"),
            ("$1", "$"),
            ("a -- x", "-"),
            ("a /* x */", "/"),
            ("*", "*"),
        ] {
            assert_eq!(sql(text), Err(OrderByError::Unsupported(named.into())), "{text}");
        }
    }

    #[test]
    fn an_order_has_a_maximum_length() {
        assert_eq!(parse(&vec!["a"; MAX_ITEMS].join(","), None).unwrap().len(), MAX_ITEMS);
        assert_eq!(parse(&vec!["a"; MAX_ITEMS + 1].join(","), None), Err(OrderByError::TooMany));
        assert_eq!(parse("t.a", None), Err(OrderByError::Table("\"t\"".into())), "the table is unknown");
    }

    #[test]
    fn reserved_words_match_only_as_whole_words() {
        assert!(is_reserved("SELECT") && is_reserved("all") && is_reserved("with"));
        assert!(!is_reserved("sel") && !is_reserved("elect") && !is_reserved("") && !is_reserved("name"));
    }

    proptest! {
        #[test]
        fn rewritten_orders_parse_to_the_same_items(text in "[aB\"., 1']{0,12}( (ASC|desc))?( nulls (first|LAST))?") {
            let selected = ["x"; 11];
            if let Ok(list) = parse(&text, None) {
                let columns = list.iter().filter(|item| matches!(item.key, OrderKey::Column(_)));
                for item in columns {
                    let written = item.sql(&selected).unwrap();
                    prop_assert_eq!(parse(&written, None), Ok(vec![item.clone()]), "{}", written);
                }
            }
        }

        #[test]
        fn no_text_panics_the_order_parser(text in any::<String>()) {
            let _ = parse(&text, None);
        }
    }
}
