//! Example of a config file, for `--example-config`: every key with its description and its
//! default.

use std::fmt::Write as _;

use crate::command_settings::CommandDeclaration;
use crate::effective_settings::to_toml;
use crate::setting::{Setting, SettingDefault};

/// Widest line of a comment, in columns.
const MAX_COLUMNS: usize = 100;

/// Returns an example of the config file of a command: every key with its description and its
/// default. Its values are those that apply without a file.
pub fn example_file(command: CommandDeclaration) -> String {
    let mut file = comment(&format!(
        "Settings of `{}`: every key with its default. A key without a default is shown with an \
         example, after `#`.",
        command.command_line()
    ));
    file += "#\n";
    file += &comment(&format!(
        "Each key is also an environment variable: {} Commas separate the items of a list. Variables override \
         this file, and flags override variables. An unknown key is an error.",
        example_variable(command).unwrap_or_default(),
    ));
    for section in command.sections {
        let _ = write!(file, "\n[{}]\n{}", section.name, comment(&section.description()));
        for setting in section.settings {
            file += "\n";
            file += &setting_lines(setting, command.name);
        }
    }
    file
}

/// Returns a sentence with a key and its variable: the first key of the command's own section, or
/// of the first section.
fn example_variable(command: CommandDeclaration) -> Option<String> {
    let own = command.sections.iter().find(|section| section.name == command.name);
    let section = own.or(command.sections.first())?;
    let setting = section.settings.first()?;
    Some(format!("`{}` in [{}] is {}.", setting.key(), section.name, command.variable(setting)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_layers::SettingLayers;
    use crate::test_program::{AuditSettings, GateSettings};

    #[test]
    fn the_values_of_the_example_are_the_defaults() {
        let command = CommandDeclaration::of::<GateSettings>();
        let example = example_file(command);
        let mut layers = SettingLayers::new(command);
        layers.text(&example, std::path::Path::new("gate.toml")).unwrap();
        for setting in command.settings() {
            let (explicit, default) = (layers.get(setting.path), setting.default_of(command.name));
            match setting.path {
                "gate.upstream" => assert_eq!(explicit.unwrap().0.as_str(), Some("http://127.0.0.1:1")),
                _ => assert_eq!(explicit.map(|(value, _)| value), default.as_ref(), "{}", setting.path),
            }
        }
        for part in [
            "# Settings of `shop gate`: every key with its default.",
            "`listen` in [gate] is SHOP_GATE_LISTEN.",
            "# Header with the user. Default: none, it is not passed.\n# forward_user_header = \"X-User\"\n",
            "# Time until the end.\ndrain_timeout_ms = 25000\n",
            "# Whether clients may enter: `open` or `closed`. SIGHUP applies a change.\ndoor = \"open\"\n",
        ] {
            assert!(example.contains(part), "{part:?} is not in\n{example}");
        }
        assert!(example.lines().all(|line| line.chars().count() <= MAX_COLUMNS));
    }

    #[test]
    fn the_default_is_that_of_the_command() {
        let command = CommandDeclaration::of::<AuditSettings>();
        let mut layers = SettingLayers::new(command);
        layers.text("[gate]\nupstream = \"http://h\"\n", std::path::Path::new("audit.toml")).unwrap();
        let defaults = AuditSettings::read(&layers).unwrap();
        assert_eq!((defaults.gate.listen.port(), defaults.admission.total), (9090, 10_000));
        let example = example_file(command);
        assert!(example.contains("listen = \"127.0.0.1:9090\"\n"), "{example}");
        assert!(example.contains("`total` in [admission] is SHOP_ADMISSION_TOTAL."), "{example}");
    }
}
