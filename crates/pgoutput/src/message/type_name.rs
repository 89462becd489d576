//! Types by their name.

use crate::error::DecodeError;
use crate::reader::Reader;

/// `Y`: a type that Postgres doesn't come with, used by a column of the relation after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Type<'a> {
    /// The transaction, if it is streamed.
    pub xid: Option<u32>,
    /// By what columns name it.
    pub oid: u32,
    /// Its schema; "" means `pg_catalog`.
    pub namespace: &'a str,
    /// Its name; for a domain, that of the type beneath.
    pub name: &'a str,
}

impl<'a> Type<'a> {
    pub(super) fn read(xid: Option<u32>, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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
    use crate::message::{Message, alone, assert_needs_all, streamed};

    const MOOD: &[u8] = b"Y\0\0\x40\x11public\0mood\0";

    #[test]
    fn a_type_is_its_oid_and_its_names() {
        let mood = Type { xid: None, oid: 16401, namespace: "public", name: "mood" };
        assert_eq!(alone(MOOD), Ok(Message::Type(mood)));
        assert_needs_all(MOOD, alone);
    }

    #[test]
    fn a_type_in_a_stream_tells_its_transaction() {
        let bytes = [b"Y\0\0\x02\xF0", &MOOD[1..]].concat();
        let mood = Type { xid: Some(752), oid: 16401, namespace: "public", name: "mood" };
        assert_eq!(streamed(&bytes), Ok(Message::Type(mood)));
        assert_needs_all(&bytes, streamed);
    }
}
