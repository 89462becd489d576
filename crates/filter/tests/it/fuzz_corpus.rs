//! The corpora of the fuzz targets.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/check.rs"]
mod check;

/// Calls `check` for each file of a corpus. Returns their number.
fn replay(target: &str, check: fn(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files =
        fs::read_dir(&folder).expect("the corpus exists").map(|file| file.expect("it is readable").path());
    files
        .map(|file| check(&fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))))
        .count()
}

#[test]
fn every_file_of_the_fuzz_corpora_passes() {
    assert!(replay("clause", check::clause) >= 30);
    assert!(replay("citext", check::citext) >= 12);
    assert!(replay("jsonb", check::jsonb) >= 20);
}
