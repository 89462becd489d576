//! The Type message: the name of a type that is not built in.

use crate::error::DecodeError;
use crate::message_reader::MessageReader;

/// `Y`: a type that is not built in, used by a column of the next relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// Transaction id, if the message is within a stream segment.
    pub xid: Option<u32>,
    /// OID that columns refer to.
    pub oid: u32,
    /// Schema name; empty for `pg_catalog`.
    pub namespace: &'a str,
    /// Type name; for a domain, the name of its base type.
    pub name: &'a str,
}

impl<'a> Type<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut MessageReader<'a>) -> Result<Self, DecodeError> {
        Ok(Type {
            xid,
            oid: reader.u32("oid")?,
            namespace: reader.text("namespace")?,
            name: reader.text("name")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        PgOutputMessage, assert_rejects_other_lengths, decode_in_stream, decode_outside_stream,
    };

    const MOOD: &[u8] = b"Y\0\0\x40\x11public\0mood\0";

    #[test]
    fn a_type_has_an_oid_and_names() {
        let mood = Type { xid: None, oid: 16401, namespace: "public", name: "mood" };
        assert_eq!(decode_outside_stream(MOOD), Ok(PgOutputMessage::Type(mood)));
        assert_rejects_other_lengths(MOOD, decode_outside_stream);
    }

    #[test]
    fn a_type_in_a_stream_has_an_xid() {
        let bytes = [b"Y\0\0\x02\xF0", &MOOD[1..]].concat();
        let mood = Type { xid: Some(752), oid: 16401, namespace: "public", name: "mood" };
        assert_eq!(decode_in_stream(&bytes), Ok(PgOutputMessage::Type(mood)));
        assert_rejects_other_lengths(&bytes, decode_in_stream);
    }
}
