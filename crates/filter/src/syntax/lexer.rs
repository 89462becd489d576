//! Lexer: splits a clause into tokens by the rules of Postgres' lexer (scan.l).
//!
//! Invariant: tokens are in the order of the text, and each holds its start and end in bytes.
//! Out of scope: keywords. The lexer returns them as [`SqlTokenKind::Word`]; see `keywords.rs`.

use forebay_values::{Scalar, SqlValue, ValueType};

use crate::error::FilterError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SqlToken {
    pub(crate) kind: SqlTokenKind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SqlTokenKind {
    /// An unquoted name or keyword, folded to lower case and truncated to 63 bytes.
    Word(String),
    /// A name in double quotes, without the quotes, truncated to 63 bytes.
    Quoted(String),
    /// The value of a string constant of any form.
    Text(String),
    /// A number of digits only.
    Integer(String),
    /// A number with a point or an exponent.
    Decimal(String),
    Parameter(usize),
    /// An operator of one or more characters.
    Operator(String),
    /// Punctuation, such as `(`, `]`, `,` or `::`.
    Mark(&'static str),
    End,
}

/// Maximum length of a name in bytes (NAMEDATALEN - 1). Postgres truncates longer names with a
/// notice.
const MAX_NAME_BYTES: usize = 63;
const OPERATOR_BYTES: &[u8] = b"~!@#^&|`?+-*/%<>=";
/// An operator may end in `+` or `-` only if it contains one of these.
const UNUSUAL_BYTES: &[u8] = b"~!@#^&|`?%";

pub(crate) fn tokens(text: &str, version: u32) -> Result<Vec<SqlToken>, FilterError> {
    let mut lexer = Lexer { text, bytes: text.as_bytes(), at: 0, version };
    let mut tokens = Vec::new();
    loop {
        let token = lexer.next()?;
        let ended = token.kind == SqlTokenKind::End;
        tokens.push(token);
        if ended {
            return Ok(tokens);
        }
    }
}

/// Folds and truncates an unquoted name as Postgres does.
fn fold(name: &str) -> String {
    truncate_name(name.to_ascii_lowercase())
}

fn truncate_name(mut name: String) -> String {
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name.truncate(end);
    }
    name
}

struct Lexer<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    version: u32,
}

