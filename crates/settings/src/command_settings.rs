//! Settings of a command: all declarations of its sections.

use crate::imported_variables::{ImportSource, ImportedVariable, imported_variables};
use crate::setting::{Section, Setting};

/// The sections of a command. [`command_settings!`](crate::command_settings!) implements it.
pub trait CommandSettings: Send + Sync + 'static {
    /// Name of the program. In upper case, it is the prefix of the environment variables.
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
        self.program.to_uppercase() + "_"
    }

    /// Returns the prefix of the variables of a section.
    pub(crate) fn section_prefix(self, section: &str) -> String {
        format!("{}{}_", self.prefix(), section.to_uppercase())
    }

    /// Returns what a user types: the program and the command.
    pub(crate) fn command_line(self) -> String {
        format!("{} {}", self.program, self.name).trim_end().to_owned()
    }
}
