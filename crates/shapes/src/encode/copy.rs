//! Rows in the text format of `COPY … TO STDOUT`.
//!
//! Invariant: a row has one field for each column, unescaped, or reading it fails. No input panics.
//! Reading a row allocates only if the row is longer than all earlier ones.
//! Enforced by: a field is a slice of the line, or of one reused buffer if it has escapes.
//! Out of scope: the encoding. A field is UTF-8 if the server sends UTF-8.

use std::{fmt, mem};

use memchr::{memchr, memchr3_iter};

use super::RowValues;

/// Reader of rows, one line at a time.
pub struct CopyRows {
    /// Number of columns.
    columns: usize,
    /// Indexes of the line's fields that have escapes.
    escaped: Vec<usize>,
    /// Buffer for those fields without escapes. It only grows, so that it isn't zeroed for each
    /// row.
    plain: Vec<u8>,
    /// Reused memory for the fields. Empty between calls.
    fields: Vec<Option<&'static [u8]>>,
}

/// Why a line isn't a row. Contains no data of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The number of fields differs from the number of columns.
    #[error("a row of {found} fields where {expected} are expected")]
    Fields {
        /// Number of columns.
        expected: usize,
        /// Number of fields.
        found: usize,
    },
    /// The line contains a line break.
    #[error("a line that goes on after its end")]
    LineBreak,
    /// The line ends within an escape.
    #[error("a row that ends with a backslash")]
    Unfinished,
}

impl CopyRows {
    /// Returns a reader of rows with this many columns.
    pub fn new(columns: usize) -> Self {
        CopyRows { columns, escaped: Vec::new(), plain: Vec::new(), fields: Vec::with_capacity(columns) }
    }

    /// Reads a line, with or without its line break, and passes the row to `lend`.
    ///
    /// # Errors
    /// If the line isn't a row with that many columns.
    pub fn read<T>(&mut self, line: &[u8], lend: impl FnOnce(&RowValues<'_>) -> T) -> Result<T, CopyError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut fields = emptied(mem::take(&mut self.fields));
        self.split(line, &mut fields)?;
        if !self.escaped.is_empty() {
            self.plain.resize(self.plain.len().max(line.len()), 0);
            let mut room = self.plain.as_mut_slice();
            for index in &self.escaped {
                let field = fields[*index].unwrap_or_default();
                // The unescaped field is never longer.
                let (own, rest) = room.split_at_mut(field.len());
                let length = unescape(field, own)?;
                fields[*index] = Some(&own[..length]);
                room = rest;
            }
        }
        let lent = lend(&fields);
        self.fields = emptied(fields);
        Ok(lent)
    }

    /// Splits a line into fields, still escaped, and collects the indexes of those with escapes.
    fn split<'l>(&mut self, line: &'l [u8], fields: &mut Vec<Option<&'l [u8]>>) -> Result<(), CopyError> {
        self.escaped.clear();
        if line.is_empty() && self.columns == 0 {
            return Ok(());
        }
        let (mut start, mut is_escaped, mut found) = (0, false, 1);
        // Index of the byte after a backslash. It is never a delimiter.
        let mut taken = None;
        for at in memchr3_iter(b'\t', b'\\', b'\n', line) {
            match line[at] {
                _ if taken == Some(at) => {}
                b'\t' => {
                    self.end_field(&line[start..at], is_escaped, fields);
                    (start, is_escaped, found) = (at + 1, false, found + 1);
                }
                b'\\' => (is_escaped, taken) = (true, Some(at + 1)),
                _ => return Err(CopyError::LineBreak),
            }
        }
        self.end_field(&line[start..], is_escaped, fields);
        match found == self.columns {
            true => Ok(()),
            false => Err(CopyError::Fields { expected: self.columns, found }),
        }
    }

    fn end_field<'l>(&mut self, field: &'l [u8], is_escaped: bool, fields: &mut Vec<Option<&'l [u8]>>) {
        if fields.len() == self.columns {
            return; // A field beyond the last column is only counted.
        }
        let is_null = is_escaped && field == b"\\N";
        if is_escaped && !is_null {
            self.escaped.push(fields.len());
        }
        fields.push((!is_null).then_some(field));
    }
}

impl fmt::Debug for CopyRows {
    /// Never shows fields: they have row values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyRows").field("columns", &self.columns).finish_non_exhaustive()
    }
}

/// Returns the same memory for slices of another line. The standard library collects in place.
fn emptied<'a>(mut fields: Vec<Option<&[u8]>>) -> Vec<Option<&'a [u8]>> {
    fields.clear();
    fields.into_iter().map(|_| None).collect()
}

