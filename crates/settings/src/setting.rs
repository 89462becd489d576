//! Declaration of a setting. Everything about a setting is derived from it: the key of the config
//! file, the environment variable, the flag, the default and the check of its value, the example
//! file, the pages of the documentation, and the variables of other programs.
//!
//! Declarations have the form that [`settings!`](crate::settings!) describes. A word after the
//! comma there is a method of [`Setting`].

use std::fmt;

use toml::Value;

use crate::imported_variables::{Import, ImportSource, VariableParser};
use crate::setting_value::{SettingField, SettingUnit};

/// Maximum number of variables of other programs that set one setting.
const MAX_IMPORTS: usize = 3;

/// Check of a text. Its error completes the sentence that begins with the key.
pub type TextRule = fn(&str) -> Result<(), String>;

/// Returns a default. It is a function, because a constant can't hold a string or a list of TOML.
pub type DefaultValue = fn() -> Value;

/// Section of the config file.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    /// Name, as in the config file.
    pub name: &'static str,
    /// Lines of its doc comment.
    doc: &'static [&'static str],
    /// Settings, in the order of the config file.
    pub settings: &'static [Setting],
}

impl Section {
    /// Declares a section by its name, the lines of its doc comment, and its settings.
    pub const fn new(
        name: &'static str,
        doc: &'static [&'static str],
        settings: &'static [Setting],
    ) -> Section {
        Section { name, doc, settings }
    }

    /// Returns the description as one line.
    pub fn description(&self) -> String {
        joined(self.doc)
    }
}

/// Declaration of a setting.
#[derive(Clone, Copy)]
pub struct Setting {
    /// `section.key`.
    pub path: &'static str,
    /// Lines of its doc comment.
    doc: &'static [&'static str],
    /// Kind of its value.
    pub kind: SettingKind,
    /// Returns an error if a value has the wrong type.
    pub(crate) check_type: fn(&Value) -> Result<(), String>,
    pub(crate) default: SettingDefault,
    /// Default of one command, if it differs: the command and the value.
    command_default: Option<(&'static str, DefaultValue)>,
    example: Option<&'static str>,
    pub(crate) bounds: SettingBounds,
    /// Reason for the bounds, for errors.
    pub(crate) reason: Option<&'static str>,
    /// Check of a text.
    pub(crate) rule: Option<TextRule>,
    /// Flag, such as `--listen`, and the name of its value in `--help`.
    pub flag: Option<(&'static str, &'static str)>,
    /// What SIGHUP does with a change.
    pub reload: Reload,
    imports: [Option<Import>; MAX_IMPORTS],
}

