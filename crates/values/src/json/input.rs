//! Parses JSON texts, and writes them in the layout of jsonb (jsonapi.c, jsonb_in).
//!
//! Bounds: no recursion; at most [`MAX_DEPTH`] levels. Time is in proportion to the length, and for
//! objects whose keys are out of order also to the depth.

use super::string;
use crate::input_error::InputError;
use crate::numeric::Numeric;

/// Maximum depth of a document. Postgres' own limit depends on its stack.
const MAX_DEPTH: usize = 1_000;
/// Maximum bytes by which the numbers of a document may be longer than its text.
const MAX_ADDED_DIGITS: usize = 1 << 20;

/// Parses a JSON text, and returns it in the layout of jsonb.
pub(crate) fn parse(text: &str) -> Result<String, InputError> {
    let mut parser = JsonParser { text, at: 0, out: String::with_capacity(text.len()), open: Vec::new() };
    parser.document()?;
    Ok(parser.out)
}

/// Fails if a text is no JSON. Unlike jsonb, json may hold any escaped characters.
pub(crate) fn check(text: &str) -> Result<(), InputError> {
    match parse(text) {
        Ok(_) => Ok(()),
        Err(InputError::JsonZero | InputError::Overflow) => {
            Err(InputError::Unsupported("json constants that are no jsonb"))
        }
        // A half of a surrogate pair is allowed, too.
        Err(InputError::Json) if text.contains("\\u") => {
            Err(InputError::Unsupported("json constants that are no jsonb"))
        }
        Err(error) => Err(error),
    }
}

/// A container whose end has not been read.
enum Container {
    Array { is_empty: bool },
    Object { start: usize, members: Vec<Member> },
}

/// A member of an object: its key, and where it begins in the output.
struct Member {
    key: String,
    start: usize,
}

struct JsonParser<'t> {
    text: &'t str,
    at: usize,
    out: String,
    open: Vec<Container>,
}

impl JsonParser<'_> {
    fn document(&mut self) -> Result<(), InputError> {
        loop {
            // A value is expected here. `begin` returns whether it was a container that goes on.
            if !self.begin()? && !self.go_on()? {
                break;
            }
        }
        self.skip_blanks();
        if self.at == self.text.len() { Ok(()) } else { Err(InputError::Json) }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Reads the start of a value. Returns whether another value must follow: the first member of a
    /// container.
    fn begin(&mut self) -> Result<bool, InputError> {
        self.skip_blanks();
        match self.peek() {
            Some(b'{') => {
                self.enter(Container::Object { start: self.out.len(), members: Vec::new() })?;
                self.out.push('{');
                self.skip_blanks();
                if self.peek() == Some(b'}') {
                    return Ok(false);
                }
                self.key()?;
                Ok(true)
            }
            Some(b'[') => {
                self.enter(Container::Array { is_empty: true })?;
                self.out.push('[');
                self.skip_blanks();
                if self.peek() == Some(b']') {
                    return Ok(false);
                }
                if let Some(Container::Array { is_empty }) = self.open.last_mut() {
                    *is_empty = false;
                }
                Ok(true)
            }
            Some(b'"') => {
                let text = self.string()?;
                string::escape(&text, &mut self.out);
                Ok(false)
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| false),
            _ => self.word().map(|()| false),
        }
    }

    fn enter(&mut self, container: Container) -> Result<(), InputError> {
        self.at += 1;
        self.open.push(container);
        if self.open.len() > MAX_DEPTH {
            return Err(InputError::Unsupported("JSON documents of more than 1,000 levels"));
        }
        Ok(())
    }

    /// Reads what follows a value. Returns whether another value must follow.
    fn go_on(&mut self) -> Result<bool, InputError> {
        loop {
            self.skip_blanks();
            let next = self.peek();
            let Some(container) = self.open.last() else { return Ok(false) };
            match (container, next) {
                (Container::Array { is_empty: false }, Some(b',')) => {
                    self.at += 1;
                    self.out.push_str(", ");
                    return Ok(true);
                }
                (Container::Object { members, .. }, Some(b',')) if !members.is_empty() => {
                    self.at += 1;
                    self.out.push_str(", ");
                    self.skip_blanks();
                    self.key()?;
                    return Ok(true);
                }
                (Container::Array { .. }, Some(b']')) => {
                    self.at += 1;
                    self.out.push(']');
                    self.open.pop();
                }
                (Container::Object { .. }, Some(b'}')) => {
                    self.at += 1;
                    if let Some(Container::Object { start, members }) = self.open.pop() {
                        self.end_object(start, members);
                    }
                }
                _ => return Err(InputError::Json),
            }
        }
    }

    /// Reads a key and its colon.
    fn key(&mut self) -> Result<(), InputError> {
        if self.peek() != Some(b'"') {
            return Err(InputError::Json);
        }
        let (key, start) = (self.string()?, self.out.len());
        self.skip_blanks();
        if self.peek() != Some(b':') {
            return Err(InputError::Json);
        }
        self.at += 1;
        string::escape(&key, &mut self.out);
        self.out.push_str(": ");
        match self.open.last_mut() {
            Some(Container::Object { members, .. }) => members.push(Member { key, start }),
            _ => unreachable!("a key is within an object"),
        }
        Ok(())
    }

    /// Sorts the members of an object that ends here. Of several with one key, the last is kept.
    fn end_object(&mut self, start: usize, members: Vec<Member>) {
        let in_order = |pair: &[Member]| string::key_order(&pair[0].key, &pair[1].key).is_lt();
        if !members.windows(2).all(in_order) {
            let ends = members.iter().skip(1).map(|member| member.start - ", ".len()).chain([self.out.len()]);
            let mut sorted: Vec<_> = members.iter().zip(ends).collect();
            // Stable, from the last to the first: of equal keys, the last comes first.
            sorted.reverse();
            sorted.sort_by(|left, right| string::key_order(&left.0.key, &right.0.key));
            sorted.dedup_by(|next, kept| next.0.key == kept.0.key);
            let texts: Vec<_> = sorted.iter().map(|(member, end)| &self.out[member.start..*end]).collect();
            let object = texts.join(", ");
            self.out.truncate(start + 1);
            self.out.push_str(&object);
        }
        self.out.push('}');
    }

    fn number(&mut self) -> Result<(), InputError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        let mut plain = true;
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
            plain = false;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
            plain = false;
        }
        if self.peek().is_some_and(is_word_byte) {
            return Err(InputError::Json);
        }
        let text = &self.text[start..self.at];
        if plain && text.len() < 1_000 && text != "-0" {
            self.out.push_str(text);
        } else {
            self.out.push_str(&Numeric::parse(text)?.to_string());
            // A number such as 1e131071 has more digits than its text.
            if self.out.len() > self.text.len() + MAX_ADDED_DIGITS {
                return Err(InputError::Unsupported("JSON documents with such long numbers"));
            }
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), InputError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start { Err(InputError::Json) } else { Ok(()) }
    }

    fn word(&mut self) -> Result<(), InputError> {
        let start = self.at;
        while self.peek().is_some_and(is_word_byte) {
            self.at += 1;
        }
        match &self.text[start..self.at] {
            word @ ("true" | "false" | "null") => {
                self.out.push_str(word);
                Ok(())
            }
            _ => Err(InputError::Json),
        }
    }

    /// Reads a string in quotes, and returns its text.
    fn string(&mut self) -> Result<String, InputError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let rest = &self.text[self.at..];
            let end = rest.find(|c: char| c < ' ' || c == '"' || c == '\\').ok_or(InputError::Json)?;
            text.push_str(&rest[..end]);
            self.at += end + 1;
            match rest.as_bytes()[end] {
                b'"' => return Ok(text),
                b'\\' => {
                    let escaped = self.escaped()?;
                    text.push(escaped);
                }
                _ => return Err(InputError::Json),
            }
        }
    }

    /// Reads what follows a backslash.
    fn escaped(&mut self) -> Result<char, InputError> {
        let letter = self.peek().ok_or(InputError::Json)?;
        self.at += 1;
        Ok(match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let unit = self.unit()?;
                match unit {
                    0 => return Err(InputError::JsonZero),
                    0xd800..0xdc00 => {
                        if !self.text[self.at..].starts_with("\\u") {
                            return Err(InputError::Json);
                        }
                        self.at += 2;
                        let low = self.unit()?;
                        if !(0xdc00..0xe000).contains(&low) {
                            return Err(InputError::Json);
                        }
                        let point = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                        char::from_u32(point).ok_or(InputError::Json)?
                    }
                    // A low surrogate alone is no character.
                    unit => char::from_u32(unit).ok_or(InputError::Json)?,
                }
            }
            _ => return Err(InputError::Json),
        })
    }

    /// Reads four hexadecimal digits.
    fn unit(&mut self) -> Result<u32, InputError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).ok_or(InputError::Json)?;
        let mut unit = 0;
        for digit in digits {
            unit = unit << 4 | char::from(*digit).to_digit(16).ok_or(InputError::Json)?;
        }
        self.at += 4;
        Ok(unit)
    }
}

