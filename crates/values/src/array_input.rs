//! Parses the text of arrays (array_in).

use crate::array::{Array, Dimension, MAX_DIMENSIONS};
use crate::input_error::InputError;
use crate::scalar::Scalar;
use crate::sql_value::SqlValue;

impl Array {
    /// Parses an array's text, such as `{1,NULL,"a b"}` or `[0:1]={1,2}`. `modern`: as
    /// Postgres 16 and newer do.
    ///
    /// # Errors
    /// Fails if the text is no array, or an element is not of the type.
    pub fn parse(text: &str, element: Scalar, modern: bool) -> Result<Self, InputError> {
        let mut reader = ArrayParser { rest: text, element, modern, lengths: Vec::new(), items: Vec::new() };
        reader.skip_blanks();
        let bounds = reader.bounds()?;
        reader.value(0)?;
        reader.skip_blanks();
        if !reader.rest.is_empty() {
            return Err(InputError::Array("junk after the closing brace"));
        }
        let lengths: Vec<_> = reader.lengths.iter().map(|length| length.unwrap_or(0)).collect();
        if let Some(bounds) = &bounds {
            let given: Vec<_> = bounds.iter().map(|dimension| dimension.length).collect();
            if given != lengths {
                return Err(InputError::Array("the dimensions don't match the contents"));
            }
        }
        if reader.items.is_empty() {
            return Ok(Array::EMPTY);
        }
        let dimensions = bounds
            .unwrap_or_else(|| lengths.into_iter().map(|length| Dimension { length, lower: 1 }).collect());
        Ok(Array::of(dimensions, reader.items))
    }
}

struct ArrayParser<'t> {
    rest: &'t str,
    element: Scalar,
    modern: bool,
    /// The length of each dimension, once its first array is parsed.
    lengths: Vec<Option<usize>>,
    items: Vec<Option<SqlValue<'static>>>,
}

impl ArrayParser<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    }

    fn take(&mut self, mark: char) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(mark) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Parses `[1:2][0:3]=`, if present.
    fn bounds(&mut self) -> Result<Option<Vec<Dimension>>, InputError> {
        const WRONG: InputError = InputError::Array("the bounds can't be read");
        if !self.rest.starts_with('[') {
            return Ok(None);
        }
        let mut bounds = Vec::new();
        while self.take('[') {
            let end = self.rest.find(']').ok_or(WRONG)?;
            let (lower, upper) = self.rest[..end].split_once(':').unwrap_or(("1", &self.rest[..end]));
            let (lower, upper) =
                (lower.parse::<i32>().map_err(|_| WRONG)?, upper.parse::<i32>().map_err(|_| WRONG)?);
            let length = usize::try_from(i64::from(upper) - i64::from(lower) + 1).map_err(|_| WRONG)?;
            bounds.push(Dimension { length, lower });
            self.rest = &self.rest[end + 1..];
        }
        if bounds.len() > MAX_DIMENSIONS || !self.take('=') {
            return Err(WRONG);
        }
        self.skip_blanks();
        Ok(Some(bounds))
    }

    /// Parses one array in braces, at this depth.
    fn value(&mut self, depth: usize) -> Result<(), InputError> {
        if !self.take('{') {
            return Err(InputError::Array("an array begins with a brace or its dimensions"));
        }
        if depth >= MAX_DIMENSIONS {
            return Err(InputError::Array("more than six dimensions"));
        }
        if self.lengths.len() == depth {
            // Elements and arrays must not be mixed at one level.
            if !self.items.is_empty() {
                return Err(InputError::Array("sub-arrays must have matching dimensions"));
            }
            self.lengths.push(None);
        }
        let mut length = 0;
        if !self.take('}') {
            loop {
                self.skip_blanks();
                if self.rest.starts_with('{') {
                    self.value(depth + 1)?;
                } else {
                    if self.lengths.len() != depth + 1 {
                        return Err(InputError::Array("sub-arrays must have matching dimensions"));
                    }
                    let item = self.item()?;
                    self.items.push(item);
                }
                length += 1;
                if self.take('}') {
                    break;
                }
                if !self.take(',') {
                    return Err(InputError::Array("an element ends with a comma or a brace"));
                }
            }
        }
        match self.lengths[depth] {
            Some(other) if other != length => {
                Err(InputError::Array("sub-arrays must have matching dimensions"))
            }
            _ => {
                self.lengths[depth] = Some(length);
                Ok(())
            }
        }
    }

    fn item(&mut self) -> Result<Option<SqlValue<'static>>, InputError> {
        let (mut text, mut quoted, mut kept) = (String::new(), false, 0);
        let mut chars = self.rest.char_indices();
        let end = loop {
            let Some((at, char)) = chars.next() else { return Err(InputError::Array("it doesn't end")) };
            match char {
                ',' | '}' => break at,
                '{' => return Err(InputError::Array("a brace in the middle of an element")),
                '\\' => {
                    let (_, escaped) = chars.next().ok_or(InputError::Array("it doesn't end"))?;
                    text.push(escaped);
                    (kept, quoted) = (text.len(), true);
                }
                '"' => {
                    if quoted || !text.trim().is_empty() {
                        return Err(InputError::Array("a quote in the middle of an element"));
                    }
                    text.clear();
                    loop {
                        match chars.next() {
                            None => return Err(InputError::Array("it doesn't end")),
                            Some((_, '"')) => break,
                            Some((_, '\\')) => {
                                text.push(chars.next().ok_or(InputError::Array("it doesn't end"))?.1);
                            }
                            Some((_, char)) => text.push(char),
                        }
                    }
                    (kept, quoted) = (text.len(), true);
                }
                blank if matches!(blank, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c') => text.push(blank),
                _ if quoted && text.len() > kept => return Err(InputError::Array("junk after a quote")),
                char => {
                    text.push(char);
                    kept = text.len();
                }
            }
        };
        self.rest = &self.rest[end..];
        text.truncate(kept);
        if !quoted && text.is_empty() {
            return Err(InputError::Array("an element is missing"));
        }
        if !quoted && text.eq_ignore_ascii_case("null") {
            return Ok(None);
        }
        let value = SqlValue::parse_scalar(&text, self.element, self.modern)?;
        Ok(Some(value.into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::ValueType;

    fn ints(text: &str) -> Result<Array, InputError> {
        Array::parse(text, Scalar::Int4, false)
    }

    fn written(array: Array, element: Scalar) -> String {
        SqlValue::array(array).into_text(ValueType::Array(element)).into_owned()
    }

    #[test]
    fn text_survives_a_round_trip() {
        for text in ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:1]={1,2}", "[1:2][0:0]={{1},{2}}"] {
            assert_eq!(written(ints(text).unwrap(), Scalar::Int4), text);
        }
        for text in ["{a,\"b c\",\"\",\"null\",\"q\\\"\\\\\"}", "{NULL,\",\",\"{}\"}"] {
            let array = Array::parse(text, Scalar::Text, false).unwrap();
            assert_eq!(written(array, Scalar::Text), text);
        }
        assert_eq!(written(ints(" { 1 , 2 } ").unwrap(), Scalar::Int4), "{1,2}");
    }

    #[test]
    fn what_is_no_array_is_an_error() {
        for text in [
            "",
            "1",
            "{",
            "{1",
            "{1,}",
            "{,1}",
            "{1}}",
            "{{1},{2,3}}",
            "{1,{2}}",
            "{{1},2}",
            "[1:3]={1,2}",
            "{\"1",
        ] {
            assert!(ints(text).is_err(), "{text}");
        }
    }
}
