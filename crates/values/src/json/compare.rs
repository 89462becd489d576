//! Comparison of jsonb values (compareJsonbContainers).
//!
//! Both texts are read side by side, token by token, without recursion.
//!
//! Out of scope: collations. Strings and keys compare by bytes. Postgres compares them under the
//! database's collation, so ordering is refused unless that collation orders by bytes.

use std::cmp::Ordering;

use super::Malformed;
use super::scan::{self, Kind};
use super::string;
use crate::numeric::Numeric;

/// One token of a jsonb text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Begin(Kind),
    End,
    /// A key or an element that is no container.
    Scalar(Kind, &'t str),
}

/// Iterator over the tokens of a value.
struct Tokens<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Tokens<'t> {
    fn new(text: &'t str) -> Self {
        Tokens { text, at: 0 }
    }

    fn next_token(&mut self) -> Result<Option<Token<'t>>, Malformed> {
        let bytes = self.text.as_bytes();
        while let Some(b' ' | b',' | b':') = bytes.get(self.at) {
            self.at += 1;
        }
        let start = self.at;
        let kind = match bytes.get(start) {
            None => return Ok(None),
            Some(b'}' | b']') => {
                self.at += 1;
                return Ok(Some(Token::End));
            }
            Some(_) => Kind::of(self.text.get(start..).ok_or(Malformed)?)?,
        };
        if kind.is_container() {
            self.at += 1;
            return Ok(Some(Token::Begin(kind)));
        }
        self.at = match kind {
            Kind::String => scan::string_end(bytes, start)?,
            _ => scan::word_end(bytes, start),
        };
        Ok(Some(Token::Scalar(kind, self.text.get(start..self.at).ok_or(Malformed)?)))
    }
}

/// Returns whether two values are equal: `1.0` equals `1.00`.
pub fn equal(left: &str, right: &str) -> Result<bool, Malformed> {
    if left == right {
        return Ok(true);
    }
    let (mut left, mut right) = (Tokens::new(left), Tokens::new(right));
    loop {
        let same = match (left.next_token()?, right.next_token()?) {
            (Some(Token::Scalar(Kind::Number, left)), Some(Token::Scalar(Kind::Number, right))) => {
                left == right || number(left)?.compare(&number(right)?) == Ordering::Equal
            }
            (None, None) => return Ok(true),
            (left, right) => left == right,
        };
        if !same {
            return Ok(false);
        }
    }
}

/// Orders two values as jsonb's `<` does where strings are ordered by bytes.
pub fn order(left: &str, right: &str) -> Result<Ordering, Malformed> {
    if left == right {
        return Ok(Ordering::Equal);
    }
    let (left_kind, right_kind) = (Kind::of(left)?, Kind::of(right)?);
    let (mut left_sizes, mut right_sizes) = (Sizes::of(left)?, Sizes::of(right)?);
    if left_kind.max(right_kind) <= Kind::Array && left_kind.is_container() != right_kind.is_container() {
        // A value that is no container counts as an array of one element, and is less than other
        // arrays. An empty array is still less: it has fewer elements.
        let array = if left_kind == Kind::Array { left_sizes.next() } else { right_sizes.next() };
        let scalar_is_less = array > 0;
        return Ok(if (left_kind == Kind::Array) == scalar_is_less {
            Ordering::Greater
        } else {
            Ordering::Less
        });
    }
    let (mut left, mut right) = (Tokens::new(left), Tokens::new(right));
    loop {
        let (Some(left), Some(right)) = (left.next_token()?, right.next_token()?) else {
            return Ok(Ordering::Equal);
        };
        let order = match (left, right) {
            (Token::Scalar(left_kind, left), Token::Scalar(right_kind, right)) => {
                left_kind.cmp(&right_kind).then(scalars(left_kind, left, right)?)
            }
            (Token::Begin(left), Token::Begin(right)) => {
                left.cmp(&right).then(left_sizes.next().cmp(&right_sizes.next()))
            }
            (Token::End, Token::End) => Ordering::Equal,
            (Token::Begin(left), Token::Scalar(right, _)) | (Token::Scalar(left, _), Token::Begin(right)) => {
                left.cmp(&right)
            }
            // Containers of one size end together.
            (Token::End, _) | (_, Token::End) => return Err(Malformed),
        };
        if order != Ordering::Equal {
            return Ok(order);
        }
    }
}

