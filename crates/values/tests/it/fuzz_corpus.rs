//! The corpora of the fuzz targets, and random changes of values' texts.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../fuzz/check.rs"]
mod check;

/// A property, and the folder of its corpus.
type Target = (&'static str, fn(&[u8]));

const TARGETS: &[Target] = &[
    ("array", check::array),
    ("bytea", check::bytea),
    ("clock", check::clock),
    ("like", check::like),
    ("network", check::network),
    ("number", check::number),
    ("range", check::range),
];

/// Returns the files of a target's corpus.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).expect("the corpus exists");
    let mut paths: Vec<_> = files.map(|file| file.expect("it is readable").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("it is readable")).collect()
}

#[test]
fn every_file_of_the_fuzz_corpora_passes() {
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    assert_eq!(fs::read_dir(folders).expect("the corpora exist").count(), TARGETS.len());
    for (target, check) in TARGETS {
        let files = corpus(target);
        assert!(files.len() >= 9, "{target}");
        files.iter().for_each(|file| {
            check(file);
            check::any_type(file);
        });
    }
}

/// Returns a line of a target's corpus with a few characters replaced.
fn changed_line(target: &'static str) -> impl Strategy<Value = String> {
    let lines: Vec<String> = corpus(target)
        .iter()
        .flat_map(|file| String::from_utf8_lossy(file).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let changes =
        proptest::collection::vec((any::<usize>(), "[-+0-9a-fTZ{}\\[\\]\",.:/\\\\ é%_]{0,2}"), 0..3);
    (proptest::sample::select(lines), changes).prop_map(|(line, changes)| {
        let mut chars: Vec<char> = line.chars().collect();
        for (at, new) in changes {
            let at = at % (chars.len() + 1);
            let end = chars.len().min(at + new.chars().count().min(1));
            chars.splice(at..end, new.chars());
        }
        chars.into_iter().collect()
    })
}

/// Returns a target's number and an input for it: two changed lines of its corpus, or any text.
fn inputs() -> impl Strategy<Value = (usize, String)> {
    (0..TARGETS.len()).prop_flat_map(|target| {
        let name = TARGETS[target].0;
        let pair =
            (changed_line(name), changed_line(name)).prop_map(|(left, right)| format!("{left}\n{right}"));
        (Just(target), prop_oneof![7 => pair, 1 => any::<String>()])
    })
}

proptest! {
    #[test]
    fn no_text_causes_a_panic_and_written_texts_are_parsed_again((target, input) in inputs()) {
        TARGETS[target].1(input.as_bytes());
        check::any_type(input.as_bytes());
    }
}
