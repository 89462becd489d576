//! Every code block of the README is part of `examples/shapes_readme.rs`.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    let blocks =
        readme_blocks_run(include_str!("../README.md"), include_str!("../examples/shapes_readme.rs"), &[]);
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
