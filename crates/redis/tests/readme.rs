//! The READMEs show only code that `examples/readme.rs` runs.

#[test]
fn every_example_of_the_readmes_is_compiled_and_run() {
    let example = squeeze(include_str!("../examples/readme.rs"));
    let mut blocks = 0;
    for readme in [include_str!("../README.md"), include_str!("../../../README.md")] {
        for block in readme.split("```rust\n").skip(1) {
            let code = block.split("```").next().expect("split yields at least one piece");
            // The throwaway server has another address than the one that a reader has.
            for part in code.replace("\"redis://127.0.0.1:6379\"", "server.url()").split("\n\n") {
                assert!(example.contains(&squeeze(part)), "not in examples/readme.rs:\n{part}");
            }
            blocks += 1;
        }
    }
    assert!(blocks > 6, "found only {blocks} examples: do the READMEs mark them with ```rust?");
}

/// Where lines are broken doesn't count.
fn squeeze(code: &str) -> String {
    let code: String = code.chars().filter(|letter| !letter.is_whitespace()).collect();
    code.replace(",)", ")")
}
