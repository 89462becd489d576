//! Documentation pages with generated sections. Tests compare them with the code; `UPDATE_DOCS=1`
//! rewrites them.

/// Panics unless the section of a page between `<!-- begin NAME -->` and `<!-- end NAME -->` is
/// this text.
#[track_caller]
pub(crate) fn assert_section(path: &str, name: &str, text: &str) {
    let page = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{path} has no {begin:?}"));
    let (there, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{path} has no {end:?}"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{begin}{text}{end}{after}")).unwrap();
        return;
    }
    let differs = there.lines().zip(text.lines()).find(|(there, made)| there != made);
    assert!(
        there == text,
        "{path} differs from the generated text, first {differs:?}: run this test with UPDATE_DOCS=1"
    );
}
