//! The README shows the program `examples/redis_readme.rs`, then parts of
//! `examples/redis_guide.rs`. `script/test` runs both.

use forebay_testkit::{readme_blocks_run, readme_program_runs};

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    let rest = readme_program_runs(include_str!("../README.md"), include_str!("../examples/redis_readme.rs"));
    // The guide takes the address from the environment.
    let instead = [("\"redis://127.0.0.1:6379\"", "url.as_str()")];
    let blocks = readme_blocks_run(rest, include_str!("../examples/redis_guide.rs"), &instead);
    assert!(blocks > 6, "found only {blocks} examples: does the README mark them with ```rust?");
}
