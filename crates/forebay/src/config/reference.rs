//! Generator and test of the reference `docs/config.md`.
//!
//! Keys come from serde, meanings from the comments of the file types, defaults from the examples,
//! flags from clap.

use std::collections::BTreeMap;

use clap::{Arg, Command, CommandFactory as _, Parser as _};
use toml::Table;

use super::effective_settings::{defaults, to_toml};
use super::gate_file::GateFile;
use super::generated_page;
use super::serve_file::ServeFile;
use super::setting_layers::{SettingLayers, variable};
use super::setting_origin::SettingOrigin;
use super::settings_file::{SectionKeys, SettingsFile};
use super::{GATE_EXAMPLE, SERVE_EXAMPLE};
use crate::cli::{Cli, Command as ChosenCommand};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
const SOURCES: [&str; 3] =
    [include_str!("settings_file.rs"), include_str!("gate_file.rs"), include_str!("serve_file.rs")];

/// Kind and comment of a field.
#[derive(Debug, Clone)]
struct DocumentedField {
    kind: &'static str,
    meaning: String,
}

/// Returns the comment and the fields of each struct, by its name.
fn structs() -> BTreeMap<String, (String, BTreeMap<String, DocumentedField>)> {
    let mut structs = BTreeMap::new();
    let (mut comment, mut current) = (Vec::new(), None::<String>);
    for line in SOURCES.iter().flat_map(|source| source.lines()) {
        let line = line.trim();
        if let Some(words) = line.strip_prefix("/// ") {
            comment.push(words.to_owned());
        } else if let Some(name) =
            line.strip_prefix("pub(crate) struct ").and_then(|rest| rest.strip_suffix(" {"))
        {
            structs.insert(name.to_owned(), (std::mem::take(&mut comment).join(" "), BTreeMap::new()));
            current = Some(name.to_owned());
        } else if let Some((name, kind)) =
            line.strip_prefix("pub(crate) ").and_then(|rest| rest.split_once(": "))
            && let Some((_, fields)) = current.as_ref().and_then(|current| structs.get_mut(current))
        {
            let meaning = std::mem::take(&mut comment).join(" ");
            fields.insert(
                name.to_owned(),
                DocumentedField { kind: kind_of(kind.trim_end_matches(',')), meaning },
            );
        } else if !line.starts_with("#[") {
            comment.clear();
        }
    }
    structs
}

fn kind_of(rust: &str) -> &'static str {
    match rust.strip_prefix("Option<").and_then(|rest| rest.strip_suffix('>')).unwrap_or(rust) {
        "String" => "text",
        "SecretText" => "text, secret",
        "PathBuf" => "path",
        "bool" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" | "f64" => "number",
        "Vec<String>" => "list",
        "Vec<SecretText>" => "list, secret",
        "Vec<PathBuf>" => "list of paths",
        "BTreeMap<String, u8>" => "table of numbers",
        other if other.ends_with("Section") => "section",
        other => panic!("{other}: unknown type of a setting"),
    }
}

/// Returns the name of a section's struct, from the type of the whole file.
fn struct_of(section: &str) -> String {
    let line = SOURCES.iter().flat_map(|source| source.lines()).find_map(|line| {
        line.trim().strip_prefix(&format!("pub(crate) {section}: "))?.strip_suffix(',').map(str::to_owned)
    });
    line.unwrap_or_else(|| panic!("{section} has no type"))
}

/// Returns the flag of each `section.key`. Each flag is parsed to find the key that it sets.
fn flags_of(command: &'static str) -> BTreeMap<String, String> {
    let cli = Cli::command();
    let args = cli.find_subcommand(command).unwrap().get_arguments();
    let mut found = BTreeMap::new();
    for flag in args.filter_map(Arg::get_long) {
        let long = format!("--{flag}");
        let with_value = ["forebay", command, &long, "1"];
        let parsed = Cli::try_parse_from(with_value).or_else(|_| Cli::try_parse_from(&with_value[..3]));
        let Ok(Cli { command }) = parsed else { continue };
        let keys = match command {
            ChosenCommand::Serve(args) => {
                let mut layers = SettingLayers::default();
                args.apply(&mut layers);
                set_by_flag::<ServeFile>(&layers)
            }
            ChosenCommand::Gate(args) => {
                let mut layers = SettingLayers::default();
                args.apply(&mut layers);
                set_by_flag::<GateFile>(&layers)
            }
            other => panic!("{other:?} has no settings"),
        };
        found.extend(keys.into_iter().map(|key| (key, long.clone())));
    }
    found
}

fn set_by_flag<F: SettingsFile>(layers: &SettingLayers<F>) -> Vec<String> {
    let sections = F::sections().into_iter();
    let keys = sections.flat_map(|(section, keys)| keys.iter().map(move |key| (section, *key)));
    keys.filter(|(section, key)| matches!(layers.get(section, key), Some((_, SettingOrigin::Flag(_)))))
        .map(|(section, key)| format!("{section}.{key}"))
        .collect()
}

