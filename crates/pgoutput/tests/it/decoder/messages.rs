//! Strategies for any message, encoded field by field in the order of the manual.

use proptest::prelude::*;

/// Kind and bytes of a value. NULL and unchanged values have no bytes.
pub(super) type AnyValue = (u8, Vec<u8>);

/// Builder of a message's bytes.
#[derive(Clone, Debug)]
pub(super) struct MessageBuilder(Vec<u8>);

impl MessageBuilder {
    /// Starts with the tag, and the xid if the message is within a stream segment.
    pub(super) fn new(tag: u8, xid: Option<u32>) -> Self {
        xid.into_iter().fold(MessageBuilder(vec![tag]), MessageBuilder::u32)
    }

    pub(super) fn u8(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    pub(super) fn u16(mut self, number: u16) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    pub(super) fn u64s<const N: usize>(mut self, numbers: [u64; N]) -> Self {
        numbers.iter().for_each(|number| self.0.extend(number.to_be_bytes()));
        self
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        self.0.extend(text.as_bytes());
        self.u8(0)
    }

    pub(super) fn counted(self, bytes: &[u8]) -> Self {
        let mut wire = self.u32(count(bytes).into());
        wire.0.extend(bytes);
        wire
    }

    pub(super) fn tuple(self, kind: u8, values: &[AnyValue]) -> Self {
        let wire = self.u8(kind).u16(count(values));
        values.iter().fold(wire, |wire, (kind, bytes)| match kind {
            b'n' | b'u' => wire.u8(*kind),
            _ => wire.u8(*kind).counted(bytes),
        })
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Any message, and whether it is within a stream segment.
pub(super) fn any_message() -> impl Strategy<Value = (Vec<u8>, bool)> {
    let content = prop::option::of(any::<u32>()).prop_flat_map(|xid| {
        let bytes = prop_oneof![any_change(xid), any_announcement(xid), any_logical(xid), any_origin()];
        bytes.prop_map(move |wire| (wire, xid.is_some()))
    });
    let frame = prop_oneof![any_end(), any_prepared(), any_abort()].prop_map(|wire| (wire, false));
    let stop = Just((MessageBuilder::new(b'E', None), true));
    prop_oneof![8 => content, 4 => frame, 1 => stop].prop_map(|(wire, in_stream)| (wire.done(), in_stream))
}

/// Any row.
pub(super) fn any_values() -> impl Strategy<Value = Vec<AnyValue>> + Clone {
    let value = prop_oneof![
        Just((b'n', vec![])),
        Just((b'u', vec![])),
        (prop::sample::select(vec![b't', b'b']), prop::collection::vec(any::<u8>(), 0..30)),
    ];
    prop::collection::vec(value, 0..12)
}

/// Bytes that often decode as small counts and known letters.
pub(super) fn almost_fields() -> impl Strategy<Value = Vec<u8>> {
    let letter = prop::sample::select(b"NKOntubdf".as_slice());
    prop::collection::vec(prop_oneof![4 => 0..4_u8, 2 => letter, 1 => any::<u8>()], 0..60)
}

/// Any quoted SQL identifier.
pub(super) fn column_name() -> impl Strategy<Value = String> + Clone {
    "[^\0]{0,16}"
}

fn any_change(xid: Option<u32>) -> impl Strategy<Value = MessageBuilder> {
    let old = (prop::sample::select(vec![b'K', b'O']), any_values());
    let insert = (any::<u32>(), any_values());
    let insert = insert
        .prop_map(move |(relation, new)| MessageBuilder::new(b'I', xid).u32(relation).tuple(b'N', &new));
    let update = (any::<u32>(), prop::option::of(old.clone()), any_values());
    let update = update.prop_map(move |(relation, old, new)| {
        let wire = MessageBuilder::new(b'U', xid).u32(relation);
        old.into_iter().fold(wire, |wire, (kind, old)| wire.tuple(kind, &old)).tuple(b'N', &new)
    });
    let delete = (any::<u32>(), old);
    let delete = delete.prop_map(move |(relation, (kind, old))| {
        MessageBuilder::new(b'D', xid).u32(relation).tuple(kind, &old)
    });
    let truncate = (prop::collection::vec(any::<u32>(), 0..6), 0..4_u8).prop_map(move |(oids, flags)| {
        let wire = MessageBuilder::new(b'T', xid).u32(count(&oids).into()).u8(flags);
        oids.into_iter().fold(wire, MessageBuilder::u32)
    });
    prop_oneof![insert, update, delete, truncate]
}

fn any_announcement(xid: Option<u32>) -> impl Strategy<Value = MessageBuilder> {
    let names = (any::<u32>(), column_name(), column_name());
    let column = (any::<bool>(), column_name(), any::<u32>(), any::<u32>());
    let identity = prop::sample::select(vec![b'd', b'n', b'f', b'i']);
    let relation = (names.clone(), identity, prop::collection::vec(column, 0..8));
    let relation = relation.prop_map(move |((oid, namespace, name), identity, columns)| {
        let wire = MessageBuilder::new(b'R', xid).u32(oid).text(&namespace).text(&name).u8(identity);
        let wire = wire.u16(count(&columns));
        columns.into_iter().fold(wire, |wire, (is_key, name, type_oid, modifier)| {
            wire.u8(is_key.into()).text(&name).u32(type_oid).u32(modifier)
        })
    });
    let named = names.prop_map(move |(oid, namespace, name)| {
        MessageBuilder::new(b'Y', xid).u32(oid).text(&namespace).text(&name)
    });
    prop_oneof![relation, named]
}

fn any_logical(xid: Option<u32>) -> impl Strategy<Value = MessageBuilder> {
    let content = prop::collection::vec(any::<u8>(), 0..40);
    (any::<bool>(), any::<u64>(), column_name(), content).prop_map(
        move |(transactional, lsn, prefix, content)| {
            MessageBuilder::new(b'M', xid)
                .u8(transactional.into())
                .u64s([lsn])
                .text(&prefix)
                .counted(&content)
        },
    )
}

fn any_origin() -> impl Strategy<Value = MessageBuilder> {
    (any::<u64>(), column_name())
        .prop_map(|(lsn, name)| MessageBuilder::new(b'O', None).u64s([lsn]).text(&name))
}

/// Messages that start or end transactions and segments.
fn any_end() -> impl Strategy<Value = MessageBuilder> {
    let numbers = (any::<[u64; 3]>(), any::<u32>(), any::<bool>());
    prop_oneof![
        numbers.prop_map(|([lsn, clock, _], xid, _)| MessageBuilder::new(b'B', None)
            .u64s([lsn, clock])
            .u32(xid)),
        numbers.prop_map(|(numbers, _, _)| MessageBuilder::new(b'C', None).u8(0).u64s(numbers)),
        numbers.prop_map(|(_, xid, first)| MessageBuilder::new(b'S', None).u32(xid).u8(first.into())),
        numbers.prop_map(|(numbers, xid, _)| MessageBuilder::new(b'c', None).u32(xid).u8(0).u64s(numbers)),
    ]
}

fn any_prepared() -> impl Strategy<Value = MessageBuilder> {
    let tag = prop::sample::select(vec![b'b', b'P', b'p', b'K', b'r']);
    (tag, any::<[u64; 4]>(), any::<u32>(), column_name()).prop_map(|(tag, [a, b, c, d], xid, gid)| {
        let wire = match tag {
            b'b' => MessageBuilder::new(tag, None).u64s([a, b, c]),
            b'r' => MessageBuilder::new(tag, None).u8(0).u64s([a, b, c, d]),
            _ => MessageBuilder::new(tag, None).u8(0).u64s([a, b, c]),
        };
        wire.u32(xid).text(&gid)
    })
}

fn any_abort() -> impl Strategy<Value = MessageBuilder> {
    (any::<[u32; 2]>(), prop::option::of(any::<[u64; 2]>())).prop_map(|([xid, subxid], at)| {
        let wire = MessageBuilder::new(b'A', None).u32(xid).u32(subxid);
        at.into_iter().fold(wire, MessageBuilder::u64s)
    })
}

fn count<T>(items: &[T]) -> u16 {
    items.len().try_into().expect("no strategy makes so many")
}
