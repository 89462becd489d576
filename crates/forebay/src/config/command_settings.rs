//! Settings of a command: all declarations of its sections.

use super::setting::{Section, Setting};

/// The sections of a command.
pub(crate) trait CommandSettings: Send + Sync + 'static {
    /// Name of the command: `serve` or `gate`.
    const NAME: &'static str;
    /// Sections, in the order of the config file.
    const SECTIONS: &'static [Section];
}

/// Name and sections of a command.
#[derive(Clone, Copy)]
pub(crate) struct CommandDeclaration {
    pub(crate) name: &'static str,
    pub(crate) sections: &'static [Section],
}

impl CommandDeclaration {
    pub(crate) const fn of<C: CommandSettings>() -> CommandDeclaration {
        CommandDeclaration { name: C::NAME, sections: C::SECTIONS }
    }

    /// Returns all settings, in the order of the config file.
    pub(crate) fn settings(self) -> impl Iterator<Item = &'static Setting> {
        self.sections.iter().flat_map(|section| section.settings)
    }

    /// Returns the setting with this `section.key`.
    pub(crate) fn setting(self, path: &str) -> Option<&'static Setting> {
        self.settings().find(|setting| setting.path == path)
    }
}
