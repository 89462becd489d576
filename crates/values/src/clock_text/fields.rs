//! Fields of a text: splits dates, times and intervals into words and numbers (ParseDateTime).

use super::words::DateWord;
use crate::input_error::InputError;

/// Maximum number of fields (MAXDATEFIELDS).
const MAX_FIELDS: usize = 25;

/// Form of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldForm {
    /// Digits, with at most one point.
    Number,
    /// Digits or letters with separators: `2000-01-02`, `Europe/Berlin`.
    Date,
    /// Digits with colons.
    Time,
    /// A sign and digits, with any of `:.-`.
    Signed,
    /// Letters.
    Word,
    /// A sign and letters.
    SignedWord,
}

/// A field of a text, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextField {
    pub(super) form: FieldForm,
    pub(super) text: String,
}

/// Splits a text into fields. Blanks end a field. Other punctuation ends a field, and is ignored.
pub(super) fn split(text: &str) -> Result<Vec<TextField>, InputError> {
    let mut scan = FieldScanner { bytes: text.as_bytes(), field: String::new() };
    let mut fields = Vec::new();
    while let Some(&byte) = scan.bytes.first() {
        if byte == b' ' || (b'\t'..=b'\r').contains(&byte) {
            scan.skip();
            continue;
        }
        if fields.len() >= MAX_FIELDS {
            return Err(InputError::Syntax);
        }
        let form = match byte {
            b'0'..=b'9' => scan.digits_first(),
            b'.' => {
                scan.take();
                scan.take_while(|byte| byte.is_ascii_digit());
                FieldForm::Number
            }
            b'+' | b'-' => scan.sign_first()?,
            byte if byte.is_ascii_alphabetic() => scan.letters_first(),
            byte if byte.is_ascii_punctuation() => {
                scan.skip();
                continue;
            }
            _ => return Err(InputError::Syntax),
        };
        fields.push(TextField { form, text: std::mem::take(&mut scan.field) });
    }
    Ok(fields)
}

struct FieldScanner<'t> {
    bytes: &'t [u8],
    field: String,
}

impl FieldScanner<'_> {
    fn peek(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    fn skip(&mut self) {
        self.bytes = &self.bytes[1..];
    }

    fn take(&mut self) {
        self.field.push(char::from(self.peek().to_ascii_lowercase()));
        self.skip();
    }

    fn take_while(&mut self, fits: impl Fn(u8) -> bool) {
        while !self.bytes.is_empty() && fits(self.peek()) {
            self.take();
        }
    }

    fn digits_first(&mut self) -> FieldForm {
        self.take_while(|byte| byte.is_ascii_digit());
        match self.peek() {
            b':' => {
                self.take_while(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
                FieldForm::Time
            }
            delimiter @ (b'-' | b'/' | b'.') => {
                self.take();
                if !self.peek().is_ascii_digit() {
                    self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == delimiter);
                    return FieldForm::Date;
                }
                self.take_while(|byte| byte.is_ascii_digit());
                if self.peek() != delimiter {
                    return if delimiter == b'.' { FieldForm::Number } else { FieldForm::Date };
                }
                self.take_while(|byte| byte.is_ascii_digit() || byte == delimiter);
                FieldForm::Date
            }
            _ => FieldForm::Number,
        }
    }

    fn letters_first(&mut self) -> FieldForm {
        self.take_while(|byte| byte.is_ascii_alphabetic());
        let extends = match self.peek() {
            b'-' | b'/' | b'.' => true,
            b'+' | b'0'..=b'9' => DateWord::keyword(&self.field).is_none(),
            _ => false,
        };
        if !extends {
            return FieldForm::Word;
        }
        self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+-/_.:".contains(&byte));
        FieldForm::Date
    }

    fn sign_first(&mut self) -> Result<FieldForm, InputError> {
        self.take();
        while !self.bytes.is_empty() && (self.peek() == b' ' || (b'\t'..=b'\r').contains(&self.peek())) {
            self.skip();
        }
        match self.peek() {
            b'0'..=b'9' => {
                self.take_while(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.' | b'-'));
                Ok(FieldForm::Signed)
            }
            byte if byte.is_ascii_alphabetic() => {
                self.take_while(|byte| byte.is_ascii_alphabetic());
                Ok(FieldForm::SignedWord)
            }
            _ => Err(InputError::Syntax),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_as_by_postgres() {
        use FieldForm::*;
        let split = |text: &str| {
            let fields = split(text).unwrap();
            fields.into_iter().map(|field| (field.form, field.text)).collect::<Vec<_>>()
        };
        let field = |form, text: &str| (form, text.to_owned());
        assert_eq!(
            split("Jan 2,2000 04:05 PM -08"),
            [
                field(Word, "jan"),
                field(Number, "2"),
                field(Number, "2000"),
                field(Time, "04:05"),
                field(Word, "pm"),
                field(Signed, "-08")
            ]
        );
        assert_eq!(split("2000-1-2t3:4"), [field(Date, "2000-1-2"), field(Word, "t"), field(Time, "3:4")]);
        assert_eq!(split("Etc/GMT+5"), [field(Date, "etc/gmt+5")]);
        assert_eq!(split("1.5 .5 1.2.3"), [field(Number, "1.5"), field(Number, ".5"), field(Date, "1.2.3")]);
        assert_eq!(split("- infinity"), [field(SignedWord, "-infinity")]);
    }
}
