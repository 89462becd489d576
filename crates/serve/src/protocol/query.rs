//! The query string, taken apart.
//!
//! Invariant: no query string fails here, and none takes more memory than a small multiple of its length. What is wrong with a value is
//! said by whoever asks for it; what nobody asks for is ignored, whatever it holds.
//! Kept by: only the parameters of the protocol are kept, and [`MAX_PARAMS`] values of `params`; of several of one name, the last.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use forebay_admission::Secret;

use super::params::MAX_PARAMS;

/// The longest query string that a server should read, in bytes. Longer clauses come by POST.
pub const MAX_QUERY_BYTES: usize = 128 * 1024;

/// Those that say something, but for secrets and `params[n]`.
pub(super) const KNOWN: [&str; 18] = [
    "columns",
    "cursor",
    "experimental_live_sse",
    "handle",
    "live",
    "live_sse",
    "log",
    "offset",
    "params",
    "queryable_columns",
    "replica",
    "subset__limit",
    "subset__offset",
    "subset__order_by",
    "subset__params",
    "subset__where",
    "table",
    "where",
];

/// A value, or why it is no text that Postgres could have.
pub(super) type Text = Result<String, BadText>;

/// Why a value is no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadText {
    #[error("must be valid UTF-8")]
    NotUtf8,
    #[error("can't contain a NUL character")]
    Nul,
}

/// The parameters of a request.
#[derive(Default)]
pub struct Query {
    known: BTreeMap<&'static str, Text>,
    params: BTreeMap<String, Text>,
    secret: Option<Secret>,
    older_secret: Option<Secret>,
}

impl Query {
    /// What stands after the `?`, still encoded.
    pub fn parse(raw: &str) -> Query {
        let mut query = Query::default();
        for pair in raw.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name);
            match &*name {
                b"secret" => query.secret = secret(value),
                b"api_secret" => query.older_secret = secret(value),
                name => query.keep(name, value),
            }
        }
        query
    }

    /// What the client shows to be let in. Ask for this, and check it, before anything else is said about a request.
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref().or(self.older_secret.as_ref())
    }

    /// `None`: it isn't there. One without `=` is empty.
    pub(super) fn text(&self, name: &str) -> Option<&Text> {
        debug_assert!(KNOWN.contains(&name), "{name} isn't kept");
        self.known.get(name)
    }

    /// By what stands between the brackets; one more than [`MAX_PARAMS`] if there were more.
    pub(super) fn params(&self) -> &BTreeMap<String, Text> {
        &self.params
    }

    fn keep(&mut self, name: &[u8], value: &str) {
        if let Some(name) = KNOWN.iter().find(|known| known.as_bytes() == name) {
            self.known.insert(name, text(value));
        } else if let Some(key) = name.strip_prefix(b"params[").and_then(|rest| rest.strip_suffix(b"]")) {
            let key = String::from_utf8_lossy(key);
            if self.params.len() <= MAX_PARAMS || self.params.contains_key(&*key) {
                self.params.insert(key.into_owned(), text(value));
            }
        }
    }
}

/// The names only: values are users' data, or secrets.
impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("known", &self.known.keys()).finish_non_exhaustive()
    }
}

/// A secret of bytes that are no text is as wrong as any other.
fn secret(value: &str) -> Option<Secret> {
    Secret::new(String::from_utf8_lossy(&decode(value)))
}

fn text(value: &str) -> Text {
    let text = String::from_utf8(decode(value).into_owned()).map_err(|_| BadText::NotUtf8)?;
    if text.contains('\0') { Err(BadText::Nul) } else { Ok(text) }
}

/// Resolves `%XX` and `+`, as forms have them. A percent sign that escapes nothing stands for itself.
fn decode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return bytes.into();
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, unescaped(rest)) {
            (b'%', Some((byte, after))) => {
                decoded.push(byte);
                rest = after;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(*byte),
        }
    }
    decoded.into()
}

