//! Effective settings with their origins, to be printed.
//!
//! Invariant: the value of a secret is never printed, only what the program returns about it. Every
//! key of the command is listed.
//! Enforced by: the declarations of the settings.

use std::fmt;

use toml::Value;

use crate::imported_variables::VariableNotice;
use crate::setting::Setting;
use crate::setting_layers::SettingLayers;
use crate::setting_origin::SettingOrigin;

/// Column at which origins are printed, unless the setting is longer.
const COLUMN: usize = 56;
/// Placeholder of a secret.
const REDACTED: &str = "(hidden)";

/// Effective settings of a command. Its `Display` output is a config file with the origin of each
/// value.
#[derive(Debug)]
pub struct EffectiveSettings {
    /// The program and the command.
    command: String,
    sections: Vec<(&'static str, Vec<SettingLine>)>,
    notices: Vec<VariableNotice>,
}

/// A setting and its origin.
#[derive(Debug)]
struct SettingLine {
    key: &'static str,
    /// Value in TOML; `None` if there is neither a value nor a default.
    value: Option<String>,
    origin: Option<SettingOrigin>,
}

impl EffectiveSettings {
    /// Lists all settings of a command.
    ///
    /// `derived` has defaults that depend on other settings, by `section.key`. `describe_secret`
    /// returns what may be shown of a secret, such as the server of a URL.
    pub fn new(
        layers: &SettingLayers,
        derived: &[(&'static str, Value)],
        describe_secret: impl Fn(&Setting, &str) -> Option<String>,
    ) -> EffectiveSettings {
        let command = layers.command();
        let redacted = |setting: &Setting, value: &Value| {
            let shown = describe_secret(setting, value.as_str().unwrap_or_default());
            let shown = shown.map(|shown| format!(": {shown}")).unwrap_or_default();
            to_toml(&Value::String(format!("{REDACTED}{shown}")))
        };
        let line = |setting: &Setting| match layers.get(setting.path) {
            Some((value, origin)) => {
                let value = if setting.is_secret() { redacted(setting, value) } else { to_toml(value) };
                SettingLine { key: setting.key(), value: Some(value), origin: Some(origin.clone()) }
            }
            None => {
                let derived = derived.iter().find(|(path, _)| *path == setting.path);
                let default = derived.map(|(_, value)| value.clone());
                let default = default.or_else(|| setting.default_of(command.name));
                let show = |value: &Value| match setting.is_secret() {
                    true => redacted(setting, value),
                    false => to_toml(value),
                };
                SettingLine { key: setting.key(), value: default.as_ref().map(show), origin: None }
            }
        };
        let sections = command.sections.iter();
        let sections =
            sections.map(|section| (section.name, section.settings.iter().map(line).collect())).collect();
        EffectiveSettings { command: command.command_line(), sections, notices: layers.notices().to_vec() }
    }
}

impl fmt::Display for EffectiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}: effective settings and their origins", self.command)?;
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

/// Formats a value as TOML.
pub fn to_toml(value: &Value) -> String {
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::command_settings::CommandDeclaration;
    use crate::test_program::GateSettings;

    #[test]
    fn every_key_is_listed_with_its_origin_and_secrets_are_hidden() {
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        layers.text("[gate]\nlisten = \"127.0.0.1:1\"\n", Path::new("gate.toml")).unwrap();
        let variables = [("SHOP_REDIS_URL", "redis://:s3cr3t@h"), ("STALL_THREADS", "4")];
        layers.environment(variables).unwrap();
        let derived = [(
            "admission.class_percent",
            Value::Table([("user".to_owned(), 90.into())].into_iter().collect()),
        )];
        let server = |setting: &Setting, url: &str| {
            assert_eq!(setting.path, "redis.url");
            url.rsplit('@').next().map(str::to_owned)
        };
        let printed = EffectiveSettings::new(&layers, &derived, server).to_string();
        let lines: Vec<&str> = printed.lines().map(str::trim_end).collect();
        for line in [
            "# shop gate: effective settings and their origins",
            "listen = \"127.0.0.1:1\"                                   # file gate.toml",
            "# upstream                                               # not set",
            "class_percent = { user = 90 }                            # default",
            "url = \"(hidden): h\"                                      # variable SHOP_REDIS_URL",
            "# STALL_THREADS has no effect: the number of threads is fixed",
        ] {
            assert!(lines.contains(&line), "{line:?} is not in\n{printed}");
        }
        assert!(!printed.contains("s3cr3t"));
        for setting in layers.command().settings() {
            assert!(printed.contains(setting.key()), "{}", setting.path);
        }
    }
}