impl Lexer<'_> {
    fn next(&mut self) -> Result<SqlToken, FilterError> {
        self.skip_blanks()?;
        let start = self.at;
        let kind = match self.peek(0) {
            0 if self.at >= self.bytes.len() => SqlTokenKind::End,
            b'\'' => self.quoted_text(start)?,
            b'"' => SqlTokenKind::Quoted(truncate_name(self.quoted_name(start)?)),
            b'$' => self.dollar(start)?,
            b'0'..=b'9' => self.number(start)?,
            b'.' if self.peek(1).is_ascii_digit() => self.number(start)?,
            byte if is_word_start(byte) => self.word(start)?,
            byte if OPERATOR_BYTES.contains(&byte) => self.operator(start),
            _ => self.mark(start)?,
        };
        Ok(SqlToken { kind, start, end: self.at })
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, message: &str, start: usize) -> FilterError {
        let near = self.text.get(start..self.at.min(self.text.len())).unwrap_or_default();
        FilterError::syntax(self.text, start, format!("{message} at or near \"{near}\""))
    }

    fn skip_blanks(&mut self) -> Result<bool, FilterError> {
        let mut newline = false;
        loop {
            match self.peek(0) {
                b'\n' | b'\r' => {
                    newline = true;
                    self.at += 1;
                }
                b' ' | b'\t' | 0x0c => self.at += 1,
                // A vertical tab is a blank since Postgres 16.
                0x0b if self.version >= 16 => self.at += 1,
                b'-' if self.peek(1) == b'-' => {
                    let rest = &self.bytes[self.at..];
                    self.at +=
                        rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
                }
                b'/' if self.peek(1) == b'*' => self.skip_comment()?,
                _ => return Ok(newline),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), FilterError> {
        let (start, mut depth) = (self.at, 0_usize);
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'/', b'*') => {
                    depth += 1;
                    self.at += 2;
                }
                (b'*', b'/') => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ if self.at >= self.bytes.len() => return Err(self.error("unterminated /* comment", start)),
                _ => self.at += 1,
            }
        }
    }

    /// Reads after the opening quote up to the closing one. A doubled quote is one quote.
    fn quoted(&mut self, quote: u8, start: usize, unterminated: &str) -> Result<String, FilterError> {
        let mut out = Vec::new();
        loop {
            match self.bytes.get(self.at) {
                None => return Err(self.error(unterminated, start)),
                Some(byte) if *byte == quote => {
                    self.at += 1;
                    if self.peek(0) != quote {
                        return Ok(String::from_utf8(out)
                            .expect("the text is UTF-8 and is split only at ASCII quotes"));
                    }
                    out.push(quote);
                    self.at += 1;
                }
                Some(byte) => {
                    out.push(*byte);
                    self.at += 1;
                }
            }
        }
    }

    fn quoted_name(&mut self, start: usize) -> Result<String, FilterError> {
        self.at += 1;
        let name = self.quoted(b'"', start, "unterminated quoted identifier")?;
        match name.is_empty() {
            true => Err(self.error("zero-length delimited identifier", start)),
            false => Ok(name),
        }
    }

    fn quoted_text(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        self.at += 1;
        let mut text = self.quoted(b'\'', start, "unterminated quoted string")?;
        while self.continues()? {
            text.push_str(&self.quoted(b'\'', start, "unterminated quoted string")?);
        }
        Ok(SqlTokenKind::Text(text))
    }

    /// Skips to the continuation of a string constant: a quote after blanks with a line break.
    /// Returns whether there is one.
    fn continues(&mut self) -> Result<bool, FilterError> {
        let before = self.at;
        let newline = self.skip_blanks()?;
        if newline && self.peek(0) == b'\'' {
            self.at += 1;
            return Ok(true);
        }
        self.at = before;
        Ok(false)
    }

    fn dollar(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        if self.peek(1).is_ascii_digit() {
            self.at += 1;
            let digits = self.digits().to_owned();
            if is_word_start(self.peek(0)) {
                return Err(self.junk("trailing junk after parameter", start));
            }
            // A number above `usize::MAX` has no parameter value either.
            return Ok(SqlTokenKind::Parameter(digits.parse().unwrap_or(usize::MAX)));
        }
        let rest = &self.text[self.at + 1..];
        let tag_ends = rest.find('$').filter(|end| is_tag(&rest[..*end]));
        let Some(tag_ends) = tag_ends else {
            self.at += 1;
            return Err(self.error("syntax error", start));
        };
        let delimiter = &self.text[self.at..self.at + tag_ends + 2];
        let body = self.at + delimiter.len();
        match self.text[body..].find(delimiter) {
            Some(length) => {
                self.at = body + length + delimiter.len();
                Ok(SqlTokenKind::Text(self.text[body..body + length].to_owned()))
            }
            None => {
                self.at = self.bytes.len();
                Err(self.error("unterminated dollar-quoted string", start))
            }
        }
    }

    /// Returns the error for a word directly after a number.
    fn junk(&mut self, message: &str, start: usize) -> FilterError {
        while is_word_byte(self.peek(0)) {
            self.at += 1;
        }
        self.error(message, start)
    }

    fn digits(&mut self) -> &str {
        let start = self.at;
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// Takes digits of a number. Since Postgres 16, an underscore may be between two.
    fn number_digits(&mut self) {
        self.digits();
        let begun = self.text.as_bytes().get(self.at.wrapping_sub(1)).is_some_and(u8::is_ascii_digit);
        while self.version >= 16 && begun && self.peek(0) == b'_' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.digits();
        }
    }

    fn number(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        let mut decimal = false;
        self.number_digits();
        if self.peek(0) == b'.' && self.peek(1) != b'.' {
            decimal = true;
            self.at += 1;
            self.number_digits();
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign).is_ascii_digit() {
                decimal = true;
                self.at += 1 + sign;
                self.number_digits();
            }
        }
        let end = self.at;
        if is_word_start(self.peek(0)) {
            return match &self.text[start..end] {
                "0" if self.version >= 16 && b"xXoObB".contains(&self.peek(0)) => {
                    self.number_with_base(start)
                }
                _ => Err(self.junk("trailing junk after numeric literal", start)),
            };
        }
        let number = self.text[start..end].replace('_', "");
        Ok(if decimal { SqlTokenKind::Decimal(number) } else { SqlTokenKind::Integer(number) })
    }

    /// Takes a number such as 0x1f, 0o17 or 0b11. The token has the same number without a base.
    fn number_with_base(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        while is_word_byte(self.peek(0)) {
            self.at += 1;
        }
        match SqlValue::parse_scalar(&self.text[start..self.at], Scalar::Numeric, true) {
            Ok(number) => {
                Ok(SqlTokenKind::Integer(number.into_text(ValueType::Scalar(Scalar::Numeric)).into_owned()))
            }
            Err(_) => {
                Err(FilterError::unsupported(self.text, start, "malformed or very long numbers with a base"))
            }
        }
    }

    fn word(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        match (self.peek(0).to_ascii_lowercase(), self.peek(1)) {
            (b'e', b'\'') => {
                self.at += 2;
                return self.escaped_text(start);
            }
            (b'b' | b'x', b'\'') => {
                return Err(FilterError::unsupported(self.text, start, "bit strings"));
            }
            (b'n', b'\'') => {
                return Err(FilterError::unsupported(self.text, start, "national character strings"));
            }
            (b'u', b'&') if matches!(self.peek(2), b'\'' | b'"') => {
                return Err(FilterError::unsupported(
                    self.text,
                    start,
                    "strings and names with Unicode escapes",
                ));
            }
            _ => {}
        }
        while is_word_byte(self.peek(0)) {
            self.at += 1;
        }
        Ok(SqlTokenKind::Word(fold(&self.text[start..self.at])))
    }

    /// Reads `E'…'` after its opening quote.
    fn escaped_text(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        let mut out = Vec::new();
        loop {
            match self.bytes.get(self.at).copied() {
                None => return Err(self.error("unterminated quoted string", start)),
                Some(b'\'') if self.peek(1) == b'\'' => {
                    out.push(b'\'');
                    self.at += 2;
                }
                Some(b'\'') => {
                    self.at += 1;
                    if !self.continues()? {
                        break;
                    }
                }
                Some(b'\\') => self.escape(&mut out, start)?,
                Some(byte) => {
                    out.push(byte);
                    self.at += 1;
                }
            }
        }
        match String::from_utf8(out) {
            Ok(text) if !text.contains('\0') => Ok(SqlTokenKind::Text(text)),
            _ => {
                let message = "invalid byte sequence for encoding \"UTF8\"".to_owned();
                Err(FilterError::invalid(self.text, start, "22021", message))
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>, start: usize) -> Result<(), FilterError> {
        let escaped = self.peek(1);
        self.at += 2;
        match escaped {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' if self.version >= 16 => out.push(11),
            b'0'..=b'7' | b'x' | b'u' | b'U' => {
                return Err(FilterError::unsupported(self.text, start, "escapes of characters by number"));
            }
            0 => return Err(self.error("unterminated quoted string", start)),
            other => out.push(other),
        }
        Ok(())
    }

    fn operator(&mut self, start: usize) -> SqlTokenKind {
        while OPERATOR_BYTES.contains(&self.peek(0)) {
            let comment = matches!((self.peek(0), self.peek(1)), (b'-', b'-') | (b'/', b'*'));
            if comment && self.at > start {
                break;
            }
            self.at += 1;
        }
        let unusual = self.bytes[start..self.at].iter().any(|byte| UNUSUAL_BYTES.contains(byte));
        while self.at - start > 1 && matches!(self.bytes[self.at - 1], b'+' | b'-') && !unusual {
            self.at -= 1;
        }
        match &self.text[start..self.at] {
            "!=" => SqlTokenKind::Operator("<>".to_owned()),
            "=>" => SqlTokenKind::Mark("=>"),
            operator => SqlTokenKind::Operator(operator.to_owned()),
        }
    }

    fn mark(&mut self, start: usize) -> Result<SqlTokenKind, FilterError> {
        const MARKS: [&str; 11] = ["::", ":=", "..", "(", ")", "[", "]", ",", ";", ":", "."];
        match MARKS.into_iter().find(|mark| self.text[self.at..].starts_with(mark)) {
            Some(mark) => {
                self.at += mark.len();
                Ok(SqlTokenKind::Mark(mark))
            }
            None => {
                self.at += self.text[self.at..].chars().next().map_or(1, char::len_utf8);
                Err(self.error("syntax error", start))
            }
        }
    }
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_word_byte(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_tag(tag: &str) -> bool {
    let start = tag.bytes().next().is_none_or(is_word_start);
    start && tag.bytes().all(|byte| is_word_byte(byte) && byte != b'$')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<SqlTokenKind> {
        let mut kinds: Vec<_> = tokens(text, 15).unwrap().into_iter().map(|token| token.kind).collect();
        assert_eq!(kinds.pop(), Some(SqlTokenKind::End));
        kinds
    }

    fn operator(text: &str) -> SqlTokenKind {
        SqlTokenKind::Operator(text.to_owned())
    }

    #[test]
    fn operators_end_where_postgres_ends_them() {
        assert_eq!(kinds("<-")[0], operator("<"));
        assert_eq!(kinds("@-")[0], operator("@-"));
        assert_eq!(kinds("=-- comment\n1").len(), 2);
        assert_eq!(kinds("*/* a /* b */ c */1").len(), 2);
        assert_eq!(kinds("!=")[0], operator("<>"));
        assert_eq!(kinds("||/")[0], operator("||/"));
    }

    #[test]
    fn strings_are_read_in_all_their_forms() {
        let text = |text: &str| vec![SqlTokenKind::Text(text.to_owned())];
        assert_eq!(kinds("'a''b\\'"), text("a'b\\"));
        assert_eq!(kinds("'a' -- so\n 'b'"), text("ab"));
        assert_eq!(kinds("e'\\t\\'x''y'"), text("\t'x'y"));
        assert_eq!(kinds("$$a'b$$"), text("a'b"));
        assert_eq!(kinds("$é$a$$b$é$"), text("a$$b"));
    }

    #[test]
    fn names_fold_only_ascii_and_only_without_quotes() {
        assert_eq!(kinds("NäMÉ")[0], SqlTokenKind::Word("nämÉ".to_owned()));
        assert_eq!(kinds("\"A\"\"b\"")[0], SqlTokenKind::Quoted("A\"b".to_owned()));
        assert_eq!(fold(&"é".repeat(40)).len(), 62);
    }

    #[test]
    fn locations_count_characters_after_select_1_where() {
        let error = |text| tokens(text, 15).unwrap_err().to_string();
        assert_eq!(error("é = 'abc"), "At location 19: unterminated quoted string at or near \"'abc\"");
        assert_eq!(error("1abc"), "At location 15: trailing junk after numeric literal at or near \"1abc\"");
        assert_eq!(error("a \\ b"), "At location 17: syntax error at or near \"\\\"");
    }
}