/// The byte that two hexadecimal digits stand for, and what follows them.
pub fn unescaped(digits: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, rest @ ..] = digits else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(*high)? << 4 | digit(*low)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(raw: &str, name: &str) -> Option<Text> {
        Query::parse(raw).text(name).cloned()
    }

    fn ok(text: &str) -> Option<Text> {
        Some(Ok(text.to_owned()))
    }

    #[test]
    fn values_are_decoded_as_forms_are() {
        for (raw, value) in [
            ("where=a%20=%20'b'", "a = 'b'"),
            ("where=a+%3d+1", "a = 1"),
            ("where=a%2B1", "a+1"),
            ("%77here=x", "x"),
            ("where=%E2%82%AC", "€"),
            ("where=€", "€"),
            ("where=a=b=c", "a=b=c"),
            ("where", ""),
            ("where=", ""),
            ("where=x%26y", "x&y"),
            ("where=%2526", "%26"),
            ("where=50%", "50%"),
            ("where=50%2", "50%2"),
            ("where=50%zz", "50%zz"),
            ("&&x&where=1&&", "1"),
        ] {
            assert_eq!(text_of(raw, "where"), ok(value), "{raw}");
        }
        assert_eq!(text_of("", "where"), None);
        assert_eq!(text_of("Where=x&wher=x&where[]=x&=x", "where"), None);
    }

    #[test]
    fn of_several_the_last_wins() {
        assert_eq!(text_of("table=a&table=b", "table"), ok("b"));
        assert_eq!(text_of("table=a&t%61ble=", "table"), ok(""));
        let query = Query::parse("params[1]=a&params[1]=b");
        assert_eq!(query.params().get("1"), Some(&Ok("b".to_owned())));
    }

    #[test]
    fn what_is_no_text_is_said_to_whoever_asks() {
        assert_eq!(text_of("table=%ff", "table"), Some(Err(BadText::NotUtf8)));
        assert_eq!(text_of("table=%C3", "table"), Some(Err(BadText::NotUtf8)));
        assert_eq!(text_of("table=%ED%A0%80", "table"), Some(Err(BadText::NotUtf8)), "half of a pair");
        assert_eq!(text_of("table=a%00b", "table"), Some(Err(BadText::Nul)));
        assert_eq!(text_of("unknown=%ff&%ff=1&table=t", "table"), ok("t"));
    }

    #[test]
    fn params_are_kept_by_number_and_no_more_than_can_be_used() {
        let query = Query::parse("params%5B1%5D=a&params[2]=b&params[x]=c&params[=d&params]=e&params=f");
        assert_eq!(query.params().keys().collect::<Vec<_>>(), ["1", "2", "x"]);
        let many: String = (1..5_000).map(|number| format!("&params[{number}]=x")).collect();
        let query = Query::parse(&format!("{many}&params[1]=last"));
        assert_eq!(query.params().len(), MAX_PARAMS + 1);
        assert_eq!(query.params()["1"], Ok("last".to_owned()));
    }

    #[test]
    fn the_secret_has_two_names() {
        let ours = Secret::new("a b").unwrap();
        for raw in [
            "secret=a+b",
            "secret=a%20b",
            "api_secret=a+b",
            "api_secret=x&secret=a+b",
            "secret=&api_secret=a+b",
        ] {
            assert!(ours.is(Query::parse(raw).secret()), "{raw}");
        }
        for raw in
            ["", "secret=x&api_secret=a+b", "secret=a+b&secret=", "Secret=a+b", "secret=%ff", "secret[]=a+b"]
        {
            assert!(!ours.is(Query::parse(raw).secret()), "{raw}");
        }
    }

    #[test]
    fn no_value_is_shown() {
        let shown =
            format!("{:?}", Query::parse("secret=s3cret&api_secret=s3cret&where=ssn='1'&params[1]=ssn"));
        assert!(!shown.contains("s3cret") && !shown.contains("ssn"), "{shown}");
        assert!(shown.contains("where"), "{shown}");
    }
}
