//! In what order a subset's rows come.
//!
//! Invariant: what goes into SQL was written here, of names in quotes and words of ours; nothing of what a client wrote gets there as
//! it is. What means something else in Postgres than a column and its direction is refused.
//! Kept by: the grammar below is all that is read, and whatever it doesn't know is an error.
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

/// The longest list that is read.
const MAX_ITEMS: usize = MAX_COLUMNS;

/// Words that are no column unless they are quoted: Postgres' reserved ones, and those that name only types and functions.
const RESERVED: &str = " all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate \
    collation column concurrently constraint create cross current_catalog current_date current_role current_schema \
    current_time current_timestamp current_user default deferrable desc distinct do else end except fetch for foreign freeze from \
    full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit localtime \
    localtimestamp natural not notnull offset on only or order outer overlaps placing primary references returning right select \
    session_user similar some symmetric system_user table tablesample then to trailing union unique user using variadic verbose \
    when where window with ";

/// Words that are constants.
const CONSTANTS: [&str; 3] = ["true", "false", "null"];

/// By what rows are ordered, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderBy {
    /// By what.
    pub key: OrderKey,
    /// From the greatest to the least.
    pub descending: bool,
    /// Where NULLs come; `None`: as greater than all others.
    pub nulls: Option<Nulls>,
}

/// By what rows are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderKey {
    /// The column of this name, as the catalog has it. Whether there is one is for others to say.
    Column(String),
    /// The column at this place among those that are selected, from 1: what a number means in SQL.
    Position(u32),
}

/// Where NULLs come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nulls {
    /// Before all others.
    First,
    /// After all others.
    Last,
}

/// Why an order is refused. Its text may be shown to whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderByError {
    /// Not SQL, in Postgres' words.
    #[error("syntax error at or near \"{0}\"")]
    Syntax(String),
    /// Not SQL, for want of more.
    #[error("syntax error at end of input")]
    End,
    /// SQL that can do more than name columns.
    #[error(
        "only columns and constants, ASC, DESC and NULLS FIRST or LAST are supported in order_by, not \"{0}\""
    )]
    Unsupported(String),
    /// A constant that isn't a place.
    #[error("non-integer constant in ORDER BY")]
    Constant,
    /// A place that no selected column has.
    #[error("ORDER BY position {0} is not in select list")]
    Position(u32),
    /// A column of another table.
    #[error("missing FROM-clause entry for table {0}")]
    Table(String),
    /// No name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A longer list than is read.
    #[error("too many columns in order_by (the most is {MAX_ITEMS})")]
    TooMany,
}

impl OrderBy {
    /// As SQL; a place stands for one of the selected columns, in their order.
    ///
    /// # Errors
    /// If there is no column at that place.
    pub fn sql(&self, selected: &[impl AsRef<str>]) -> Result<String, OrderByError> {
        let mut sql = match &self.key {
            OrderKey::Column(name) => names::quoted(name),
            OrderKey::Position(place) => {
                let at = usize::try_from(*place).ok().and_then(|place| place.checked_sub(1));
                let column = at.and_then(|at| selected.get(at)).ok_or(OrderByError::Position(*place))?;
                names::quoted(column.as_ref())
            }
        };
        if self.descending {
            sql.push_str(" DESC");
        }
        match self.nulls {
            Some(Nulls::First) => sql.push_str(" NULLS FIRST"),
            Some(Nulls::Last) => sql.push_str(" NULLS LAST"),
            None => {}
        }
        Ok(sql)
    }
}

/// Reads a list. Columns may be written with their table, if it is this one.
pub(super) fn parse(text: &str, table: Option<&TableName>) -> Result<Vec<OrderBy>, OrderByError> {
    let mut tokens = Tokens { text, characters: text.char_indices().peekable() };
    let mut list = Vec::new();
    let mut token = tokens.next()?;
    loop {
        if list.len() == MAX_ITEMS {
            return Err(OrderByError::TooMany);
        }
        let (key, after) = key(token, &mut tokens, table)?;
        let (item, after) = direction(key, after, &mut tokens)?;
        list.push(item);
        match after {
            Token::End => return Ok(list),
            Token::Symbol(",") => token = tokens.next()?,
            other => return Err(other.unexpected()),
        }
    }
}

