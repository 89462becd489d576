//! The README: the program accepts every command and setting that it shows.

use std::path::Path;

use forebay_testkit::readme_blocks;

use crate::forebay_process::forebay;

const README: &str = include_str!("../../README.md");
/// Address that can't be bound. A program that fails with it has accepted all other settings.
const UNBINDABLE: &str = "192.0.2.1:1";

#[test]
fn every_command_of_the_readme_is_accepted_with_the_settings_shown() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-readme", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let settings = readme_blocks(README, "toml");
    assert_eq!(settings.len(), 1, "the README has one config file");
    std::fs::write(folder.join("gate.toml"), settings[0]).unwrap();
    let shell = readme_blocks(README, "sh").concat();
    let commands: Vec<&str> = shell.lines().filter_map(|line| line.strip_prefix("forebay ")).collect();
    assert!(commands.len() > 2, "found {commands:?}");
    for command in commands {
        let mut program = forebay(&words(command));
        program.env("FOREBAY_GATE_LISTEN", UNBINDABLE).env("FOREBAY_ADMIN_LISTEN", "off");
        let output = program.current_dir(&folder).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && stderr.contains(UNBINDABLE),
            "forebay {command}\n{stderr}"
        );
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Splits a command like a shell: single quotes keep a word together.
fn words(command: &str) -> Vec<&str> {
    let parts = command.split('\'').enumerate();
    let words =
        parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    words.collect()
}
