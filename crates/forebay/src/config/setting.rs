//! Declaration of a setting. Everything about a setting is derived from it: the key of the config
//! file, the environment variable, the flag, the default and the check of its value, the example
//! file, the pages of the documentation, and the variables of other programs.
//!
//! `sections/` has all declarations, in the form that [`settings!`](super::settings_macro)
//! describes. A word after the comma there is a method of [`Setting`].

use std::fmt;

use toml::Value;

use super::imported_variables::{Import, VariableParser, text};
use super::setting_value::{SettingField, SettingValue as _};

/// Maximum number of variables of other programs that set one setting.
const MAX_IMPORTS: usize = 3;

/// Check of a text. Its error completes the sentence that begins with the key.
pub(super) type TextRule = fn(&str) -> Result<(), String>;

/// Section of the config file.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// Lines of its doc comment.
    pub(super) doc: &'static [&'static str],
    pub(crate) settings: &'static [Setting],
}

impl Section {
    /// Returns the description as one line.
    pub(super) fn description(&self) -> String {
        joined(self.doc)
    }
}

/// Declaration of a setting.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    /// `section.key`.
    pub(crate) path: &'static str,
    /// Lines of its doc comment.
    doc: &'static [&'static str],
    pub(crate) kind: SettingKind,
    /// Returns an error if a value has the wrong type.
    pub(super) check_type: fn(&Value) -> Result<(), String>,
    pub(super) default: SettingDefault,
    /// Default of `forebay gate`, if it differs.
    gate_default: Option<fn() -> Value>,
    example: Option<&'static str>,
    pub(super) bounds: SettingBounds,
    /// Reason for the bounds, for errors.
    pub(super) reason: Option<&'static str>,
    /// Check of a text.
    pub(super) rule: Option<TextRule>,
    /// Flag, such as `--listen`, and the name of its value in `--help`.
    pub(crate) flag: Option<(&'static str, &'static str)>,
    pub(crate) reload: Reload,
    imports: [Option<Import>; MAX_IMPORTS],
}

