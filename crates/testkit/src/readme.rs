//! READMEs whose code can't rot: what they show is what an example runs, or what a program takes.

/// Panics unless every Rust block of `readme` stands in `example`, paragraph by paragraph; tells how many there are.
///
/// `instead` names what the example has in the place of something that only a reader has, such as the address of a server.
#[track_caller]
pub fn readme_blocks_run(readme: &str, example: &str, instead: &[(&str, &str)]) -> usize {
    let example = squeeze(example);
    let blocks = readme_blocks(readme, "rust");
    for block in &blocks {
        let code = instead.iter().fold((*block).to_owned(), |code, (shown, run)| code.replace(shown, run));
        for part in code.split("\n\n") {
            assert!(example.contains(&squeeze(part)), "not in the example:\n{part}");
        }
    }
    blocks.len()
}

/// The blocks of code in this language.
pub fn readme_blocks<'a>(readme: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    readme.split(&fence).skip(1).filter_map(|block| block.split("```").next()).collect()
}

/// Where lines are broken doesn't count.
fn squeeze(code: &str) -> String {
    let code: String = code.chars().filter(|letter| !letter.is_whitespace()).collect();
    code.replace(",)", ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str =
        "# A\n\n```rust\nlet a = open(\"there\");\n\nuse_it(a);\n```\n```sh\nls\n```\n\n```rust\nb()\n```\n";

    #[test]
    fn blocks_are_found_by_their_language() {
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
    fn code_that_nobody_runs_is_found() {
        readme_blocks_run(README, "let a = open(here); b()", &[("\"there\"", "here")]);
    }
}
