//! Effective settings with their origins, for `forebay config`.
//!
//! Invariant: the content of a `SecretText` is never printed, only the server that a URL points
//! to. Every key of the command is listed.
//! Enforced by: a key is secret if its field in the file type is a `SecretText`; the keys come from
//! serde.

use std::fmt::{self, Write as _};

use forebay_redis::IntoConfig as _;
use forebay_replication::reservoir::PostgresConnect;
use toml::{Table, Value};

use super::gate_file::GateFile;
use super::serve_file::ServeFile;
use super::setting_layers::SettingLayers;
use super::setting_origin::SettingOrigin;
use super::settings_file::SettingsFile;
use super::{ConfigError, GATE_EXAMPLE, GateConfig, SERVE_EXAMPLE, ServeConfig, VariableNotice};

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
    pub(super) fn of_gate(layers: SettingLayers<GateFile>) -> EffectiveSettings {
        let checked = GateConfig::try_from(layers.clone());
        let derived = |config: &GateConfig| vec![shares(config.admission.shares())];
        let defaults = defaults(GATE_EXAMPLE, checked.as_ref().map(derived).unwrap_or_default());
        EffectiveSettings::of("gate", &layers, &defaults, checked.err())
    }

    pub(super) fn of_serve(layers: SettingLayers<ServeFile>) -> EffectiveSettings {
        let checked = ServeConfig::try_from(layers.clone());
        let derived = |config: &ServeConfig| {
            let snapshots = i64::try_from(config.snapshots).unwrap_or(i64::MAX);
            vec![shares(config.admission.shares()), ("serve.snapshots", Value::Integer(snapshots))]
        };
        let defaults = defaults(SERVE_EXAMPLE, checked.as_ref().map(derived).unwrap_or_default());
        EffectiveSettings::of("serve", &layers, &defaults, checked.err())
    }

    fn of<F: SettingsFile>(
        command: &'static str,
        layers: &SettingLayers<F>,
        defaults: &Table,
        error: Option<ConfigError>,
    ) -> EffectiveSettings {
        let line = |section: &str, key: &'static str| match layers.get(section, key) {
            Some((value, origin)) => {
                let value =
                    if is_secret::<F>(section, key) { redacted(section, value) } else { to_toml(value) };
                SettingLine { key, value: Some(value), origin: Some(origin.clone()) }
            }
            None => {
                let default = defaults.get(section).and_then(|keys| keys.get(key));
                SettingLine { key, value: default.map(to_toml), origin: None }
            }
        };
        let sections = F::sections().into_iter();
        let sections = sections
            .map(|(section, keys)| (section, keys.iter().map(|key| line(section, key)).collect()))
            .collect();
        EffectiveSettings { command, sections, notices: layers.notices().to_vec(), error }
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
            self.notices.iter().filter_map(|notice| Some((notice.variable, notice.why_not.as_ref()?)));
        for (number, (variable, why)) in without_effect.enumerate() {
            let gap = if number == 0 { "\n" } else { "" };
            writeln!(f, "{gap}# {variable} has no effect: {why}")?;
        }
        Ok(())
    }
}

/// Returns the defaults: the values of the example file. A remark at the end of a line overrides
/// its value: `# default: VALUE` or `# no default`.
pub(super) fn defaults(example: &str, derived: DerivedDefaults) -> Table {
    let mut lines = String::new();
    for line in example.lines() {
        match line.split_once(" # ") {
            Some((_, "no default")) => continue,
            Some((setting, remark)) if !line.starts_with('#') => {
                let default = remark.strip_prefix("default: ");
                let key = setting.split_once(" = ").map_or(setting, |(key, _)| key);
                let line = default.map_or_else(|| setting.to_owned(), |default| format!("{key} = {default}"));
                let _ = writeln!(lines, "{line}");
            }
            Some(_) | None => {
                let _ = writeln!(lines, "{line}");
            }
        }
    }
    let mut table: Table = toml::from_str(&lines).unwrap_or_default();
    for (path, value) in derived {
        if let Some((section, key)) = path.split_once('.')
            && let Some(Value::Table(keys)) = table.get_mut(section)
        {
            keys.insert(key.to_owned(), value);
        }
    }
    table
}

/// Returns the class shares as a setting.
fn shares<'a>(shares: impl Iterator<Item = (&'a str, u8)>) -> (&'static str, Value) {
    let shares = shares.map(|(class, share)| (class.to_owned(), Value::Integer(share.into())));
    ("admission.class_percent", Value::Table(shares.collect()))
}

/// Returns whether the file's type has a `SecretText` at this key.
fn is_secret<F: SettingsFile>(section: &str, key: &str) -> bool {
    let text = Value::String("text".to_owned());
    [text.clone(), Value::Array(vec![text])].into_iter().any(|value| {
        let keys = Table::from_iter([(key.to_owned(), value)]);
        let whole = Table::from_iter([(section.to_owned(), Value::Table(keys))]);
        F::deserialize(whole).is_ok_and(|file| format!("{file:?}").contains("SecretText(…)"))
    })
}

/// Returns the placeholder of a secret. For a valid URL, it includes the server.
fn redacted(section: &str, value: &Value) -> String {
    let url = value.as_str().unwrap_or_default();
    let server = match section {
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