/// Value that applies if a setting is absent.
#[derive(Clone, Copy)]
pub(super) enum SettingDefault {
    Value(fn() -> Value),
    /// No value. The text says what applies instead.
    Unset(&'static str),
    /// The setting is required. The text says how to set it.
    Required(&'static str),
}

/// Numbers that are allowed.
#[derive(Clone, Copy)]
pub(super) struct SettingBounds {
    pub(super) min: u64,
    /// `u64::MAX`: no maximum.
    pub(super) max: u64,
    /// Whether 0 is allowed, too.
    pub(super) or_zero: bool,
    /// Whether the declaration has them; otherwise they are those of the type.
    is_declared: bool,
}

/// What SIGHUP does with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The change takes effect after a restart.
    NeedsRestart,
    /// The change is applied. The text says when it takes effect.
    Applied(&'static str),
    /// A new value is applied. A removed value needs a restart.
    AppliedUnlessRemoved,
    /// Applied if this identity method is configured before and after the change.
    AppliedWithMethod(&'static str),
    /// Applied if all identity methods stay the same.
    AppliedWithSameMethods,
}

/// Kind of a value, for `--help` and the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingKind {
    Text,
    Secret,
    Path,
    Switch,
    Number,
    List,
    Table,
}

/// Methods for declarations.
impl Setting {
    pub(super) const fn new<F: SettingField>(path: &'static str, doc: &'static [&'static str]) -> Setting {
        let (min, max) = F::Value::BOUNDS;
        Setting {
            path,
            doc,
            kind: F::Value::KIND,
            check_type: F::Value::check_type,
            default: SettingDefault::Unset("none"),
            gate_default: None,
            example: None,
            bounds: SettingBounds { min, max, or_zero: false, is_declared: false },
            reason: None,
            rule: None,
            flag: None,
            reload: Reload::NeedsRestart,
            imports: [None; MAX_IMPORTS],
        }
    }

    /// Default. In a declaration it is written as `= VALUE`.
    pub(super) const fn default(mut self, value: fn() -> Value) -> Setting {
        self.default = SettingDefault::Value(value);
        self
    }

    /// Default of `forebay gate`, if it differs.
    pub(super) const fn gate_default(mut self, value: fn() -> Value) -> Setting {
        self.gate_default = Some(value);
        self
    }

    /// What applies if the setting is absent and has no default; `none` if this is not declared.
    pub(super) const fn unset(mut self, what: &'static str) -> Setting {
        self.default = SettingDefault::Unset(what);
        self
    }

    /// The setting is required; `how` says how to set it.
    pub(super) const fn required(mut self, how: &'static str) -> Setting {
        self.default = SettingDefault::Required(how);
        self
    }

    /// Value in the example file, if there is no default: a text without quotes, or TOML.
    pub(super) const fn example(mut self, value: &'static str) -> Setting {
        self.example = Some(value);
        self
    }

    /// Smallest and largest number.
    pub(super) const fn bounds(mut self, min: u64, max: u64) -> Setting {
        (self.bounds.min, self.bounds.max, self.bounds.is_declared) = (min, max, true);
        self
    }

    /// Smallest number; there is no largest.
    pub(super) const fn at_least(self, min: u64) -> Setting {
        self.bounds(min, u64::MAX)
    }

    /// 0 is allowed besides the bounds.
    pub(super) const fn or_zero(mut self) -> Setting {
        self.bounds.or_zero = true;
        self
    }

    /// Reason for the bounds, for errors.
    pub(super) const fn reason(mut self, reason: &'static str) -> Setting {
        self.reason = Some(reason);
        self
    }

    /// Check of a text.
    pub(super) const fn rule(mut self, rule: TextRule) -> Setting {
        self.rule = Some(rule);
        self
    }

    /// Flag, and the name of its value in `--help`. The help is the doc comment: its first sentence
    /// for `-h`, all of it for `--help`.
    pub(super) const fn flag(mut self, flag: &'static str, value_name: &'static str) -> Setting {
        self.flag = Some((flag, value_name));
        self
    }

    /// What SIGHUP does with a change. Without this, a change needs a restart.
    pub(super) const fn reload(mut self, reload: Reload) -> Setting {
        self.reload = reload;
        self
    }

    /// Variable of Electric that sets this setting. If several are set, the last one applies.
    pub(super) const fn electric(
        mut self,
        name: &'static str,
        parser: VariableParser,
        remark: &'static str,
    ) -> Setting {
        let mut free = 0;
        while self.imports[free].is_some() {
            free += 1;
        }
        self.imports[free] = Some(Import { name, parser, remark });
        self
    }

    /// Variable of the DSQL plugin that sets this setting.
    pub(super) const fn dsql(
        self,
        name: &'static str,
        parser: VariableParser,
        remark: &'static str,
    ) -> Setting {
        self.electric(name, parser, remark)
    }

    /// Variable of OpenTelemetry that sets this setting. Variables of Electric override it, because
    /// they are for this program only.
    pub(super) const fn opentelemetry(self, name: &'static str) -> Setting {
        self.electric(name, text, "")
    }
}

/// What is derived from a declaration.
impl Setting {
    /// Returns the section and the key.
    pub(super) fn section_and_key(&self) -> (&'static str, &'static str) {
        self.path.split_once('.').expect("the path is made of a section and a key")
    }

    pub(crate) fn key(&self) -> &'static str {
        self.section_and_key().1
    }

    /// Returns the environment variable.
    pub(crate) fn variable(&self) -> String {
        let (section, key) = self.section_and_key();
        variable(section, key)
    }

    /// Returns the doc comment as one line, with the declared bounds and what SIGHUP does.
    pub(super) fn description(&self) -> String {
        let mut description = joined(self.doc);
        if self.bounds.is_declared {
            description += &format!(" Allowed: {}.", self.allowed_numbers());
        }
        description += match self.reload {
            Reload::NeedsRestart => "",
            Reload::AppliedUnlessRemoved => " SIGHUP applies a new value.",
            Reload::Applied(_) | Reload::AppliedWithMethod(_) | Reload::AppliedWithSameMethods => {
                " SIGHUP applies a change."
            }
        };
        description
    }

    /// Returns the allowed numbers with their unit.
    pub(super) fn allowed_numbers(&self) -> String {
        let or_zero = if self.bounds.or_zero { ", or 0" } else { "" };
        format!("{}{}{or_zero}", self.bounds, self.unit())
    }

    pub(crate) fn is_secret(&self) -> bool {
        self.kind == SettingKind::Secret
    }

    /// Returns the declaration with the default of a command.
    pub(super) fn of_command(mut self, command: &str) -> Setting {
        if let Some(value) = self.gate_default.filter(|_| command == "gate") {
            self.default = SettingDefault::Value(value);
        }
        self
    }

    /// Returns the default of a command.
    pub(super) fn default_of(&self, command: &str) -> Option<Value> {
        match self.of_command(command).default {
            SettingDefault::Value(value) => Some(value()),
            SettingDefault::Unset(_) | SettingDefault::Required(_) => None,
        }
    }

    /// Returns the example as TOML.
    pub(super) fn example_toml(&self) -> Option<String> {
        let example = self.example?;
        Some(match self.kind {
            SettingKind::Text | SettingKind::Secret | SettingKind::Path => format!("{example:?}"),
            SettingKind::Switch | SettingKind::Number | SettingKind::List | SettingKind::Table => {
                example.to_owned()
            }
        })
    }

    /// Returns the unit of a number. The last word of the key names it.
    fn unit(&self) -> &'static str {
        match self.path.rsplit('_').next() {
            Some("ms") => " milliseconds",
            Some("s") => " seconds",
            Some("bytes") => " bytes",
            Some("percent") => " percent",
            Some(_) | None => "",
        }
    }

    /// Returns the variables of other programs, weakest first.
    pub(super) fn imports(&self) -> impl Iterator<Item = &Import> {
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

/// Returns the environment variable of a key.
pub(super) fn variable(section: &str, key: &str) -> String {
    format!("FOREBAY_{}_{}", section.to_uppercase(), key.to_uppercase())
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}
