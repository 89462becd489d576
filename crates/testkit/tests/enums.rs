//! Checks that every public enum of a library can grow, or is closed for a reason.

use std::fs;
use std::path::{Path, PathBuf};

/// Enums to which no variant can be added without a breaking release, and why.
const CLOSED: &[(&str, &str)] = &[
    ("Retry", "a caller decides by it whether to send a request again"),
    ("RequestOutcome", "a request gets its replies, fails, or is dropped"),
    ("ExpectedReplies", "not reachable from outside the crate"),
    ("HeartbeatKind", "a custom store must implement each"),
    ("Membership", "a custom store must be able to return each, and a member handles it"),
    ("Allocation", "a custom store must implement each"),
    ("SettlementReply", "a custom store must be able to return each, and a member handles it"),
    ("ChannelBinding", "libpq's three values, and authentication must follow each"),
    ("TupleValue", "a consumer that ignores one loses data"),
    ("OldTuple", "a consumer that ignores one loses data"),
    ("EndOutcome", "an endpoint must answer each"),
    ("ReplicaIdentity", "the four values of Postgres"),
    ("Frame", "the two frames of the replication protocol that a server sends unasked"),
    ("IndexCondition", "hidden: only for tests of the crate"),
    ("Collation", "each variant must be part of a shape's fingerprint"),
    ("SqlValue", "code that ignores the values of a type gives wrong results"),
    ("Scalar", "code that ignores a type gives wrong results"),
    ("ValueType", "a scalar type, or arrays of one"),
    ("Numeric", "a number, an infinity, or NaN"),
    ("Kind", "the kinds of values in JSON"),
    ("ArrayEnd", "front or back"),
    ("LetterCase", "lower or upper"),
    ("TypeKind", "`Other` is every other kind"),
    ("ContentCoding", "the codings that a response can have: identity and gzip"),
    ("DeletePolicy", "clients may delete shapes, or not"),
    ("LiveMode", "the three kinds of requests in the protocol"),
    ("SnapshotTiming", "in time, or too early"),
    ("ShapeChange", "insert, update, delete"),
    ("ShapeGone", "a reader starts over, or reports the failure"),
    ("SnapshotChunk", "open, complete, or none"),
    ("StartOffset", "a reader must start at each"),
    ("NullsOrder", "first or last"),
    ("PostgresRules", "nothing, everything, or what a check accepts"),
    ("RowOutcome", "true, not true, or an error"),
    ("RowVerdict", "a row matches, or not, or that isn't known"),
    ("Reload", "a program must apply each on SIGHUP"),
];
/// Crates without a library for others.
const SKIPPED: &[&str] = &["forebay", "races", "testkit"];

/// Returns each public enum of a source, and whether it is `#[non_exhaustive]`.
fn public_enums(source: &str) -> Vec<(&str, bool)> {
    let (mut found, mut may_grow) = (Vec::new(), false);
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            let end = rest.find(|letter: char| !letter.is_alphanumeric()).unwrap_or(rest.len());
            found.push((&rest[..end], may_grow));
        }
        let is_attribute = line.starts_with('#') || line.starts_with("//") || line.starts_with(')');
        may_grow = (may_grow && is_attribute) || line == "#[non_exhaustive]";
    }
    found
}

/// Calls `visit` with the text of every Rust file in a folder.
fn visit_sources(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            visit_sources(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path, &fs::read_to_string(&path).expect("a source"));
        }
    }
}

#[test]
fn every_public_enum_is_non_exhaustive_or_closed_for_a_reason() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = fs::read_dir(crates).expect("the folder of the crates");
    let folders: Vec<PathBuf> = folders.map(|entry| entry.expect("an entry of the folder").path()).collect();
    let (mut growing, mut closed, mut undecided) = (0, Vec::new(), Vec::new());
    for folder in folders.iter().filter(|folder| !SKIPPED.iter().any(|name| folder.ends_with(name))) {
        visit_sources(&folder.join("src"), &mut |path, source| {
            for (name, may_grow) in public_enums(source) {
                let is_closed = CLOSED.iter().any(|(closed, _)| *closed == name);
                match (may_grow, is_closed) {
                    (true, false) => growing += 1,
                    (false, true) => closed.push(name.to_owned()),
                    (true, true) | (false, false) => undecided.push(format!("{}: {name}", path.display())),
                }
            }
        });
    }
    assert!(
        undecided.is_empty(),
        "add #[non_exhaustive], or a row with the reason to CLOSED, but not both:\n{}",
        undecided.join("\n")
    );
    assert!(growing > 60, "only {growing} enums were found");
    for (name, _) in CLOSED {
        assert!(closed.iter().any(|closed| closed == name), "there is no enum {name}");
    }
}

#[test]
fn attributes_before_an_enum_are_found_in_any_order() {
    let source = "#[non_exhaustive]\n#[derive(Debug)]\npub enum A {\n}\n/// B.\n#[derive(\n)]\npub enum B<'a> {\n}\n\
                  #[derive(Debug)]\n#[non_exhaustive]\npub enum C {}\n";
    assert_eq!(public_enums(source), [("A", true), ("B", false), ("C", true)]);
}
