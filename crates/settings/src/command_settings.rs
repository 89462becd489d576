//! Settings of a command: all declarations of its sections.

use crate::imported_variables::{ImportSource, ImportedVariable, imported_variables};
use crate::setting::{Section, Setting};

/// The sections of a command. [`command_settings!`](crate::command_settings!) implements it.
pub trait CommandSettings: Send + Sync + 'static {
    /// Name of the program. In upper case and with `_` for `-`, it is the prefix of the environment
    /// variables.
    const PROGRAM: &'static str;
    /// Name of the command; empty for a program without commands.
    const NAME: &'static str;
    /// Sections, in the order of the config file.
    const SECTIONS: &'static [Section];
    /// Other programs whose variables the command accepts.
    const IMPORTS: &'static [&'static ImportSource];
}

/// Name and sections of a command.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CommandDeclaration {
    /// Name of the program.
    pub program: &'static str,
    /// Name of the command; empty for a program without commands.
    pub name: &'static str,
    /// Sections, in the order of the config file.
    pub sections: &'static [Section],
    pub(crate) imports: &'static [&'static ImportSource],
}

impl CommandDeclaration {
    /// Returns the declaration of a command.
    pub const fn of<C: CommandSettings>() -> CommandDeclaration {
        CommandDeclaration { program: C::PROGRAM, name: C::NAME, sections: C::SECTIONS, imports: C::IMPORTS }
    }

    /// Returns all settings, in the order of the config file.
    pub fn settings(self) -> impl Iterator<Item = &'static Setting> {
        self.sections.iter().flat_map(|section| section.settings)
    }

    /// Returns the setting with this `section.key`.
    pub fn setting(self, path: &str) -> Option<&'static Setting> {
        self.settings().find(|setting| setting.path == path)
    }

    /// Returns the environment variable of a setting, such as `SHOP_HTTP_LISTEN`.
    pub fn variable(self, setting: &Setting) -> String {
        let (section, key) = setting.section_and_key();
        self.section_prefix(section) + &key.to_uppercase()
    }

    /// Returns the variables of other programs that the command accepts. Where two set the same
    /// setting, the later one overrides the earlier one.
    pub fn imported_variables(self) -> Vec<ImportedVariable> {
        imported_variables(self)
    }

    /// Returns the prefix of all variables of the program.
    pub(crate) fn prefix(self) -> String {
        upper_case(self.program) + "_"
    }

    /// Returns the prefix of the variables of a section.
    pub(crate) fn section_prefix(self, section: &str) -> String {
        format!("{}{}_", self.prefix(), upper_case(section))
    }

    /// Returns whether a variable has the prefix of a section. Such variables are ours. Others may
    /// belong to another program.
    pub(crate) fn is_of_section(self, name: &str) -> bool {
        let mut sections = self.sections.iter();
        sections.any(|section| name.starts_with(&self.section_prefix(section.name)))
    }

    /// Returns what a user types: the program and the command.
    pub(crate) fn command_line(self) -> String {
        format!("{} {}", self.program, self.name).trim_end().to_owned()
    }
}

/// Returns a name as in environment variables, which can't contain a hyphen.
fn upper_case(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting_layers::SettingLayers;

    crate::settings! {
        /// A section.
        HyphenSection: "night-shift" {
            /// Number of guards.
            guards: u32 = 2;
        }
    }

    crate::command_settings! {
        /// Settings of a program with a hyphen in its name.
        HyphenSettings: "corner-shop" {
            night: HyphenSection,
        }
    }

    #[test]
    fn a_hyphen_in_a_name_is_an_underscore_in_the_variable() {
        let command = CommandDeclaration::of::<HyphenSettings>();
        let variable = command.variable(command.setting("night-shift.guards").unwrap());
        assert_eq!(variable, "CORNER_SHOP_NIGHT_SHIFT_GUARDS");
        let mut layers = SettingLayers::new(command);
        layers.environment([(variable.as_str(), "3")]).unwrap();
        assert_eq!(HyphenSettings::read(&layers).unwrap().night.guards, 3);
        assert!(layers.environment([("CORNER_SHOP_NIGHT_SHIFT_GUARD", "3")]).is_err());
    }
}
