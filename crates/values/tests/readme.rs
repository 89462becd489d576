//! The README shows the program `examples/values_readme.rs`, which `script/test` runs.

use forebay_testkit::{readme_blocks, readme_program_runs};

#[test]
fn the_readme_shows_the_whole_example() {
    let rest =
        readme_program_runs(include_str!("../README.md"), include_str!("../examples/values_readme.rs"));
    assert!(readme_blocks(rest, "rust").is_empty(), "only the first block is compared with the example");
}
