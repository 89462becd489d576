//! Flags of a command, made from the declarations of its settings.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml::Value;

use crate::command_settings::{CommandDeclaration, CommandSettings};
use crate::effective_settings::to_toml;
use crate::setting::{Setting, SettingDefault, SettingKind};
use crate::setting_layers::{SettingLayers, parse_text};

/// Values of the flags of a command. It implements [`clap::Args`]: flatten it into the arguments of
/// the command.
pub struct SettingFlags<C> {
    /// By `section.key`.
    values: BTreeMap<&'static str, (&'static Setting, Value)>,
    command: PhantomData<fn() -> C>,
}

impl<C: CommandSettings> SettingFlags<C> {
    /// Sets a flag, such as `--listen`.
    ///
    /// # Panics
    /// Panics if no setting of the command has this flag.
    pub fn set(&mut self, flag: &str, value: impl Into<Value>) {
        let found = flags::<C>().find(|(_, name, _)| *name == flag);
        let (setting, ..) = found.unwrap_or_else(|| panic!("{flag} is no flag of a setting"));
        self.values.insert(setting.path, (setting, value.into()));
    }

    /// Adds the flags to the layers, on top of the file and the environment.
    pub fn apply(self, layers: &mut SettingLayers) {
        for (setting, value) in self.values.into_values() {
            layers.flag(setting, value);
        }
    }
}

/// Returns the settings with flags, each with its flag and the name of the value.
fn flags<C: CommandSettings>() -> impl Iterator<Item = (&'static Setting, &'static str, &'static str)> {
    let settings = CommandDeclaration::of::<C>().settings();
    settings.filter_map(|setting| setting.flag.map(|(flag, value_name)| (setting, flag, value_name)))
}