fn key<'a>(
    first: Token<'a>,
    tokens: &mut Tokens<'a>,
    table: Option<&TableName>,
) -> Result<(OrderKey, Token<'a>), OrderByError> {
    let mut path = match first {
        Token::Number(digits) => {
            let place = digits.parse().map_err(|_| OrderByError::Constant)?;
            return Ok((OrderKey::Position(place), tokens.next()?));
        }
        Token::Symbol("'") => return Err(OrderByError::Constant),
        Token::Word(word) if CONSTANTS.contains(&&*word.to_ascii_lowercase()) => {
            return Err(OrderByError::Constant);
        }
        Token::Word(word) if is_reserved(word) => return Err(OrderByError::Syntax(word.to_owned())),
        Token::Word(word) => vec![names::folded(word)?],
        Token::Quoted(name) => vec![names::checked(name)?],
        other @ (Token::Symbol(_) | Token::End) => return Err(other.unexpected()),
    };
    let mut after = tokens.next()?;
    while after == Token::Symbol(".") {
        path.push(match tokens.next()? {
            Token::Word(word) => names::folded(word)?,
            Token::Quoted(name) => names::checked(name)?,
            other @ (Token::Number(_) | Token::Symbol(_) | Token::End) => return Err(other.unexpected()),
        });
        after = tokens.next()?;
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

fn direction<'a>(
    key: OrderKey,
    mut token: Token<'a>,
    tokens: &mut Tokens<'a>,
) -> Result<(OrderBy, Token<'a>), OrderByError> {
    let descending = token.is_word("desc");
    if descending || token.is_word("asc") {
        token = tokens.next()?;
    }
    let mut nulls = None;
    if token.is_word("nulls") {
        nulls = Some(match tokens.next()? {
            word if word.is_word("first") => Nulls::First,
            word if word.is_word("last") => Nulls::Last,
            other => return Err(other.unexpected()),
        });
        token = tokens.next()?;
    }
    Ok((OrderBy { key, descending, nulls }, token))
}

fn is_reserved(word: &str) -> bool {
    word.is_ascii() && RESERVED.contains(&format!(" {} ", word.to_ascii_lowercase()))
}

#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    /// Without quotes, as it was written.
    Word(&'a str),
    /// What was in the quotes.
    Quoted(String),
    /// Digits, and whatever follows them without a break.
    Number(&'a str),
    /// One character of any other kind.
    Symbol(&'a str),
    End,
}

impl Token<'_> {
    fn is_word(&self, keyword: &str) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(keyword))
    }

    /// What to say of it where it makes no sense.
    fn unexpected(self) -> OrderByError {
        match self {
            Token::End => OrderByError::End,
            Token::Symbol(symbol @ ("," | "." | ";" | ")")) => OrderByError::Syntax(symbol.to_owned()),
            Token::Symbol(symbol) => OrderByError::Unsupported(symbol.to_owned()),
            Token::Word(word) if ["collate", "using", "at"].contains(&&*word.to_ascii_lowercase()) => {
                OrderByError::Unsupported(names::excerpt(word))
            }
            Token::Word(text) | Token::Number(text) => OrderByError::Syntax(names::excerpt(text)),
            Token::Quoted(name) => OrderByError::Syntax(names::excerpt(&names::quoted(&name))),
        }
    }
}

struct Tokens<'a> {
    text: &'a str,
    characters: Peekable<CharIndices<'a>>,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Result<Token<'a>, OrderByError> {
        while self
            .characters
            .next_if(|(_, character)| matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0c'))
            .is_some()
        {}
        let Some((start, first)) = self.characters.next() else {
            return Ok(Token::End);
        };
        Ok(match first {
            '"' => Token::Quoted(self.quoted()?),
            '0'..='9' => Token::Number(
                self.rest_of(start, |character| character == '.' || names::continues_name(character)),
            ),
            first if names::begins_name(first) => Token::Word(self.rest_of(start, names::continues_name)),
            _ => Token::Symbol(self.rest_of(start, |_| false)),
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
    fn an_order_is_written_anew_in_quotes() {
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
    fn what_is_no_list_of_columns_is_refused_with_its_place() {
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
    fn expressions_are_refused_by_name() {
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
    fn a_list_has_an_end() {
        assert_eq!(parse(&vec!["a"; MAX_ITEMS].join(","), None).unwrap().len(), MAX_ITEMS);
        assert_eq!(parse(&vec!["a"; MAX_ITEMS + 1].join(","), None), Err(OrderByError::TooMany));
        assert_eq!(parse("t.a", None), Err(OrderByError::Table("\"t\"".into())), "of no table");
    }

    #[test]
    fn reserved_words_are_found_whole() {
        assert!(is_reserved("SELECT") && is_reserved("all") && is_reserved("with"));
        assert!(!is_reserved("sel") && !is_reserved("elect") && !is_reserved("") && !is_reserved("name"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_as_the_same(text in "[aB\"., 1']{0,12}( (ASC|desc))?( nulls (first|LAST))?") {
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
        fn nothing_upsets_the_parser(text in any::<String>()) {
            let _ = parse(&text, None);
        }
    }
}
