//! Checks that the code of a README is in an example that is compiled and run.

/// Panics unless the first Rust block of `readme` is the whole program in `example`: the file
/// without the docs and attributes at its top. Returns the rest of the README.
#[track_caller]
pub fn readme_program_runs<'a>(readme: &'a str, example: &str) -> &'a str {
    let (_, after) = readme.split_once("\n```rust\n").expect("the README has a Rust block");
    let (shown, rest) = after.split_once("```").expect("the block ends");
    let is_top = |line: &&str| line.is_empty() || line.starts_with("//!") || line.starts_with("#![");
    let program: Vec<_> = example.lines().skip_while(is_top).collect();
    assert_eq!(shown.trim_end(), program.join("\n"), "the first block isn't the whole example");
    rest
}

/// Panics unless every Rust block of `readme` is in `example`; returns the number of blocks.
///
/// Paragraphs are compared one by one. `instead` lists replacements, from the README's text to the
/// example's, such as a server's address.
#[track_caller]
pub fn readme_blocks_run(readme: &str, example: &str, instead: &[(&str, &str)]) -> usize {
    let example = without_whitespace(example);
    let blocks = readme_blocks(readme, "rust");
    for block in &blocks {
        let code = instead.iter().fold((*block).to_owned(), |code, (shown, run)| code.replace(shown, run));
        for part in code.split("\n\n") {
            assert!(example.contains(&without_whitespace(part)), "not in the example:\n{part}");
        }
    }
    blocks.len()
}

/// Returns the code blocks in this language.
pub fn readme_blocks<'a>(readme: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    readme.split(&fence).skip(1).filter_map(|block| block.split("```").next()).collect()
}

/// Removes white space and trailing commas, so that line breaks don't matter.
fn without_whitespace(code: &str) -> String {
    let code: String = code.chars().filter(|letter| !letter.is_whitespace()).collect();
    code.replace(",)", ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str =
        "# A\n\n```rust\nlet a = open(\"there\");\n\nuse_it(a);\n```\n```sh\nls\n```\n\n```rust\nb()\n```\n";

    #[test]
    fn the_first_block_is_the_whole_program_and_the_rest_is_returned() {
        let example = "//! Docs.\n\n#![allow(x)]\n\nlet a = open(\"there\");\n\nuse_it(a);\n";
        let rest = readme_program_runs(README, example);
        assert_eq!(readme_blocks(rest, "rust"), ["b()\n"]);
    }

    #[test]
    #[should_panic(expected = "the first block isn't the whole example")]
    fn a_program_with_another_line_is_reported() {
        readme_program_runs(README, "use a::open;\n\nlet a = open(\"there\");\n\nuse_it(a);\n");
    }

    #[test]
    fn blocks_are_selected_by_language() {
        assert_eq!(readme_blocks(README, "sh"), ["ls\n"]);
        assert_eq!(readme_blocks(README, "rust").len(), 2);
        assert!(readme_blocks(README, "toml").is_empty());
    }

    #[test]
    fn an_example_may_break_its_lines_and_do_more() {
        let example = "fn main() { let a = open(\n    here,\n);\n more();\n use_it(a); b() }";
        assert_eq!(readme_blocks_run(README, example, &[("\"there\"", "here")]), 2);
    }

    #[test]
    #[should_panic(expected = "not in the example:\nuse_it(a);")]
    fn code_that_is_not_in_the_example_is_reported() {
        readme_blocks_run(README, "let a = open(here); b()", &[("\"there\"", "here")]);
    }
}
