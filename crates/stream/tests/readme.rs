//! Checks that `examples/stream_readme.rs` contains all code of the README.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_code_block_of_the_readme_is_in_the_example() {
    let blocks =
        readme_blocks_run(include_str!("../README.md"), include_str!("../examples/stream_readme.rs"), &[]);
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
