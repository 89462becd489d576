//! The README shows only code that `examples/gate_readme.rs` runs.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    let replacements = [("\"127.0.0.1:8000\"", "upstream")];
    let blocks = readme_blocks_run(
        include_str!("../README.md"),
        include_str!("../examples/gate_readme.rs"),
        &replacements,
    );
    assert!(blocks > 0, "the README marks its code with ```rust");
}
