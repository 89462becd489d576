//! Checks that the code of a README is in an example that is compiled and run.

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
