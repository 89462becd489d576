//! Messages with one defect each, and the expected error. The fuzz corpus has a file of the same
//! name for each.

/// Name, whether it is within a stream segment, bytes, expected error.
pub(super) const MALFORMED: &[(&str, bool, &[u8], &str)] = &[
    ("empty", false, b"", "an empty message, byte 0, tag: bytes needed: 1, left: 0"),
    (
        "unknown-tag",
        false,
        b"Z\0\0\0\x01",
        "a message of the unknown kind 0x5a, byte 0, tag: the byte is not one of the protocol's, versions 1 to 4",
    ),
    ("tag-alone", false, b"I", "Insert, byte 1, relation: bytes needed: 4, left: 0"),
    ("tag-alone-in-stream", true, b"I", "Insert, byte 1, xid: bytes needed: 4, left: 0"),
    (
        "insert-of-old-tuple",
        false,
        b"I\0\0\x40\x07K\0\0",
        "Insert, byte 5, kind of a tuple: the byte is not one of 'N'",
    ),
    (
        "insert-without-its-values",
        false,
        b"I\0\0\x40\x07N\xFF\xFFnnn",
        "Insert, byte 11, kind of a value: bytes needed: 1, left: 0",
    ),
    (
        "insert-with-too-long-a-value",
        false,
        b"I\0\0\x40\x07N\0\x01t\x7F\xFF\xFF\xFFa",
        "Insert, byte 13, value: bytes needed: 2147483647, left: 1",
    ),
    (
        "insert-with-a-negative-length",
        false,
        b"I\0\0\x40\x07N\0\x01b\xFF\xFF\xFF\xFF",
        "Insert, byte 9, length of a value: it is negative",
    ),
    (
        "insert-with-an-unknown-value",
        false,
        b"I\0\0\x40\x07N\0\x01x",
        "Insert, byte 8, kind of a value: the byte is not one of 'n', 'u', 't', 'b'",
    ),
    ("insert-with-more", false, b"I\0\0\x40\x07N\0\x01nn", "Insert, byte 9, end: bytes too many: 1"),
    (
        "update-without-new-tuple",
        false,
        b"U\0\0\x40\x07K\0\x01n",
        "Update, byte 9, kind of a tuple: bytes needed: 1, left: 0",
    ),
    (
        "update-with-two-old-tuples",
        false,
        b"U\0\0\x40\x07K\0\x01nO\0\x01n",
        "Update, byte 9, kind of a tuple: the byte is not one of 'N'",
    ),
    (
        "delete-of-new-tuple",
        false,
        b"D\0\0\x40\x07N\0\x01n",
        "Delete, byte 5, kind of a tuple: the byte is not one of 'K', 'O'",
    ),
    (
        "relation-without-its-columns",
        false,
        b"R\0\0\x40\x07s\0t\0d\xFF\xFF\x01a\0",
        "Relation, byte 15, type of a column: bytes needed: 4, left: 0",
    ),
    (
        "relation-with-a-latin-1-name",
        false,
        b"R\0\0\x40\x07s\0caf\xE9\0d\0\0",
        "Relation, byte 7, name: it is not UTF-8",
    ),
    (
        "relation-with-a-latin-1-column",
        false,
        b"R\0\0\x40\x07s\0t\0d\0\x01\x01caf\xE9\0\0\0\0\x17\xFF\xFF\xFF\xFF",
        "Relation, byte 13, name of a column: it is not UTF-8",
    ),
    (
        "relation-with-an-endless-name",
        false,
        b"R\0\0\x40\x07s\0tttt",
        "Relation, byte 7, name: no zero byte ends it",
    ),
    (
        "relation-with-an-unknown-identity",
        false,
        b"R\0\0\x40\x07s\0t\0x\0\0",
        "Relation, byte 9, replica identity: the byte is not one of 'd', 'n', 'f', 'i'",
    ),
    (
        "relation-with-an-unknown-flag",
        false,
        b"R\0\0\x40\x07s\0t\0d\0\x01\x02a\0\0\0\0\x17\xFF\xFF\xFF\xFF",
        "Relation, byte 12, flags of a column: the byte is not one of the known flags",
    ),
    (
        "truncate-without-its-tables",
        false,
        b"T\x7F\xFF\xFF\xFF\0\0\0\x40\x07",
        "Truncate, byte 6, relations: bytes needed: 8589934588, left: 4",
    ),
    (
        "truncate-of-minus-one",
        false,
        b"T\xFF\xFF\xFF\xFF\0",
        "Truncate, byte 1, number of relations: it is negative",
    ),
    (
        "commit-with-flags",
        false,
        b"C\x01\0\0\0\0\x01\x7A\x2B\x08\0\0\0\0\x01\x7A\x2B\x38\0\x03\x03\x5E\x26\x6B\x8B\x88",
        "Commit, byte 1, flags: the byte is not one of the known flags",
    ),
    (
        "begin-in-stream",
        true,
        b"B\0\0\0\0\x01\x7A\x2B\x08\0\x03\x03\x5E\x26\x6B\x8B\x88\0\0\x03\x01",
        "Begin, byte 0, tag: it stands between StreamStart and StreamStop, where it may not",
    ),
    (
        "stream-start-in-stream",
        true,
        b"S\0\0\x03\x01\x01",
        "Stream Start, byte 0, tag: it stands between StreamStart and StreamStop, where it may not",
    ),
    ("stream-stop-alone", false, b"E", "Stream Stop, byte 0, tag: no StreamStart stands before it"),
    (
        "stream-abort-without-its-time",
        false,
        b"A\0\0\x03\x01\0\0\x03\x02\0\0\0\0\x01\x7A\x2B\x08",
        "Stream Abort, byte 17, abort time: bytes needed: 8, left: 0",
    ),
    (
        "message-with-too-long-a-content",
        false,
        b"M\x01\0\0\0\0\x01\x7A\x2B\x08audit\0\0\0\0\x04abc",
        "Message, byte 20, content: bytes needed: 4, left: 3",
    ),
];
