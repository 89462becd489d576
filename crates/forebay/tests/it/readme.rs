//! The README shows only commands and settings that the program takes.

use std::path::Path;

use forebay_testkit::readme_blocks;

use crate::gate::forebay;

const README: &str = include_str!("../../README.md");
/// An address that no machine has: a program that comes so far as to complain about it has taken everything else.
const NOWHERE: &str = "192.0.2.1:1";

#[test]
fn every_command_of_the_readme_is_taken_with_the_settings_that_it_shows() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-readme", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let settings = readme_blocks(README, "toml");
    assert_eq!(settings.len(), 1, "the commands read one file");
    std::fs::write(folder.join("gate.toml"), settings[0]).unwrap();
    let shell = readme_blocks(README, "sh").concat();
    let commands: Vec<&str> = shell.lines().filter_map(|line| line.strip_prefix("forebay ")).collect();
    assert!(commands.len() > 2, "found {commands:?}");
    for command in commands {
        let mut program = forebay(&words(command));
        program.env("FOREBAY_GATE_LISTEN", NOWHERE).env("FOREBAY_ADMIN_LISTEN", "off");
        let output = program.current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(NOWHERE), "forebay {command}\n{said}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// As a shell parts them: single quotes keep a word together.
fn words(command: &str) -> Vec<&str> {
    let parts = command.split('\'').enumerate();
    let words =
        parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    words.collect()
}
