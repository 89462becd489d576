//! The README shows only code that `examples/quota_readme.rs` runs.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    // The example's server has another address than the README shows.
    let instead = [("\"redis://127.0.0.1:6379\"", "&server.url()")];
    let blocks = readme_blocks_run(
        include_str!("../README.md"),
        include_str!("../examples/quota_readme.rs"),
        &instead,
    );
    assert!(blocks > 0, "does the README mark its code with ```rust?");
}