/// Value that applies if a setting is absent.
#[derive(Clone, Copy)]
pub(crate) enum SettingDefault {
    Value(DefaultValue),
    /// No value. The text says what applies instead.
    Unset(&'static str),
    /// The setting is required. The text says how to set it.
    Required(&'static str),
}

/// Numbers that are allowed.
#[derive(Clone, Copy)]
pub(crate) struct SettingBounds {
    pub(crate) min: u64,
    /// `u64::MAX`: no maximum.
    pub(crate) max: u64,
    /// Whether 0 is allowed, too.
    pub(crate) or_zero: bool,
    /// Whether the declaration has them; otherwise they are those of the type.
    is_declared: bool,
}

/// What SIGHUP does with a change. The program applies it; the description of the setting says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// The change takes effect after a restart.
    NeedsRestart,
    /// The change is applied. The text says when it takes effect.
    Applied(&'static str),
    /// A new value is applied. A removed value needs a restart.
    AppliedUnlessRemoved,
    /// Applied if a condition of the program holds, which the text names.
    AppliedIf(&'static str),
}

/// Kind of a value, for `--help` and the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingKind {
    /// A string.
    Text,
    /// A string that is never printed.
    Secret,
    /// A path of the file system.
    Path,
    /// `true` or `false`. Its flag has no value.
    Switch,
    /// A number.
    Number,
    /// A list of strings. Its flag may be repeated.
    List,
    /// Numbers by name.
    Table,
}

/// Methods for declarations.
impl Setting {
    /// Declares a setting by its `section.key` and the lines of its doc comment. `M` is inferred.
    ///
    /// # Panics
    /// Panics if the type has units, as `Duration` has, and the key ends with none of them. In a
    /// declaration, this is an error of the compiler.
    pub const fn new<F: SettingField<M>, M>(path: &'static str, doc: &'static [&'static str]) -> Setting {
        let (mut min, mut max) = F::BOUNDS;
        if !F::UNITS.is_empty() {
            match unit_of(path, F::UNITS) {
                Some(unit) => (min, max) = (unit.min, unit.max),
                None => panic!("the key must end with a unit of its type, such as `_ms`"),
            }
        }
        Setting {
            path,
            doc,
            kind: F::KIND,
            check_type: F::check_type,
            default: SettingDefault::Unset("none"),
            command_default: None,
            example: None,
            bounds: SettingBounds { min, max, or_zero: false, is_declared: false },
            reason: None,
            rule: None,
            flag: None,
            reload: Reload::NeedsRestart,
            imports: [None; MAX_IMPORTS],
        }
    }

    /// Default. In a declaration it is written as `= VALUE`. A secret has none: the help, the
    /// example file and the documentation show defaults.
    ///
    /// # Panics
    /// Panics if the setting is a secret. In a declaration, this is an error of the compiler.
    pub const fn default(mut self, value: DefaultValue) -> Setting {
        self.refuse_secret();
        self.default = SettingDefault::Value(value);
        self
    }

    /// Default of one command, if it differs.
    ///
    /// # Panics
    /// Panics if the setting is a secret, as [`default`](Setting::default) does.
    pub const fn default_for(mut self, command: &'static str, value: DefaultValue) -> Setting {
        self.refuse_secret();
        self.command_default = Some((command, value));
        self
    }

    const fn refuse_secret(&self) {
        assert!(!matches!(self.kind, SettingKind::Secret), "a secret has no default");
    }

    /// What applies if the setting is absent and has no default; `none` if this is not declared.
    pub const fn unset(mut self, what: &'static str) -> Setting {
        self.default = SettingDefault::Unset(what);
        self
    }

    /// The setting is required; `how` says how to set it.
    pub const fn required(mut self, how: &'static str) -> Setting {
        self.default = SettingDefault::Required(how);
        self
    }

    /// Value in the example file, if there is no default: a text without quotes, or TOML.
    pub const fn example(mut self, value: &'static str) -> Setting {
        self.example = Some(value);
        self
    }

    /// Smallest and largest number.
    pub const fn bounds(mut self, min: u64, max: u64) -> Setting {
        (self.bounds.min, self.bounds.max, self.bounds.is_declared) = (min, max, true);
        self
    }

    /// Smallest number; there is no largest.
    pub const fn at_least(self, min: u64) -> Setting {
        self.bounds(min, u64::MAX)
    }

    /// 0 is allowed besides the bounds.
    pub const fn or_zero(mut self) -> Setting {
        self.bounds.or_zero = true;
        self
    }

    /// Reason for the bounds, for errors.
    pub const fn reason(mut self, reason: &'static str) -> Setting {
        self.reason = Some(reason);
        self
    }

    /// Check of a text.
    pub const fn rule(mut self, rule: TextRule) -> Setting {
        self.rule = Some(rule);
        self
    }

    /// Flag, and the name of its value in `--help`. The help is the doc comment: its first sentence
    /// for `-h`, all of it for `--help`.
    pub const fn flag(mut self, flag: &'static str, value_name: &'static str) -> Setting {
        self.flag = Some((flag, value_name));
        self
    }

    /// What SIGHUP does with a change. Without this, a change needs a restart.
    pub const fn reload(mut self, reload: Reload) -> Setting {
        self.reload = reload;
        self
    }

    /// Variable of another program that sets this setting. If several are set, the last one
    /// applies. The remark is for the documentation; it may be empty. At most three.
    pub const fn import(
        mut self,
        source: &'static ImportSource,
        name: &'static str,
        parser: VariableParser,
        remark: &'static str,
    ) -> Setting {
        let mut free = 0;
        while self.imports[free].is_some() {
            free += 1;
        }
        self.imports[free] = Some(Import { source, name, parser, remark });
        self
    }
}

/// What is derived from a declaration.
impl Setting {
    /// Returns the section and the key.
    pub fn section_and_key(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').expect("the path is made of a section and a key")
    }

    /// Returns the key, without the section.
    pub fn key(&self) -> &'static str {
        self.section_and_key().1
    }

    /// Returns the doc comment as one line, with the declared bounds and what SIGHUP does.
    pub fn description(&self) -> String {
        let mut description = joined(self.doc);
        if self.bounds.is_declared {
            description += &format!(" Allowed: {}.", self.allowed_numbers());
        }
        description += match self.reload {
            Reload::NeedsRestart => "",
            Reload::AppliedUnlessRemoved => " SIGHUP applies a new value.",
            Reload::Applied(_) | Reload::AppliedIf(_) => " SIGHUP applies a change.",
        };
        description
    }

    /// Returns the allowed numbers with their unit.
    pub(crate) fn allowed_numbers(&self) -> String {
        let or_zero = if self.bounds.or_zero { ", or 0" } else { "" };
        format!("{}{}{or_zero}", self.bounds, self.unit())
    }

    /// Returns whether its value must never be printed.
    pub fn is_secret(&self) -> bool {
        self.kind == SettingKind::Secret
    }

    /// Returns the declaration with the default of a command.
    pub(crate) fn of_command(mut self, command: &str) -> Setting {
        if let Some((_, value)) = self.command_default.filter(|(of, _)| *of == command) {
            self.default = SettingDefault::Value(value);
        }
        self
    }

    /// Returns the default of a command.
    pub fn default_of(&self, command: &str) -> Option<Value> {
        match self.of_command(command).default {
            SettingDefault::Value(value) => Some(value()),
            SettingDefault::Unset(_) | SettingDefault::Required(_) => None,
        }
    }

    /// Returns the example as TOML.
    pub fn example_toml(&self) -> Option<String> {
        let example = self.example?;
        Some(match self.kind {
            SettingKind::Text | SettingKind::Secret | SettingKind::Path => format!("{example:?}"),
            SettingKind::Switch | SettingKind::Number | SettingKind::List | SettingKind::Table => {
                example.to_owned()
            }
        })
    }

    /// Returns the unit that the end of the key names.
    pub const fn unit_of(&self, units: &'static [SettingUnit]) -> Option<&'static SettingUnit> {
        unit_of(self.path, units)
    }

    /// Returns the unit of a number. The last word of the key names it.
    fn unit(&self) -> &'static str {
        match self.path.rsplit('_').next() {
            Some("ms") => " milliseconds",
            Some("s") if !self.path.ends_with("_per_s") => " seconds",
            Some("bytes") => " bytes",
            Some("percent") => " percent",
            Some(_) | None => "",
        }
    }

    /// Returns the variables of other programs, weakest first.
    pub(crate) fn imports(&self) -> impl Iterator<Item = &Import> {
        self.imports.iter().flatten()
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.path)
    }
}

/// The allowed numbers, such as `1 to 100`.
impl fmt::Display for SettingBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            u64::MAX => write!(f, "at least {}", self.min),
            max => write!(f, "{} to {max}", self.min),
        }
    }
}

/// Name in the documentation.
impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SettingKind::Text => "text",
            SettingKind::Secret => "text, secret",
            SettingKind::Path => "path",
            SettingKind::Switch => "true or false",
            SettingKind::Number => "number",
            SettingKind::List => "list",
            SettingKind::Table => "table of numbers",
        })
    }
}

/// Returns the unit that the end of a path names.
const fn unit_of(path: &str, units: &'static [SettingUnit]) -> Option<&'static SettingUnit> {
    let mut index = 0;
    while index < units.len() {
        if ends_with(path.as_bytes(), units[index].suffix.as_bytes()) {
            return Some(&units[index]);
        }
        index += 1;
    }
    None
}

const fn ends_with(text: &[u8], end: &[u8]) -> bool {
    let mut from_end = 1;
    while from_end <= end.len() {
        if from_end > text.len() || text[text.len() - from_end] != end[end.len() - from_end] {
            return false;
        }
        from_end += 1;
    }
    true
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
