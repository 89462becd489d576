//! Fingerprints of stored tables and definitions: constants, computed by the first release.

use std::sync::Arc;

use super::{LogMode, ReplicaMode, ShapeDefinition, ShapeOptions, TableSchema};
use crate::filter::{Collation, Column, ColumnType, Schema, TypeDetails, TypeKind, UserType};

/// A table in which every field has a value of its own.
fn orders() -> TableSchema {
    let columns = vec![
        Column::new("id", 23, "int4"),
        column("état", TypeKind::Enum, Some(Collation::C)),
        column("name", TypeKind::Base, Some(Collation::Libc("en_US.UTF-8".into()))),
        column("place", TypeKind::Composite, Some(Collation::Icu("und".into()))),
        column("span", TypeKind::Other, Some(Collation::Builtin)),
        column("note", TypeKind::Base, Some(Collation::Nondeterministic)),
    ];
    let types = Schema {
        table: Some("orders".into()),
        columns,
        database_collation: Collation::Libc("C.UTF-8".into()),
        server_version: 18,
    };
    TableSchema {
        oid: 16_384,
        schema: "public".into(),
        name: "orders".into(),
        types,
        membership: 16_400,
        stream_types: vec![(23, -1), (25, 7), (1043, 260)],
        numbers: vec![1, 2, -3],
        key: vec![0, 2],
        lineage: "16390,1".into(),
        notes: vec!["NO".into(), String::new(), "identity".into()],
        key_is_deferrable: false,
        state: None,
    }
}

fn column(name: &str, kind: TypeKind, collation: Option<Collation>) -> Column {
    let mood = UserType {
        oid: 25,
        schema: "public".into(),
        name: "mood".into(),
        is_array: false,
        labels: Some(vec!["sad".into()]),
        base_array: None,
    };
    // Tables of earlier releases have no details, and the same fingerprint.
    let details = TypeDetails((kind == TypeKind::Enum).then(|| Box::new(mood)));
    let column_type =
        ColumnType { oid: 25, name: "text".into(), typmod: 260, dimensions: 2, kind, collation, details };
    Column { name: name.into(), column_type }
}

/// A table with as little as possible.
fn empty() -> TableSchema {
    let types =
        Schema { table: None, columns: Vec::new(), database_collation: Collation::C, server_version: 15 };
    TableSchema {
        oid: 0,
        schema: String::new(),
        name: String::new(),
        types,
        membership: 0,
        stream_types: Vec::new(),
        numbers: Vec::new(),
        key: Vec::new(),
        lineage: String::new(),
        notes: Vec::new(),
        key_is_deferrable: false,
        state: None,
    }
}

#[test]
fn the_fingerprint_of_a_table_is_the_same_in_every_release() {
    let tables = [
        empty(),
        TableSchema { key_is_deferrable: true, ..empty() },
        orders(),
        TableSchema { key_is_deferrable: true, ..orders() },
        TableSchema { name: "o".repeat(300), ..orders() },
    ];
    let fingerprints = tables.map(|table| table.fingerprint());
    assert_eq!(
        fingerprints,
        [
            11_925_409_376_665_247_908,
            15_086_646_653_848_838_891,
            9_983_425_096_000_097_820,
            13_489_489_692_731_207_505,
            15_734_638_176_607_870_809,
        ]
    );
}

#[test]
fn the_fingerprint_of_a_definition_is_the_same_in_every_release() {
    let all = ShapeOptions { clause: None, columns: None, replica: ReplicaMode::Default, log: LogMode::Full };
    let some = ShapeOptions {
        clause: Some("id > 7".into()),
        columns: Some(vec!["id".into(), "état".into()]),
        replica: ReplicaMode::Full,
        log: LogMode::ChangesOnly,
    };
    let definitions = [
        ShapeDefinition { table: Arc::new(empty()), options: all.clone() },
        ShapeDefinition { table: Arc::new(orders()), options: all },
        ShapeDefinition { table: Arc::new(orders()), options: some.clone() },
        ShapeDefinition {
            table: Arc::new(TableSchema { key_is_deferrable: true, ..orders() }),
            options: ShapeOptions { columns: Some(Vec::new()), ..some },
        },
    ];
    let fingerprints = definitions.map(|definition| definition.fingerprint());
    assert_eq!(
        fingerprints,
        [
            1_639_243_800_882_238_373,
            13_397_962_083_657_802_522,
            2_415_624_128_674_691_727,
            154_726_978_061_091_895,
        ]
    );
}