/// Compares two values of one kind that are no containers.
fn scalars(kind: Kind, left: &str, right: &str) -> Result<Ordering, Malformed> {
    Ok(match kind {
        _ if left == right => Ordering::Equal,
        Kind::Number if Kind::of(right)? == Kind::Number => number(left)?.compare(&number(right)?),
        Kind::String if Kind::of(right)? == Kind::String => {
            string::unescape(left)?.cmp(&string::unescape(right)?)
        }
        // false, then true.
        _ => left.cmp(right),
    })
}

fn number(text: &str) -> Result<Numeric, Malformed> {
    Numeric::parse(text).map_err(|_| Malformed)
}

/// Returns a text that equal values share: numbers without trailing zeros.
pub fn key(json: &str) -> Result<Box<str>, Malformed> {
    let (mut out, mut tokens, mut copied) = (String::with_capacity(json.len()), Tokens::new(json), 0);
    let mut depth = 0_usize;
    while let Some(token) = tokens.next_token()? {
        match token {
            Token::Begin(_) => depth += 1,
            Token::End => depth = depth.checked_sub(1).ok_or(Malformed)?,
            Token::Scalar(Kind::Number, number) if number.contains('.') => {
                out.push_str(&json[copied..tokens.at - number.len()]);
                out.push_str(number.trim_end_matches('0').trim_end_matches('.'));
                copied = tokens.at;
            }
            Token::Scalar(..) => {}
        }
    }
    if depth > 0 || json.is_empty() {
        return Err(Malformed);
    }
    out.push_str(&json[copied..]);
    Ok(out.into_boxed_str())
}

/// The number of members of each container of a value, in the order in which they begin.
struct Sizes(std::vec::IntoIter<usize>);

impl Sizes {
    fn of(json: &str) -> Result<Self, Malformed> {
        let (mut sizes, mut open) = (Vec::new(), Vec::<usize>::new());
        let mut tokens = Tokens::new(json);
        while let Some(token) = tokens.next_token()? {
            if let (Token::Begin(_) | Token::Scalar(..), Some(container)) = (token, open.last()) {
                sizes[*container] += 1;
            }
            match token {
                Token::Begin(_) => {
                    open.push(sizes.len());
                    sizes.push(0);
                }
                Token::End => drop(open.pop().ok_or(Malformed)?),
                Token::Scalar(..) => {}
            }
        }
        Ok(Sizes(sizes.into_iter()))
    }

    fn next(&mut self) -> usize {
        self.0.next().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_order_of_postgres() {
        let ascending = [
            "[]",
            "null",
            r#""""#,
            r#""B""#,
            r#""a""#,
            "-1",
            "1",
            "1.5",
            "20",
            "false",
            "true",
            "[null]",
            r#"["b"]"#,
            "[1]",
            "[false]",
            "[[]]",
            "[[1]]",
            "[{}]",
            "[1, 2]",
            "{}",
            r#"{"a": 1}"#,
            r#"{"a": 2}"#,
            r#"{"b": 0}"#,
            r#"{"a": 1, "b": 1}"#,
        ];
        for (position, left) in ascending.iter().enumerate() {
            for (other, right) in ascending.iter().enumerate() {
                assert_eq!(order(left, right), Ok(position.cmp(&other)), "{left} {right}");
                assert_eq!(equal(left, right), Ok(position == other), "{left} {right}");
            }
        }
        assert_eq!(order(r#"{"a": 1.0}"#, r#"{"a": 1.00}"#), Ok(Ordering::Equal));
        assert_eq!(equal(r#"[1.0, "1.0"]"#, r#"[1.00, "1.0"]"#), Ok(true));
        assert_eq!(key(r#"[1.0, "1.0", 100, 0.50]"#).as_deref(), Ok(r#"[1, "1.0", 100, 0.5]"#));
        assert_eq!(key("[1"), Err(Malformed));
    }
}
