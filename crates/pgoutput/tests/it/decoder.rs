//! Valid messages re-encode to the same bytes, and all other bytes are errors.

#[path = "../../fuzz/check.rs"]
pub(crate) mod check;
mod malformed;
mod messages;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use forebay_pgoutput::{PgOutputDecoder, PgOutputMessage, RelationCache, RelationColumn, TupleValue};
use proptest::prelude::*;

use check::{check, encode, streaming};
use malformed::MALFORMED;
use messages::{MessageBuilder, almost_fields, any_message, any_values, column_name};

#[test]
fn malformed_messages_are_refused_with_the_reason() {
    for (name, in_stream, bytes, expected) in MALFORMED {
        let mut decoder = if *in_stream { streaming() } else { PgOutputDecoder::new() };
        match decoder.decode(bytes) {
            Ok(message) => panic!("{name}: {message:?}"),
            Err(error) => assert_eq!(error.to_string(), *expected, "{name}"),
        }
    }
}

#[test]
fn every_fuzz_corpus_file_passes_and_every_message_type_is_covered() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/decoder");
    let (mut alone, mut within) = (BTreeSet::<u8>::new(), BTreeSet::<u8>::new());
    for file in fs::read_dir(&corpus).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(std::panic::catch_unwind(|| check(&bytes)).is_ok(), "{}", path.display());
        alone.extend(bytes.first().filter(|_| PgOutputDecoder::new().decode(&bytes).is_ok()));
        within.extend(bytes.first().filter(|_| streaming().decode(&bytes).is_ok()));
    }
    assert!(alone.iter().eq(b"ABCDIKMOPRSTUYbcpr"), "{alone:?}");
    assert!(within.iter().eq(b"DEIMORTUY"), "{within:?}");

    for (name, _, bytes, _) in MALFORMED {
        let file = fs::read(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(file, *bytes, "the corpus has another {name}");
    }
}

#[test]
fn a_relation_with_the_maximum_number_of_columns_is_decoded() {
    let mut wire = MessageBuilder::new(b'R', None).u32(1).text("s").text("t").u8(b'd').u16(u16::MAX);
    for _ in 0..u16::MAX {
        wire = wire.u8(0).text("").u32(23).u32(u32::MAX);
    }
    let bytes = wire.done();
    let Ok(PgOutputMessage::Relation(relation)) = PgOutputDecoder::new().decode(&bytes) else {
        panic!("it is a relation")
    };
    let mut relations = RelationCache::new();
    relations.apply(&relation);
    assert_eq!(relations.get(1).unwrap().columns.len(), usize::from(u16::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_message_encodes_back_to_the_same_bytes((bytes, in_stream) in any_message()) {
        let mut decoder = if in_stream { streaming() } else { PgOutputDecoder::new() };
        match decoder.decode(&bytes) {
            Ok(message) => prop_assert_eq!(encode(&message), bytes),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn any_row_decodes_to_its_values(values in any_values(), relation: u32) {
        let bytes = MessageBuilder::new(b'I', None).u32(relation).tuple(b'N', &values).done();
        let Ok(PgOutputMessage::Insert(insert)) = PgOutputDecoder::new().decode(&bytes) else { panic!("it is an insert") };
        prop_assert_eq!((insert.relation, insert.new.len()), (relation, values.len()));
        let expected = values.iter().map(|(kind, bytes)| match kind {
            b'n' => TupleValue::Null,
            b'u' => TupleValue::Unchanged,
            b't' => TupleValue::Text(bytes),
            _ => TupleValue::Binary(bytes),
        });
        prop_assert!(insert.new.iter().eq(expected));
        for (column, value) in insert.new.iter().enumerate() {
            prop_assert_eq!(insert.new.get(column), Some(value));
        }
    }

    #[test]
    fn any_columns_decode_to_their_fields(
        columns in prop::collection::vec((column_name(), any::<u32>(), any::<i32>(), any::<bool>()), 0..20),
    ) {
        let count = u16::try_from(columns.len()).unwrap();
        let mut wire = MessageBuilder::new(b'R', None).u32(7).text("s").text("t").u8(b'f').u16(count);
        for (name, type_oid, type_modifier, is_key) in &columns {
            wire = wire.u8((*is_key).into()).text(name).u32(*type_oid).u32(type_modifier.cast_unsigned());
        }
        let bytes = wire.done();
        let Ok(PgOutputMessage::Relation(relation)) = PgOutputDecoder::new().decode(&bytes) else { panic!("it is a relation") };
        let expected = columns.iter().map(|(name, type_oid, type_modifier, is_key)| RelationColumn {
            name,
            type_oid: *type_oid,
            type_modifier: *type_modifier,
            is_key: *is_key,
        });
        prop_assert!(relation.columns.iter().eq(expected));
    }

    #[test]
    fn a_message_without_its_end_is_an_error_wherever_it_ends((bytes, in_stream) in any_message()) {
        let decoder = if in_stream { streaming() } else { PgOutputDecoder::new() };
        for length in 0..bytes.len() {
            // A protocol 2 abort is a prefix of a protocol 4 abort.
            let decoded = decoder.clone().decode(&bytes[..length]).is_ok();
            prop_assert!(!decoded || bytes[0] == b'A' && length == 9, "{} of {:?}", length, bytes);
        }
    }

    #[test]
    fn changed_bytes_are_a_message_or_an_error_and_never_a_panic(
        (mut bytes, _) in any_message(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..5, any::<u8>()), 1..6),
    ) {
        for (index, change, byte) in changes {
            let offset = index.index(bytes.len());
            match change {
                0 => bytes[offset] = byte,
                1 => bytes[offset] ^= 1 << (byte & 7),
                2 => bytes.insert(offset, byte),
                3 if bytes.len() > 1 => drop(bytes.remove(offset)),
                _ => bytes.truncate(offset + 1),
            }
        }
        check(&bytes);
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error_and_never_a_panic(
        tag in prop::sample::select(b"IUDTRYMOEBCScAbPKrpwk".as_slice()),
        bytes in almost_fields(),
    ) {
        check(&[&[tag], bytes.as_slice()].concat());
    }
}
