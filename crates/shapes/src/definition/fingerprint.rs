//! Fingerprints of tables and definitions: SipHash-1-3 of their fields.
//!
//! Invariant: a fingerprint is the same in every release, and on every platform. The WAL and the
//! catalog refer to tables by it, and processes of two releases read one WAL.
//! Enforced by: the hash and its input are defined here. Those of `std::hash` may change with a
//! release of Rust. The first release used them, so the values are those of `DefaultHasher`.
//! Test: `the_fingerprint_of_a_table_is_the_same_in_every_release`
//!
//! The input is the fields in a fixed order. Numbers are little-endian. A text is its bytes and
//! 0xff, which UTF-8 doesn't contain. A list is its length in 8 bytes and its elements. A variant
//! is its number in 8 bytes and its fields.

use super::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema};
use crate::filter::{Collation, Column, ColumnType, Schema, TypeKind};

impl TableSchema {
    /// Returns a hash that identifies this version of the table.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut input = FingerprintInput::default();
        input.table(self);
        siphash_1_3(&input.0)
    }
}

impl ShapeDefinition {
    /// Returns the first part of the shape's handle.
    pub(crate) fn fingerprint(&self) -> u64 {
        let ShapeDefinition { table, options } = self;
        let mut input = FingerprintInput::default();
        input.table(table);
        input.options(options);
        siphash_1_3(&input.0)
    }
}

/// Bytes that are hashed. The patterns name every field, so that a new one isn't forgotten.
#[derive(Default)]
struct FingerprintInput(Vec<u8>);

impl FingerprintInput {
    fn table(&mut self, table: &TableSchema) {
        let TableSchema {
            oid,
            schema,
            name,
            types,
            membership,
            stream_types,
            numbers,
            key,
            lineage,
            notes,
            key_is_deferrable,
            state: _, // no part of the table's identity
        } = table;
        self.bytes(oid.to_le_bytes());
        self.text(schema);
        self.text(name);
        self.schema(types);
        self.bytes(membership.to_le_bytes());
        self.list(stream_types, |input, (oid, modifier)| {
            input.bytes(oid.to_le_bytes());
            input.bytes(modifier.to_le_bytes());
        });
        self.list(numbers, |input, number| input.bytes(number.to_le_bytes()));
        self.list(key, |input, index| input.count(*index));
        self.text(lineage);
        self.list(notes, |input, note| input.text(note));
        // Only if true: the field is newer than the first stored fingerprints.
        if *key_is_deferrable {
            self.bytes([1]);
        }
    }

    fn schema(&mut self, schema: &Schema) {
        let Schema { table, columns, database_collation, server_version } = schema;
        self.option(table.as_ref(), |input, table| input.text(table));
        self.list(columns, Self::column);
        self.collation(database_collation);
        self.bytes(server_version.to_le_bytes());
    }

    fn column(&mut self, column: &Column) {
        let Column { name, column_type } = column;
        self.text(name);
        // Details are no part of a type's identity.
        let ColumnType { oid, name, typmod, dimensions, kind, collation, details: _ } = column_type;
        self.bytes(oid.to_le_bytes());
        self.text(name);
        self.bytes(typmod.to_le_bytes());
        self.bytes(dimensions.to_le_bytes());
        self.variant(match kind {
            TypeKind::Base => 0,
            TypeKind::Enum => 1,
            TypeKind::Composite => 2,
            TypeKind::Other => 3,
        });
        self.option(collation.as_ref(), Self::collation);
    }

    fn collation(&mut self, collation: &Collation) {
        let (variant, name) = match collation {
            Collation::C => (0, None),
            Collation::Builtin => (1, None),
            Collation::Libc(name) => (2, Some(name)),
            Collation::Icu(name) => (3, Some(name)),
            Collation::Nondeterministic => (4, None),
        };
        self.variant(variant);
        name.into_iter().for_each(|name| self.text(name));
    }

    fn options(&mut self, options: &ShapeOptions) {
        let ShapeOptions { clause, columns, replica, log } = options;
        self.option(clause.as_ref(), |input, clause| input.text(clause));
        self.option(columns.as_ref(), |input, columns| input.list(columns, |input, name| input.text(name)));
        self.variant(match replica {
            ReplicaMode::Default => 0,
            ReplicaMode::Full => 1,
        });
        self.variant(match log {
            LogMode::Full => 0,
            LogMode::ChangesOnly => 1,
        });
    }

    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.extend_from_slice(&bytes);
    }

    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0xff);
    }

    fn count(&mut self, count: usize) {
        self.bytes((count as u64).to_le_bytes());
    }

    fn variant(&mut self, number: u64) {
        self.bytes(number.to_le_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.count(items.len());
        items.iter().for_each(|each| item(self, each));
    }

    fn option<T>(&mut self, value: Option<&T>, some: impl FnOnce(&mut Self, &T)) {
        self.variant(u64::from(value.is_some()));
        if let Some(value) = value {
            some(self, value);
        }
    }
}

/// Returns the SipHash-1-3 of `bytes` with a key of zeros.
fn siphash_1_3(bytes: &[u8]) -> u64 {
    // "somepseudorandomlygeneratedbytes", the constants of SipHash.
    let mut state: [u64; 4] =
        [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8; // the length modulo 256
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        state[3] ^= word;
        sip_round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    (0..3).for_each(|_| sip_round(&mut state));
    state.into_iter().fold(0, |hash, part| hash ^ part)
}

fn sip_round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}
