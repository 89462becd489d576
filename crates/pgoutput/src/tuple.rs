//! Rows, borrowed from the message that brought them.
//!
//! Invariant: a `Tuple` holds exactly as many whole values as it says, so walking it can't fail.
//! Kept by: `Tuple::read`, the only way to make one, walks it with the same function that `Values` uses later.
//! Not here: what a value means. Text is as the type's output function wrote it, in `client_encoding`.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, Fault};
use crate::reader::Reader;

/// The values of a row, one per column of its relation, in the same order.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuple<'a> {
    len: u16,
    values: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether there is none: a table may have no columns.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values, in the order of the relation's columns.
    pub fn iter(&self) -> Values<'a> {
        Values { left: self.len, reader: Reader::new(self.values) }
    }

    /// The value of one column. It walks past those before: for several columns, iterate.
    pub fn get(&self, column: usize) -> Option<Value<'a>> {
        self.iter().nth(column)
    }

    #[inline]
    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = reader.u16("number of values")?;
        let before = *reader;
        let mut walk = before; // a local one stays in registers
        for _ in 0..len {
            Value::read(&mut walk)?;
        }
        *reader = walk;
        Ok(Tuple { len, values: walk.since(&before) })
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Tuple<'a> {
    type Item = Value<'a>;
    type IntoIter = Values<'a>;

    fn into_iter(self) -> Values<'a> {
        self.iter()
    }
}

/// Tells of each value what [`Value`] does: never what it holds.
impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Walks over the values of a [`Tuple`].
#[derive(Debug, Clone)]
pub struct Values<'a> {
    left: u16,
    reader: Reader<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::read(&mut self.reader).ok() // it was read before
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for Values<'_> {}
impl FusedIterator for Values<'_> {}

/// What a message tells of one column of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// NULL; in an [`OldTuple::Key`] also any column outside of the key.
    Null,
    /// Stored out of line (TOAST) and left as it was by this update, so the server didn't read it. Not NULL: the value is
    /// what it was before; see the crate's documentation for where to find it.
    Unchanged,
    /// As the type's output function writes it: what `SELECT column::text` shows, for almost all types.
    Text(&'a [u8]),
    /// As the type's send function writes it; only if the stream was started with `binary`.
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The bytes of a text or binary value.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Text(bytes) | Value::Binary(bytes) => Some(bytes),
            Value::Null | Value::Unchanged => None,
        }
    }

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("kind of a value")? {
            b't' => reader.counted("length of a value", "value").map(Value::Text),
            b'n' => Ok(Value::Null),
            b'u' => Ok(Value::Unchanged),
            b'b' => reader.counted("length of a value", "value").map(Value::Binary),
            _ => Err(before.fault("kind of a value", Fault::Unexpected { expected: "'n', 'u', 't', 'b'" })),
        }
    }
}

/// Tells what kind of value it is and how long, never what it holds: rows don't belong into logs.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("Null"),
            Value::Unchanged => f.write_str("Unchanged"),
            Value::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            Value::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// A row as it was before an update or a delete; how much of it depends on the table's
/// [`ReplicaIdentity`](crate::ReplicaIdentity).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: the columns of the key hold their old values, all others are [`Value::Null`], whatever they were.
    Key(Tuple<'a>),
    /// `O`: all columns hold their old values, those stored out of line too.
    Full(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// The values, whichever they are.
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => *tuple,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: &[u8] = b"\0\x04t\0\0\0\x03annnub\0\0\0\x02\x00\xFF";

    fn read(bytes: &[u8]) -> Result<Tuple<'_>, DecodeError> {
        Tuple::read(&mut Reader::new(bytes))
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let tuple = read(FOUR).unwrap();
        let expected = [Value::Text(b"ann"), Value::Null, Value::Unchanged, Value::Binary(b"\x00\xFF")];
        assert!(tuple.iter().eq(expected));
        assert!(tuple.into_iter().eq(expected));
        assert_eq!((tuple.len(), tuple.iter().len(), tuple.is_empty()), (4, 4, false));
    }

    #[test]
    fn a_value_is_found_by_its_column() {
        let tuple = read(FOUR).unwrap();
        assert_eq!(tuple.get(0), Some(Value::Text(b"ann")));
        assert_eq!(tuple.get(3).and_then(Value::bytes), Some(&b"\x00\xFF"[..]));
        assert_eq!(tuple.get(2).and_then(Value::bytes), None);
        assert_eq!(tuple.get(4), None);
    }

    #[test]
    fn a_text_may_be_empty_and_is_not_null() {
        let tuple = read(b"\0\x01t\0\0\0\0").unwrap();
        assert_eq!(tuple.get(0), Some(Value::Text(b"")));
    }

    #[test]
    fn a_table_may_have_no_columns() {
        let tuple = read(b"\0\0").unwrap();
        assert!(tuple.is_empty() && tuple.iter().next().is_none());
    }

    #[test]
    fn a_tuple_ends_where_its_last_value_does() {
        let bytes = [FOUR, b"N"].concat();
        let mut reader = Reader::new(&bytes);
        Tuple::read(&mut reader).unwrap();
        assert_eq!(reader.rest(), b"N");
    }

    #[test]
    fn a_tuple_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..FOUR.len() {
            let error = read(&FOUR[..length]).unwrap_err();
            assert!(matches!(error.fault, Fault::Ended { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn columns_that_are_announced_but_not_there_are_refused() {
        let error = read(b"\xFF\xFFnun").unwrap_err();
        assert_eq!((error.at, error.fault), (5, Fault::Ended { needed: 1, left: 0 }));
    }

    #[test]
    fn an_unknown_kind_and_a_negative_length_are_refused() {
        let error = read(b"\0\x02nx").unwrap_err();
        assert_eq!((error.at, error.field), (3, "kind of a value"));
        assert!(matches!(error.fault, Fault::Unexpected { .. }), "{error}");
        let error = read(b"\0\x01t\x80\0\0\0").unwrap_err();
        assert_eq!((error.at, error.fault), (3, Fault::Negative));
    }

    #[test]
    fn what_is_printed_holds_no_row() {
        let tuple = read(FOUR).unwrap();
        assert_eq!(format!("{tuple:?}"), "[Text(3 bytes), Null, Unchanged, Binary(2 bytes)]");
        let printed = format!("{:?}", tuple.iter());
        assert!(printed.contains("bytes left") && !printed.contains("97"), "{printed}");
    }
}
