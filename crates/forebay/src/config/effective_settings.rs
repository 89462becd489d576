//! Effective settings with their origins, for `forebay config`.
//!
//! Invariant: the value of a secret is never printed, only the server that a URL points to. Every
//! key of the command is listed.
//! Enforced by: the declarations of the settings.

use std::fmt;

use forebay_redis::IntoConfig as _;
use forebay_replication::reservoir::PostgresConnect;
use toml::Value;

use super::setting::Setting;
use super::setting_layers::SettingLayers;
use super::setting_origin::SettingOrigin;
use super::{ConfigError, GateConfig, ServeConfig, VariableNotice};

/// Column at which origins are printed, unless the setting is longer.
const COLUMN: usize = 56;
/// Placeholder of a secret.
const REDACTED: &str = "(hidden)";

/// Effective settings of a command.
#[derive(Debug)]
pub struct EffectiveSettings {
    command: &'static str,
    sections: Vec<(&'static str, Vec<SettingLine>)>,
    notices: Vec<VariableNotice>,
    /// Why the command can't start with these settings; `None` if it can.
    pub error: Option<ConfigError>,
}

/// A setting and its origin.
#[derive(Debug)]
struct SettingLine {
    key: &'static str,
    /// Value in TOML; `None` if there is neither a value nor a default.
    value: Option<String>,
    origin: Option<SettingOrigin>,
}

/// Defaults that depend on other settings, by `section.key`.
type DerivedDefaults = Vec<(&'static str, Value)>;

impl EffectiveSettings {
    pub(super) fn of_gate(layers: &SettingLayers) -> EffectiveSettings {
        let checked = GateConfig::try_from(layers.clone());
        let derived = |config: &GateConfig| vec![shares(config.admission.shares())];
        EffectiveSettings::of(layers, &checked.as_ref().map(derived).unwrap_or_default(), checked.err())
    }

    pub(super) fn of_serve(layers: &SettingLayers) -> EffectiveSettings {
        let checked = ServeConfig::try_from(layers.clone());
        let derived = |config: &ServeConfig| {
            let snapshots = i64::try_from(config.snapshots).unwrap_or(i64::MAX);
            vec![shares(config.admission.shares()), ("serve.snapshots", Value::Integer(snapshots))]
        };
        EffectiveSettings::of(layers, &checked.as_ref().map(derived).unwrap_or_default(), checked.err())
    }

    fn of(
        layers: &SettingLayers,
        derived: &DerivedDefaults,
        error: Option<ConfigError>,
    ) -> EffectiveSettings {
        let command = layers.command();
        let line = |setting: &Setting| match layers.get(setting.path) {
            Some((value, origin)) => {
                let value = if setting.is_secret() { redacted(setting, value) } else { to_toml(value) };
                SettingLine { key: setting.key(), value: Some(value), origin: Some(origin.clone()) }
            }
            None => {
                let derived = derived.iter().find(|(path, _)| *path == setting.path);
                let default = derived.map(|(_, value)| value.clone());
                let default = default.or_else(|| setting.default_of(command.name));
                SettingLine { key: setting.key(), value: default.as_ref().map(to_toml), origin: None }
            }
        };
        let sections = command.sections.iter();
        let sections =
            sections.map(|section| (section.name, section.settings.iter().map(line).collect())).collect();
        EffectiveSettings { command: command.name, sections, notices: layers.notices().to_vec(), error }
    }
}

impl fmt::Display for EffectiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# forebay {}: effective settings and their origins", self.command)?;
        for (section, lines) in &self.sections {
            writeln!(f, "\n[{section}]")?;
            for SettingLine { key, value, origin } in lines {
                let left = match value {
                    Some(value) => format!("{key} = {value}"),
                    None => format!("# {key}"),
                };
                let origin: &dyn fmt::Display = match origin {
                    None if value.is_none() => &"not set",
                    None => &"default",
                    Some(SettingOrigin::File(path)) => &format!("file {}", path.display()),
                    Some(SettingOrigin::Variable(name)) => &format!("variable {name}"),
                    Some(SettingOrigin::Flag(flag)) => &format!("flag {flag}"),
                };
                writeln!(f, "{left:COLUMN$} # {origin}")?;
            }
        }
        let without_effect =
            self.notices.iter().filter_map(|notice| Some((&notice.variable, notice.why_not.as_ref()?)));
        for (number, (variable, why)) in without_effect.enumerate() {
            let gap = if number == 0 { "\n" } else { "" };
            writeln!(f, "{gap}# {variable} has no effect: {why}")?;
        }
        Ok(())
    }
}

/// Returns the class shares as a setting.
fn shares<'a>(shares: impl Iterator<Item = (&'a str, u8)>) -> (&'static str, Value) {
    let shares = shares.map(|(class, share)| (class.to_owned(), Value::Integer(share.into())));
    ("admission.class_percent", Value::Table(shares.collect()))
}

/// Returns the placeholder of a secret. For a valid URL, it includes the server.
fn redacted(setting: &Setting, value: &Value) -> String {
    let url = value.as_str().unwrap_or_default();
    let server = match setting.section_and_key().0 {
        "database" => PostgresConnect::new(url).ok().map(|connect| {
            format!(": {} at {}, database {}", connect.user(), connect.endpoint(), connect.database())
        }),
        "redis" => url.into_config().ok().map(|config| format!(": {}", config.address)),
        _ => None,
    };
    to_toml(&Value::String(format!("{REDACTED}{}", server.unwrap_or_default())))
}

/// Formats a value as TOML.
pub(super) fn to_toml(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(to_toml).collect::<Vec<_>>().join(", ")),
        Value::Table(keys) => {
            let pairs: Vec<_> =
                keys.iter().map(|(key, value)| format!("{key} = {}", to_toml(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(value) => value.to_string(),
        Value::Datetime(time) => time.to_string(),
    }
}