/// Returns whether the byte continues a word or number (JSON_ALPHANUMERIC_CHAR).
fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_written_as_postgres_writes_them() {
        for (text, written) in [
            (" [ 1,2 , {} ,[ ] ] ", "[1, 2, {}, []]"),
            (r#"{"bb":1,"a":2,"c":[{"z":1,"y":2}]}"#, r#"{"a": 2, "c": [{"y": 2, "z": 1}], "bb": 1}"#),
            (r#"{"a":1,"b":2,"a":{"x":3}}"#, r#"{"a": {"x": 3}, "b": 2}"#),
            (r#"["\u0041\/\ud83d\ude00\u0007\n\"\\"]"#, "[\"A/😀\\u0007\\n\\\"\\\\\"]"),
            ("[-0, -0.0, 1.50, 1e2, 1.5E-3, 123]", "[0, 0.0, 1.50, 100, 0.0015, 123]"),
            ("null", "null"),
            ("\t\"é\"\n", "\"é\""),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(written), "{text}");
            assert_eq!(parse(written).as_deref(), Ok(written));
        }
    }

    #[test]
    fn texts_that_are_no_json_are_refused() {
        for text in [
            "",
            " ",
            "x",
            "nul",
            "nulll",
            "[",
            "]",
            "[1",
            "[1,",
            "[1,]",
            "[,1]",
            "{",
            "{}}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            "{1:2}",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "1a",
            "[1 2]",
            "\"",
            "\"\n\"",
            r#""\x""#,
            r#""\u12""#,
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\u0041""#,
            "1 2",
            "'a'",
            "[1}",
            "{]",
            "NaN",
            "é",
            "\u{a0}1",
        ] {
            assert_eq!(parse(text), Err(InputError::Json), "{text}");
        }
        assert_eq!(parse(r#""\u0000""#), Err(InputError::JsonZero));
        assert_eq!(parse("1e999999"), Err(InputError::Overflow));
        assert!(parse(&format!("{}{}", "[".repeat(1_000), "]".repeat(1_000))).is_ok());
        assert!(matches!(parse(&"[".repeat(1_001)), Err(InputError::Unsupported(_))));
    }
}
