//! Query string parameters, decoded.
//!
//! Invariant: parsing never fails, and takes at most a small multiple of the query string's length
//! in memory. A bad value is reported when it is read. Unknown parameters are ignored.
//! Enforced by: only the protocol's parameters and [`MAX_PARAMS`] values of `params` are kept. Of
//! repeated names, the last wins.
//! The decoder is our own: `form_urlencoded` replaces bytes that aren't UTF-8, so a value that must
//! be refused would look like a valid one.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use forebay_admission::Secret;

use super::params::MAX_PARAMS;

/// Maximum length of a query string, in bytes. Longer parameters are sent in the body of a POST.
pub const MAX_QUERY_BYTES: usize = 128 * 1024;

/// Maximum length of a where clause in a query string, in bytes. A longer one is sent in the body
/// of a POST.
pub const MAX_QUERY_CLAUSE_BYTES: usize = 64 * 1024;

/// Parameters of the protocol, without secrets and `params[n]`.
pub(super) const PARAM_NAMES: [&str; 18] = [
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

/// A value, or why Postgres can't store it as text.
pub(super) type ParamText = Result<String, ParamTextError>;

/// Why a value is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParamTextError {
    #[error("must be valid UTF-8")]
    NotUtf8,
    #[error("can't contain a NUL character")]
    Nul,
    /// In a body, another type of value is required.
    #[error("is invalid")]
    Type,
}

/// Parameters of a request.
#[derive(Default)]
pub struct QueryParams {
    /// Values of [`PARAM_NAMES`].
    known: BTreeMap<&'static str, ParamText>,
    /// Values of `params[…]`, by the text in the brackets.
    params: BTreeMap<String, ParamText>,
    secret: Option<Secret>,
    /// Value of `api_secret`, the older name.
    older_secret: Option<Secret>,
}

impl QueryParams {
    /// Parses the part after the `?`, still encoded.
    pub fn parse(raw: &str) -> QueryParams {
        let mut query = QueryParams::default();
        for pair in raw.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name);
            match &*name {
                b"secret" => query.secret = secret(value),
                b"api_secret" => query.older_secret = secret(value),
                name => query.store(name, value),
            }
        }
        query
    }

    /// Returns the client's secret. The caller verifies it before it reports other problems.
    pub fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref().or(self.older_secret.as_ref())
    }

    /// Returns a value, or `None` if it is absent. A parameter without `=` is empty.
    pub(super) fn text(&self, name: &str) -> Option<&ParamText> {
        debug_assert!(PARAM_NAMES.contains(&name), "{name} isn't stored");
        self.known.get(name)
    }

    /// Returns the values of `params[…]` by the text in the brackets. Holds [`MAX_PARAMS`] + 1
    /// values if there were more.
    pub(super) fn params(&self) -> &BTreeMap<String, ParamText> {
        &self.params
    }

    /// Returns a copy without the secrets.
    pub(super) fn without_secrets(&self) -> QueryParams {
        let (known, params) = (self.known.clone(), self.params.clone());
        QueryParams { known, params, ..QueryParams::default() }
    }

    /// Sets a parameter of the protocol.
    pub(super) fn set(&mut self, name: &'static str, value: ParamText) {
        self.known.insert(name, value);
    }

    /// Sets `params[1]`, `params[2]` …
    pub(super) fn set_params(&mut self, values: Vec<String>) {
        let numbered = (1..).zip(values).map(|(number, value): (usize, _)| (number.to_string(), Ok(value)));
        self.params = numbered.collect();
    }

    /// Stores a parameter of the protocol. Ignores others.
    fn store(&mut self, name: &[u8], value: &str) {
        if let Some(name) = PARAM_NAMES.iter().find(|known| known.as_bytes() == name) {
            self.known.insert(name, text(value));
        } else if let Some(key) = name.strip_prefix(b"params[").and_then(|rest| rest.strip_suffix(b"]")) {
            let key = String::from_utf8_lossy(key);
            if self.params.len() <= MAX_PARAMS || self.params.contains_key(&*key) {
                self.params.insert(key.into_owned(), text(value));
            }
        }
    }
}