impl<C: CommandSettings> Args for SettingFlags<C> {
    fn augment_args(command: Command) -> Command {
        flags::<C>().fold(command, |command, (setting, flag, value_name)| {
            let description = setting.description();
            let first = description.split_once(". ").map_or(description.as_str(), |(first, _)| first);
            let is_list = setting.kind == SettingKind::List;
            let (repeat, repeat_sentence) =
                if is_list { ("; may be repeated", " May be repeated.") } else { ("", "") };
            let default = default_text(setting, C::NAME);
            let arg = Arg::new(setting.path)
                .long(flag.trim_start_matches('-'))
                .help(format!("{}{repeat}{default}", first.trim_end_matches('.')))
                .long_help(format!("{description}{repeat_sentence}{default}"));
            command.arg(match setting.kind {
                SettingKind::Switch => arg.action(ArgAction::SetTrue),
                SettingKind::List => arg
                    .value_name(value_name)
                    .value_parser(|text: &str| Ok::<_, String>(Value::String(text.to_owned())))
                    .action(ArgAction::Append),
                // Its errors quote the value. `SettingLayers::read` refuses a wrong one.
                SettingKind::Secret => arg.value_name(value_name).value_parser(|text: &str| {
                    let literal = Value::String(text.to_owned());
                    Ok::<_, String>(parse(setting, text).unwrap_or(literal))
                }),
                SettingKind::Text | SettingKind::Path | SettingKind::Number | SettingKind::Table => {
                    arg.value_name(value_name).value_parser(|text: &str| parse(setting, text))
                }
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the default for the help; empty for a switch that is off by default.
fn default_text(setting: &Setting, command: &str) -> String {
    let default = match (setting.default, setting.default_of(command)) {
        (SettingDefault::Required(_), _) | (_, Some(Value::Boolean(false))) => return String::new(),
        (SettingDefault::Unset(what), _) => what.to_owned(),
        (SettingDefault::Value(_), Some(Value::String(text))) => text,
        (SettingDefault::Value(_), Some(Value::Array(items))) if items.is_empty() => "none".to_owned(),
        (SettingDefault::Value(_), value) => value.as_ref().map(to_toml).unwrap_or_default(),
    };
    format!(" [default: {default}]")
}

/// Parses the value of a flag. A text is taken as it is.
fn parse(setting: &Setting, text: &str) -> Result<Value, String> {
    let literal = Value::String(text.to_owned());
    match (setting.check_type)(&literal) {
        Ok(()) => Ok(literal),
        Err(_) => parse_text(setting, text),
    }
}

impl<C: CommandSettings> FromArgMatches for SettingFlags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = SettingFlags::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for (setting, ..) in flags::<C>() {
            let value = match setting.kind {
                SettingKind::Switch => matches.get_flag(setting.path).then_some(Value::Boolean(true)),
                SettingKind::List => {
                    let items = matches.get_many::<Value>(setting.path);
                    items.map(|items| Value::Array(items.cloned().collect()))
                }
                SettingKind::Text
                | SettingKind::Secret
                | SettingKind::Path
                | SettingKind::Number
                | SettingKind::Table => matches.get_one::<Value>(setting.path).cloned(),
            };
            if let Some(value) = value {
                self.values.insert(setting.path, (setting, value));
            }
        }
        Ok(())
    }
}

impl<C> Default for SettingFlags<C> {
    fn default() -> Self {
        SettingFlags { values: BTreeMap::new(), command: PhantomData }
    }
}

impl<C> Clone for SettingFlags<C> {
    fn clone(&self) -> Self {
        SettingFlags { values: self.values.clone(), command: PhantomData }
    }
}

/// Omits the values: some are passwords.
impl<C> fmt::Debug for SettingFlags<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.values.values().filter_map(|(setting, _)| Some(setting.flag?.0));
        f.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::setting_origin::SettingOrigin;
    use crate::test_program::GateSettings;

    #[derive(Debug, Parser)]
    struct GateCommand {
        #[command(flatten)]
        flags: SettingFlags<GateSettings>,
    }

    fn layered(flags: &[&str]) -> Result<SettingLayers, String> {
        let parsed = GateCommand::try_parse_from(["gate"].iter().chain(flags));
        let mut layers = SettingLayers::new(CommandDeclaration::of::<GateSettings>());
        parsed.map_err(|error| error.to_string())?.flags.apply(&mut layers);
        Ok(layers)
    }

    #[test]
    fn a_flag_has_the_type_of_its_setting() {
        let flags =
            ["--listen", "127.0.0.1:1", "--total", "7", "--insecure-admin", "--redis", "1", "--stream-route"];
        let layers = layered(&[&flags[..], &["a,b", "--stream-route", "c"]].concat()).unwrap();
        let get = |path| layers.get(path).unwrap().0.clone();
        assert_eq!(get("admission.total"), 7.into());
        assert_eq!(get("admin.insecure"), true.into());
        assert_eq!(get("redis.url"), "1".into(), "a text is taken as it is");
        assert_eq!(get("gate.stream_routes"), vec!["a,b", "c"].into());
        assert_eq!(layers.get("gate.listen").unwrap().1, &SettingOrigin::Flag("--listen".into()));
        assert!(layered(&["--total", "many"]).unwrap_err().contains("u32"));
        assert!(layered(&[]).unwrap().get("admin.insecure").is_none());
    }

    #[test]
    fn the_help_is_the_description_with_the_default() {
        let command = SettingFlags::<GateSettings>::augment_args(Command::new("gate"));
        let help = |path: &str| {
            let arg = command.get_arguments().find(|arg| arg.get_id() == path).unwrap();
            [arg.get_help(), arg.get_long_help()].map(|text| text.unwrap().to_string())
        };
        assert_eq!(
            help("gate.listen"),
            [
                "Address for clients [default: 127.0.0.1:8080]",
                "Address for clients. Others can't connect. [default: 127.0.0.1:8080]"
            ]
        );
        assert_eq!(help("gate.stream_routes")[0], "Routes of streams; may be repeated [default: none]");
        assert_eq!(help("admin.insecure")[0], "Allows any address");
    }

    #[test]
    fn values_of_flags_are_not_printed() {
        let mut flags = SettingFlags::<GateSettings>::default();
        flags.set("--redis", "redis://:s3cr3t@h");
        assert_eq!(format!("{flags:?}"), r#"["--redis"]"#);
    }
}
