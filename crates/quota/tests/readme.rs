//! The README shows only code that `examples/readme.rs` runs.

#[test]
fn every_example_of_the_readme_is_compiled_and_run() {
    let example = squeeze(include_str!("../examples/readme.rs"));
    let blocks: Vec<_> = include_str!("../README.md").split("```rust\n").skip(1).collect();
    assert!(!blocks.is_empty(), "does the README mark its code with ```rust?");
    for block in blocks {
        let code = block.split("```").next().expect("split yields at least one piece");
        // The throwaway server has another address than the one that a reader has.
        for part in code.replace("\"redis://127.0.0.1:6379\"", "&server.url()").split("\n\n") {
            assert!(example.contains(&squeeze(part)), "not in examples/readme.rs:\n{part}");
        }
    }
}

/// Where lines are broken doesn't count.
fn squeeze(code: &str) -> String {
    code.chars().filter(|letter| !letter.is_whitespace()).collect()
}