/// Writes a field without its escapes, by the rules of COPY FROM. Returns the length.
fn unescape(field: &[u8], out: &mut [u8]) -> Result<usize, CopyError> {
    let (mut rest, mut length) = (field, 0);
    while let Some(at) = memchr(b'\\', rest) {
        out[length..length + at].copy_from_slice(&rest[..at]);
        let (byte, used) = escape(&rest[at + 1..]).ok_or(CopyError::Unfinished)?;
        out[length + at] = byte;
        length += at + 1;
        rest = &rest[at + 1 + used..];
    }
    out[length..length + rest.len()].copy_from_slice(rest);
    Ok(length + rest.len())
}

/// Returns the byte that an escape denotes, and the number of bytes after the backslash.
fn escape(after: &[u8]) -> Option<(u8, usize)> {
    let first = *after.first()?;
    Some(match first {
        b'b' => (0x08, 1),
        b'f' => (0x0c, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (0x0b, 1),
        b'0'..=b'7' => number(after, 8, 3),
        b'x' if after.get(1).is_some_and(u8::is_ascii_hexdigit) => {
            let (byte, used) = number(&after[1..], 16, 2);
            (byte, used + 1)
        }
        other => (other, 1),
    })
}

/// Parses a byte from digits. Returns it and the number of digits.
fn number(digits: &[u8], radix: u32, most: usize) -> (u8, usize) {
    let values = digits.iter().take(most).map_while(|digit| char::from(*digit).to_digit(radix));
    // For `\777`, Postgres keeps the low bits.
    values.fold((0, 0), |(byte, used), value| ((byte as u32 * radix + value) as u8, used + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type OwnedRow = Vec<Option<Vec<u8>>>;

    fn read(columns: usize, line: &[u8]) -> Result<OwnedRow, CopyError> {
        owned(&mut CopyRows::new(columns), line)
    }

    fn owned(rows: &mut CopyRows, line: &[u8]) -> Result<OwnedRow, CopyError> {
        rows.read(line, |row| row.iter().map(|field| field.map(<[u8]>::to_vec)).collect())
    }

    fn fields(texts: &[Option<&str>]) -> Result<OwnedRow, CopyError> {
        Ok(texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect())
    }

    #[test]
    fn a_line_is_a_row_with_or_without_its_line_break() {
        for line in ["1\tannie\t\\N", "1\tannie\t\\N\n"] {
            assert_eq!(read(3, line.as_bytes()), fields(&[Some("1"), Some("annie"), None]));
        }
        assert_eq!(read(2, b"\t\n"), fields(&[Some(""), Some("")]));
        assert_eq!(read(1, b"\n"), fields(&[Some("")]));
        assert_eq!(read(0, b"\n"), fields(&[]));
    }

    #[test]
    fn escapes_are_those_that_postgres_documents() {
        for (escaped, plain) in [
            (r"\b\f\n\r\t\v\\", "\u{8}\u{c}\n\r\t\u{b}\\"),
            (r"a\\N", "a\\N"),
            (r"\\N", "\\N"),
            (r"\Nx", "Nx"),
            (r"x\N", "xN"),
            (r"\.", "."),
            (r"\101\12x\0", "A\nx\0"),
            (r"\1018", "A8"),
            (r"\x41\xag\xg\x4", "A\ngxg\u{4}"),
            ("\\\ta", "\ta"),
            ("é\\té", "é\té"),
        ] {
            assert_eq!(read(1, escaped.as_bytes()), fields(&[Some(plain)]), "{escaped}");
        }
        assert_eq!(read(1, br"\777\377"), Ok(vec![Some(vec![0xff, 0xff])]));
    }

    #[test]
    fn debug_output_has_no_row_values() {
        let mut rows = CopyRows::new(1);
        assert!(owned(&mut rows, b"secret\\n").is_ok());
        assert_eq!(format!("{rows:?}"), "CopyRows { columns: 1, .. }");
    }

    #[test]
    fn every_column_has_its_own_escapes() {
        let line = b"a\\tb\tplain\t\\N\t\\\\\\\\\tx\\n\n";
        let expected = fields(&[Some("a\tb"), Some("plain"), None, Some("\\\\"), Some("x\n")]);
        assert_eq!(read(5, line), expected);
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        let wrong = |expected, found| Err(CopyError::Fields { expected, found });
        assert_eq!(read(2, b"1\n"), wrong(2, 1));
        assert_eq!(read(2, b"1\t2\t3\t4\n"), wrong(2, 4));
        assert_eq!(read(0, b"1\n"), wrong(0, 1));
        assert_eq!(read(0, b"\t"), wrong(0, 2));
        assert_eq!(read(2, b"\n"), wrong(2, 1));
        assert_eq!(read(1, b"a\nb\n"), Err(CopyError::LineBreak));
        assert_eq!(read(1, b"a\n\n"), Err(CopyError::LineBreak));
        assert_eq!(read(1, b"a\\"), Err(CopyError::Unfinished));
        // The line break ends the line; the backslash doesn't escape it.
        assert_eq!(read(2, b"a\tb\\\n"), Err(CopyError::Unfinished));
    }

    #[test]
    fn an_error_does_not_affect_later_rows() {
        let mut rows = CopyRows::new(2);
        for bad in [&b"\\ta"[..], b"1\t2\t3", b"a\\tb\t\\"] {
            assert!(owned(&mut rows, bad).is_err());
            assert_eq!(owned(&mut rows, b"\\x41\tb"), fields(&[Some("A"), Some("b")]));
        }
    }

    #[test]
    fn rows_reuse_one_allocation() {
        let mut rows = CopyRows::new(3);
        let mut places = |line: &[u8]| {
            rows.read(line, |row| (row.as_ptr().addr(), row[0].unwrap().as_ptr().addr())).unwrap()
        };
        let (fields, plain) = places(b"a\\tlong\\tfield\tb\tc");
        for _ in 0..100 {
            assert_eq!(places(b"a\\t\tb\t\\N"), (fields, plain));
        }
    }

    /// Writes a byte in one of the ways that COPY allows. `next` is the byte after it.
    fn write(out: &mut Vec<u8>, byte: u8, way: u8, next: Option<u8>) {
        let letter = match byte {
            0x08 => Some(b'b'),
            0x0c => Some(b'f'),
            b'\n' => Some(b'n'),
            b'\r' => Some(b'r'),
            b'\t' => Some(b't'),
            0x0b => Some(b'v'),
            _ => None,
        };
        let must = matches!(byte, b'\n' | b'\r' | b'\t' | b'\\');
        match (way % 6, letter) {
            (0, _) => out.extend(format!("\\{byte:03o}").bytes()),
            (1, _) => out.extend(format!("\\x{byte:02x}").bytes()),
            (2, _) if byte < 8 && !next.is_some_and(|next| next.is_ascii_digit()) => {
                out.extend(format!("\\{byte:o}").bytes());
            }
            (3, Some(letter)) => out.extend([b'\\', letter]),
            // A backslash before other characters is ignored.
            (4, None) if !byte.is_ascii_alphanumeric() => out.extend([b'\\', byte]),
            (_, Some(letter)) if must => out.extend([b'\\', letter]),
            _ if must => out.extend([b'\\', byte]),
            _ => out.push(byte),
        }
    }

    fn line(row: &OwnedRow, ways: &[u8]) -> Vec<u8> {
        let (mut out, mut ways) = (Vec::new(), ways.iter().cycle());
        for (index, field) in row.iter().enumerate() {
            if index > 0 {
                out.push(b'\t');
            }
            let Some(field) = field else {
                out.extend(b"\\N");
                continue;
            };
            for (at, byte) in field.iter().enumerate() {
                write(&mut out, *byte, ways.next().copied().unwrap_or(5), field.get(at + 1).copied());
            }
        }
        out.push(b'\n');
        out
    }

    fn any_field() -> impl Strategy<Value = Option<Vec<u8>>> {
        let awkward = prop::sample::select(&b"\t\n\\\r\x08\x0b\x0cNbfnrtvx0189af.\0 "[..]);
        prop::option::weighted(
            0.8,
            prop_oneof![
                prop::collection::vec(awkward, 0..12),
                prop::collection::vec(any::<u8>(), 0..40),
                "[a-z0-9 ]{0,60}".prop_map(String::into_bytes),
            ],
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn rows_are_read_however_they_are_escaped(
            table in (1..8_usize).prop_flat_map(|width| prop::collection::vec(
                (prop::collection::vec(any_field(), width), prop::collection::vec(any::<u8>(), 1..20)),
                1..6,
            )),
        ) {
            let mut rows = CopyRows::new(table[0].0.len());
            for (row, ways) in table {
                prop_assert_eq!(owned(&mut rows, &line(&row, &ways)), Ok(row));
            }
        }

        #[test]
        fn any_bytes_are_a_row_or_an_error(
            columns in 0..5_usize,
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(prop::sample::select(&b"\t\\\nN0178xAbn"[..]), 0..40),
            ],
        ) {
            if let Ok(row) = read(columns, &bytes) {
                prop_assert_eq!(row.len(), columns);
            }
        }
    }
}