/// Sections, defaults and flags of one command.
struct CommandSettings {
    sections: Vec<SectionKeys>,
    defaults: Table,
    flags: BTreeMap<String, String>,
}

impl CommandSettings {
    fn of<F: SettingsFile>(command: &'static str, example: &str) -> CommandSettings {
        CommandSettings {
            sections: F::sections(),
            defaults: defaults(example, vec![]),
            flags: flags_of(command),
        }
    }

    fn default(&self, section: &str, key: &str) -> String {
        let value = self.defaults.get(section).and_then(|keys| keys.get(key));
        value.map_or_else(|| "none".to_owned(), |value| format!("`{}`", to_toml(value)))
    }

    fn flag(&self, path: &str) -> Option<&String> {
        self.flags.get(path)
    }
}

/// Returns the tables of all sections: those of the server, of the gate, and of both.
fn settings() -> String {
    let serve = CommandSettings::of::<ServeFile>("serve", SERVE_EXAMPLE);
    let gate = CommandSettings::of::<GateFile>("gate", GATE_EXAMPLE);
    let structs = structs();
    let mut out = String::new();
    let is_common = |section: &str| gate.sections.iter().any(|(other, _)| *other == section);
    let own = serve
        .sections
        .iter()
        .filter(|(section, _)| !is_common(section))
        .map(|section| (section, "`forebay serve`"));
    let gates = gate.sections.iter().take(1).map(|section| (section, "`forebay gate`"));
    let both = serve
        .sections
        .iter()
        .filter(|(section, _)| is_common(section))
        .map(|section| (section, "both commands"));
    for ((section, keys), whose) in own.chain(gates).chain(both) {
        let (about, fields) = &structs[&struct_of(section)];
        out += &format!(
            "### [{section}]\nFor {whose}. {about}\n\n| key, variable, flag | kind | default | meaning |\n|---|---|---|---|\n"
        );
        for key in *keys {
            let path = format!("{section}.{key}");
            let field = fields.get(*key).unwrap_or_else(|| panic!("{path} has no comment"));
            let (ours, theirs) = (serve.default(section, key), gate.default(section, key));
            let default = match whose {
                "`forebay gate`" => theirs,
                "both commands" if ours != theirs => format!("{ours}; gate {theirs}"),
                _ => ours,
            };
            let flag = serve.flag(&path).or_else(|| gate.flag(&path));
            let flag = flag.map(|flag| format!("<br>`{flag}`")).unwrap_or_default();
            let DocumentedField { kind, meaning } = field;
            assert!(!meaning.is_empty(), "{path} has no comment");
            let meaning = meaning.replace('|', "\\|");
            out += &format!(
                "| `{key}`<br>`{}`{flag} | {kind} | {default} | {meaning} |\n",
                variable(section, key)
            );
        }
        out.push('\n');
    }
    out
}

/// Returns every command with its flags, as in `--help`.
fn commands() -> String {
    let mut out = String::new();
    let cli = Cli::command();
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        out += &format!("### forebay {}\n{}.\n\n", command.get_name(), about(command));
        if command.get_name() == "config" {
            out += "Takes the flags of `forebay serve`, or after `gate` those of `forebay gate`.\n\n";
            continue;
        }
        let shared = command.get_name() == "check";
        if shared {
            out += "Takes the flags of `forebay serve`, and:\n\n";
        }
        let of_serve: Vec<_> =
            cli.find_subcommand("serve").unwrap().get_arguments().map(Arg::get_id).collect();
        let args = command.get_arguments().filter(|arg| arg.get_id() != "help");
        let args: Vec<_> = args.filter(|arg| !shared || !of_serve.contains(&arg.get_id())).collect();
        out += "| flag | meaning |\n|---|---|\n";
        for arg in args {
            out += &format!("| `{}` | {} |\n", usage(arg), help(arg).replace('|', "\\|"));
        }
        out.push('\n');
    }
    out
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn usage(arg: &Arg) -> String {
    let takes_value = arg.get_action().takes_values();
    let value =
        arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    match arg.get_long() {
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    }
}

fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> = arg.get_default_values().iter().filter_map(|value| value.to_str()).collect();
    match default[..] {
        _ if !arg.get_action().takes_values() => help,
        [] => help,
        _ => format!("{help} [default: {}]", default.join(", ")),
    }
}

/// Both sections are in one test, because both rewrite the same file.
#[test]
fn the_reference_of_settings_and_flags_is_up_to_date() {
    generated_page::assert_section(PAGE, "settings", &settings());
    generated_page::assert_section(PAGE, "commands", &commands());
}

#[test]
fn every_flag_that_sets_a_key_is_in_the_reference() {
    let text = settings();
    for command in ["serve", "gate"] {
        let cli = Cli::command();
        let flags = cli.find_subcommand(command).unwrap().get_arguments().filter_map(Arg::get_long);
        for flag in flags.filter(|flag| !matches!(*flag, "help" | "config" | "example-config")) {
            assert!(text.contains(&format!("<br>`--{flag}`")), "--{flag} of {command} sets nothing");
        }
    }
}
