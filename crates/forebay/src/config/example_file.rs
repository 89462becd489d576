//! Example of a config file, for `--example-config`: every key with its description and its
//! default.

use std::fmt::Write as _;

use super::command_settings::CommandDeclaration;
use super::effective_settings::to_toml;
use super::setting::{Setting, SettingDefault};

/// Widest line of a comment, in columns.
const MAX_COLUMNS: usize = 100;

/// Returns the example file of a command.
pub(super) fn example_file(command: CommandDeclaration) -> String {
    let CommandDeclaration { name, sections } = command;
    let mut file = comment(&format!(
        "Settings of `forebay {name}`: every key with its default. A key without a default is shown with an \
         example, after `#`."
    ));
    file += "#\n";
    file += &comment(&format!(
        "Each key is also an environment variable: `listen` in [{name}] is FOREBAY_{}_LISTEN. Commas separate \
         the items of a list. Variables override this file, and flags override variables. An unknown key is an \
         error.",
        name.to_uppercase()
    ));
    for section in sections {
        let _ = write!(file, "\n[{}]\n{}", section.name, comment(&section.description()));
        for setting in section.settings {
            file += "\n";
            file += &setting_lines(setting, name);
        }
    }
    file
}

/// Returns the description and the line of a setting.
fn setting_lines(setting: &Setting, command: &str) -> String {
    let (key, example) = (setting.key(), setting.example_toml().unwrap_or_default());
    let description = setting.description();
    match (setting.default, setting.default_of(command)) {
        (SettingDefault::Required(_), _) => {
            format!("{}{key} = {example}\n", comment(&format!("{description} Required.")))
        }
        (SettingDefault::Unset(what), _) => {
            format!("{}# {key} = {example}\n", comment(&format!("{description} Default: {what}.")))
        }
        (SettingDefault::Value(_), default) => {
            let default = default.as_ref().map(to_toml).unwrap_or_default();
            format!("{}{key} = {default}\n", comment(&description))
        }
    }
}

/// Returns the text as lines that start with `#`.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= MAX_COLUMNS => {
                let _ = write!(line, " {word}");
            }
            Some(_) | None => lines.push(format!("# {word}")),
        }
    }
    lines.join("\n") + "\n"
}
