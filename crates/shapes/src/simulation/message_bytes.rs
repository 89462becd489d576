//! Replication messages as bytes, written field by field in the order of the Postgres manual.

use forebay_pgoutput::PgOutputDecoder;

use crate::definition::TableSchema;
use crate::follower::{FollowError, Follower};

/// Row; `None` is NULL.
pub(crate) type SimulatedRow = Vec<Option<String>>;

/// Value of a row in a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum WireValue<'a> {
    Null,
    Unchanged,
    Text(&'a str),
}

/// Bytes of a replication message.
#[derive(Debug, Clone)]
pub(crate) struct MessageBytes(Vec<u8>);

impl MessageBytes {
    pub(crate) fn begin(lsn: u64, xid: u32) -> Self {
        MessageBytes(vec![b'B']).u64(lsn).u64(0).u32(xid)
    }

    pub(crate) fn commit(lsn: u64, end: u64) -> Self {
        MessageBytes(vec![b'C', 0]).u64(lsn).u64(end).u64(0)
    }

    pub(crate) fn relation(table: &TableSchema) -> Self {
        let columns = table.types.columns.iter().zip(&table.stream_types);
        let columns: Vec<_> = columns.map(|(column, kind)| (column.name.as_str(), *kind)).collect();
        MessageBytes::described(table.oid, &table.schema, &table.name, &columns)
    }

    pub(crate) fn described(oid: u32, schema: &str, name: &str, columns: &[(&str, (u32, i32))]) -> Self {
        let wire =
            MessageBytes(vec![b'R']).u32(oid).text(schema).text(name).u8(b'f').u16(columns.len() as u16);
        columns.iter().fold(wire, |wire, (name, (oid, modifier))| {
            wire.u8(1).text(name).u32(*oid).u32(modifier.cast_unsigned())
        })
    }

    pub(crate) fn insert(oid: u32, new: &SimulatedRow) -> Self {
        MessageBytes(vec![b'I']).u32(oid).tuple(b'N', &wire_values(new))
    }

    pub(crate) fn update(oid: u32, old: &SimulatedRow, new: &SimulatedRow) -> Self {
        MessageBytes::update_of(oid, Some((b'O', &wire_values(old))), &wire_values(new))
    }

    /// Returns an update. The old row comes with its letter: `O` for the whole row, `K` for its
    /// key.
    pub(crate) fn update_of(oid: u32, old: Option<(u8, &[WireValue<'_>])>, new: &[WireValue<'_>]) -> Self {
        let wire = MessageBytes(vec![b'U']).u32(oid);
        old.into_iter().fold(wire, |wire, (kind, old)| wire.tuple(kind, old)).tuple(b'N', new)
    }

    pub(crate) fn delete(oid: u32, old: &SimulatedRow) -> Self {
        MessageBytes::delete_of(oid, b'O', &wire_values(old))
    }

    pub(crate) fn delete_of(oid: u32, kind: u8, old: &[WireValue<'_>]) -> Self {
        MessageBytes(vec![b'D']).u32(oid).tuple(kind, old)
    }

    pub(crate) fn truncate(oids: &[u32]) -> Self {
        oids.iter().fold(MessageBytes(vec![b'T']).u32(oids.len() as u32).u8(0), |wire, oid| wire.u32(*oid))
    }

    /// Returns a Stream Start message. Forebay doesn't request streamed transactions, so the
    /// follower must refuse it.
    pub(crate) fn stream_start() -> Self {
        MessageBytes(vec![b'S']).u32(1).u8(1)
    }

    /// Decodes the message and passes it to a follower.
    pub(crate) fn send(&self, follower: &mut Follower) -> Result<(), FollowError> {
        let mut decoder = PgOutputDecoder::new();
        follower.apply(&decoder.decode(&self.0).expect("the bytes are a message"))
    }

    fn u8(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    fn u16(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self.u8(0)
    }

    fn tuple(self, kind: u8, values: &[WireValue<'_>]) -> Self {
        let wire = self.u8(kind).u16(values.len() as u16);
        values.iter().fold(wire, |wire, value| match value {
            WireValue::Null => wire.u8(b'n'),
            WireValue::Unchanged => wire.u8(b'u'),
            WireValue::Text(text) => {
                let mut wire = wire.u8(b't').u32(text.len() as u32);
                wire.0.extend(text.as_bytes());
                wire
            }
        })
    }
}

fn wire_values(row: &SimulatedRow) -> Vec<WireValue<'_>> {
    row.iter().map(|value| value.as_deref().map_or(WireValue::Null, WireValue::Text)).collect()
}
