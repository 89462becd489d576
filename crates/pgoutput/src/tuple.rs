//! Rows, borrowed from the message that contains them.
//!
//! Invariant: a [`Tuple`] holds exactly `len` complete values, so iterating over it cannot fail.
//! Enforced by: `Tuple::read`, the only constructor, reads every value with the function that
//! [`TupleValues`] uses later.
//! Out of scope: the meaning of a value. A text value is what the output function of its type
//! returns, in `client_encoding`.

use std::fmt;
use std::iter::FusedIterator;

use crate::error::{DecodeError, DecodeFault};
use crate::message_reader::MessageReader;

/// Values of a row (the manual's TupleData): one per column of the relation, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Tuple<'a> {
    len: u16,
    values: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns whether the row has no values. A table may have no columns.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns an iterator over the values, in the order of the relation's columns.
    pub fn iter(&self) -> TupleValues<'a> {
        TupleValues { left: self.len, reader: MessageReader::new(self.values) }
    }

    /// Returns the value of one column. Cost is linear in `column`; iterate to read several.
    pub fn get(&self, column: usize) -> Option<TupleValue<'a>> {
        self.iter().nth(column)
    }

    #[inline]
    pub(crate) fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let len = reader.u16("number of values")?;
        let before = *reader;
        let mut local = before; // unlike `*reader`, a local variable stays in registers
        for _ in 0..len {
            TupleValue::read(&mut local)?;
        }
        *reader = local;
        Ok(Tuple { len, values: local.since(&before) })
    }
}

impl<'a> IntoIterator for Tuple<'a> {
    type Item = TupleValue<'a>;
    type IntoIter = TupleValues<'a>;

    fn into_iter(self) -> TupleValues<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Tuple<'a> {
    type Item = TupleValue<'a>;
    type IntoIter = TupleValues<'a>;

    fn into_iter(self) -> TupleValues<'a> {
        self.iter()
    }
}

/// Prints the kind and length of each value, never its content.
impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

/// Iterator over the values of a [`Tuple`].
#[derive(Debug, Clone)]
pub struct TupleValues<'a> {
    left: u16,
    reader: MessageReader<'a>,
}

impl<'a> Iterator for TupleValues<'a> {
    type Item = TupleValue<'a>;

    #[inline]
    fn next(&mut self) -> Option<TupleValue<'a>> {
        self.left = self.left.checked_sub(1)?;
        TupleValue::read(&mut self.reader).ok() // validated by `Tuple::read`
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for TupleValues<'_> {}
impl FusedIterator for TupleValues<'_> {}

/// Value of one column of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TupleValue<'a> {
    /// `n`: NULL; in an [`OldTuple::Key`] also any column outside the key.
    Null,
    /// `u`: an unchanged TOAST value, which the server did not send. It is not NULL; the crate
    /// documentation says where to find the value.
    Unchanged,
    /// `t`: result of the type's output function. For almost all types, `SELECT column::text`
    /// returns the same.
    Text(&'a [u8]),
    /// `b`: result of the type's send function; only if the stream was started with `binary`.
    Binary(&'a [u8]),
}

impl<'a> TupleValue<'a> {
    /// Returns the bytes of a text or binary value.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            TupleValue::Text(bytes) | TupleValue::Binary(bytes) => Some(bytes),
            TupleValue::Null | TupleValue::Unchanged => None,
        }
    }

    #[inline]
    fn read(reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        let before = *reader;
        match reader.u8("kind of a value")? {
            b't' => reader.length_prefixed("length of a value", "value").map(TupleValue::Text),
            b'n' => Ok(TupleValue::Null),
            b'u' => Ok(TupleValue::Unchanged),
            b'b' => reader.length_prefixed("length of a value", "value").map(TupleValue::Binary),
            _ => {
                Err(before
                    .fault("kind of a value", DecodeFault::Unexpected { expected: "'n', 'u', 't', 'b'" }))
            }
        }
    }
}