/// Shows only the names: values are users' data or secrets.
impl fmt::Debug for QueryParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueryParams").field("known", &self.known.keys()).finish_non_exhaustive()
    }
}

/// Decodes a secret. One that is not UTF-8 is refused like any wrong secret.
fn secret(value: &str) -> Option<Secret> {
    Secret::new(String::from_utf8_lossy(&decode(value)))
}

fn text(value: &str) -> ParamText {
    let text = String::from_utf8(decode(value).into_owned()).map_err(|_| ParamTextError::NotUtf8)?;
    if text.contains('\0') { Err(ParamTextError::Nul) } else { Ok(text) }
}

/// Decodes `%XX` and `+`, as in forms. An incomplete escape stays unchanged.
fn decode(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return bytes.into();
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, decode_hex_pair(rest)) {
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

/// Decodes two hexadecimal digits. Returns the byte and the rest.
pub fn decode_hex_pair(digits: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, rest @ ..] = digits else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some((digit(*high)? << 4 | digit(*low)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(raw: &str, name: &str) -> Option<ParamText> {
        QueryParams::parse(raw).text(name).cloned()
    }

    fn ok(text: &str) -> Option<ParamText> {
        Some(Ok(text.to_owned()))
    }

    #[test]
    fn values_are_decoded_as_in_forms() {
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
    fn the_last_of_repeated_parameters_wins() {
        assert_eq!(text_of("table=a&table=b", "table"), ok("b"));
        assert_eq!(text_of("table=a&t%61ble=", "table"), ok(""));
        let query = QueryParams::parse("params[1]=a&params[1]=b");
        assert_eq!(query.params().get("1"), Some(&Ok("b".to_owned())));
    }

    #[test]
    fn a_value_that_is_not_text_is_an_error_when_it_is_read() {
        assert_eq!(text_of("table=%ff", "table"), Some(Err(ParamTextError::NotUtf8)));
        assert_eq!(text_of("table=%C3", "table"), Some(Err(ParamTextError::NotUtf8)));
        assert_eq!(
            text_of("table=%ED%A0%80", "table"),
            Some(Err(ParamTextError::NotUtf8)),
            "half of a surrogate pair"
        );
        assert_eq!(text_of("table=a%00b", "table"), Some(Err(ParamTextError::Nul)));
        assert_eq!(text_of("unknown=%ff&%ff=1&table=t", "table"), ok("t"));
    }

    #[test]
    fn params_are_stored_by_key_up_to_the_maximum() {
        let query =
            QueryParams::parse("params%5B1%5D=a&params[2]=b&params[x]=c&params[=d&params]=e&params=f");
        assert_eq!(query.params().keys().collect::<Vec<_>>(), ["1", "2", "x"]);
        let many: String = (1..MAX_PARAMS + 50).map(|number| format!("&params[{number}]=x")).collect();
        let query = QueryParams::parse(&format!("{many}&params[1]=last"));
        assert_eq!(query.params().len(), MAX_PARAMS + 1);
        assert_eq!(query.params()["1"], Ok("last".to_owned()));
    }

    #[test]
    fn the_secret_is_read_from_two_parameters() {
        let configured = Secret::new("a b").unwrap();
        for raw in [
            "secret=a+b",
            "secret=a%20b",
            "api_secret=a+b",
            "api_secret=x&secret=a+b",
            "secret=&api_secret=a+b",
        ] {
            assert!(configured.is(QueryParams::parse(raw).secret()), "{raw}");
        }
        for raw in
            ["", "secret=x&api_secret=a+b", "secret=a+b&secret=", "Secret=a+b", "secret=%ff", "secret[]=a+b"]
        {
            assert!(!configured.is(QueryParams::parse(raw).secret()), "{raw}");
        }
    }

    #[test]
    fn debug_output_of_query_params_has_no_values() {
        let shown = format!(
            "{:?}",
            QueryParams::parse("secret=s3cret&api_secret=s3cret&where=ssn='1'&params[1]=ssn")
        );
        assert!(!shown.contains("s3cret") && !shown.contains("ssn"), "{shown}");
        assert!(shown.contains("where"), "{shown}");
    }
}
