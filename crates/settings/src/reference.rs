//! Reference of settings for the documentation, as Markdown.

use crate::command_settings::CommandDeclaration;
use crate::effective_settings::to_toml;
use crate::setting::{Section, Setting, SettingDefault};

/// Returns a Markdown table of the settings of a section: key, variable, flag, kind, default and
/// description. A default that differs between the commands is shown for each. Without commands,
/// the table is empty.
pub fn reference_table(section: &Section, commands: &[CommandDeclaration]) -> String {
    let mut table = String::from("| key, variable, flag | kind | default | meaning |\n|---|---|---|---|\n");
    let Some(first) = commands.first() else { return table };
    for setting in section.settings {
        let flag = setting.flag.map(|(flag, _)| format!("<br>`{flag}`")).unwrap_or_default();
        table += &format!(
            "| `{}`<br>`{}`{flag} | {} | {} | {} |\n",
            setting.key(),
            first.variable(setting),
            setting.kind,
            default_text(setting, commands).replace('|', "\\|"),
            setting.description().replace('|', "\\|"),
        );
    }
    table
}

/// Returns the default of the first command, and the different ones of the others.
fn default_text(setting: &Setting, commands: &[CommandDeclaration]) -> String {
    let value = |command: &CommandDeclaration| {
        setting.default_of(command.name).as_ref().map(to_toml).unwrap_or_default()
    };
    match setting.default {
        SettingDefault::Required(_) => "required".to_owned(),
        SettingDefault::Unset(what) => what.to_owned(),
        SettingDefault::Value(_) => {
            let first = commands.first().map(value).unwrap_or_default();
            let others = commands.iter().filter(|command| value(command) != first);
            let others = others.map(|command| format!("; {} `{}`", command.name, value(command)));
            format!("`{first}`{}", others.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_program::{AuditSettings, GateSettings};

    #[test]
    fn a_table_has_a_row_for_each_setting() {
        let commands = [CommandDeclaration::of::<GateSettings>(), CommandDeclaration::of::<AuditSettings>()];
        let table = reference_table(&commands[0].sections[0], &commands);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), commands[0].sections[0].settings.len());
        assert_eq!(
            rows[0],
            "| `listen`<br>`SHOP_GATE_LISTEN`<br>`--listen` | text | `\"127.0.0.1:8080\"`; audit \
             `\"127.0.0.1:9090\"` | Address for clients. Others can't connect. |"
        );
        assert_eq!(rows[1], "| `upstream`<br>`SHOP_GATE_UPSTREAM` | text | required | URL of the service. |");
    }
}