/// Prints the kind and length of the value, never its content: row data must not reach logs.
impl fmt::Debug for TupleValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TupleValue::Null => f.write_str("Null"),
            TupleValue::Unchanged => f.write_str("Unchanged"),
            TupleValue::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            TupleValue::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// Row before an update or a delete. The table's [`ReplicaIdentity`](crate::ReplicaIdentity)
/// decides how much of it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: key columns have their old values; all other columns are [`TupleValue::Null`].
    Key(Tuple<'a>),
    /// `O`: all columns have their old values, including those stored out of line.
    Full(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// Returns the values of either variant.
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Full(tuple) => *tuple,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR_VALUES: &[u8] = b"\0\x04t\0\0\0\x03annnub\0\0\0\x02\x00\xFF";

    fn read(bytes: &[u8]) -> Result<Tuple<'_>, DecodeError> {
        Tuple::read(&mut MessageReader::new(bytes))
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let tuple = read(FOUR_VALUES).unwrap();
        let expected = [
            TupleValue::Text(b"ann"),
            TupleValue::Null,
            TupleValue::Unchanged,
            TupleValue::Binary(b"\x00\xFF"),
        ];
        assert!(tuple.iter().eq(expected));
        assert!(tuple.into_iter().eq(expected));
        assert_eq!((tuple.len(), tuple.iter().len(), tuple.is_empty()), (4, 4, false));
    }

    #[test]
    fn a_value_is_found_by_its_column() {
        let tuple = read(FOUR_VALUES).unwrap();
        assert_eq!(tuple.get(0), Some(TupleValue::Text(b"ann")));
        assert_eq!(tuple.get(3).and_then(TupleValue::bytes), Some(&b"\x00\xFF"[..]));
        assert_eq!(tuple.get(2).and_then(TupleValue::bytes), None);
        assert_eq!(tuple.get(4), None);
    }

    #[test]
    fn an_empty_text_is_not_null() {
        let tuple = read(b"\0\x01t\0\0\0\0").unwrap();
        assert_eq!(tuple.get(0), Some(TupleValue::Text(b"")));
    }

    #[test]
    fn a_table_may_have_no_columns() {
        let tuple = read(b"\0\0").unwrap();
        assert!(tuple.is_empty() && tuple.iter().next().is_none());
    }

    #[test]
    fn a_tuple_ends_where_its_last_value_does() {
        let bytes = [FOUR_VALUES, b"N"].concat();
        let mut reader = MessageReader::new(&bytes);
        Tuple::read(&mut reader).unwrap();
        assert_eq!(reader.rest(), b"N");
    }

    #[test]
    fn a_tuple_that_ends_early_is_refused_wherever_it_ends() {
        for length in 0..FOUR_VALUES.len() {
            let error = read(&FOUR_VALUES[..length]).unwrap_err();
            assert!(matches!(error.fault, DecodeFault::Ended { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn a_value_count_beyond_the_message_is_refused() {
        let error = read(b"\xFF\xFFnun").unwrap_err();
        assert_eq!((error.at, error.fault), (5, DecodeFault::Ended { needed: 1, left: 0 }));
    }

    #[test]
    fn an_unknown_kind_and_a_negative_length_are_refused() {
        let error = read(b"\0\x02nx").unwrap_err();
        assert_eq!((error.at, error.field), (3, "kind of a value"));
        assert!(matches!(error.fault, DecodeFault::Unexpected { .. }), "{error}");
        let error = read(b"\0\x01t\x80\0\0\0").unwrap_err();
        assert_eq!((error.at, error.fault), (3, DecodeFault::Negative));
    }

    #[test]
    fn debug_output_of_a_tuple_contains_no_value() {
        let tuple = read(FOUR_VALUES).unwrap();
        assert_eq!(format!("{tuple:?}"), "[Text(3 bytes), Null, Unchanged, Binary(2 bytes)]");
        let printed = format!("{:?}", tuple.iter());
        assert!(printed.contains("bytes left") && !printed.contains("97"), "{printed}");
    }
}
