//! The READMEs show only code that `examples/redis_readme.rs` runs.

use forebay_testkit::readme_blocks_run;

#[test]
fn every_example_of_the_readmes_is_compiled_and_run() {
    // The throwaway server has another address than the one in the READMEs.
    let instead = [("\"redis://127.0.0.1:6379\"", "server.url()")];
    let readmes = [include_str!("../README.md"), include_str!("../../../README.md")];
    let example = include_str!("../examples/redis_readme.rs");
    let blocks: usize = readmes.iter().map(|readme| readme_blocks_run(readme, example, &instead)).sum();
    assert!(blocks > 6, "found only {blocks} examples: do the READMEs mark them with ```rust?");
}
