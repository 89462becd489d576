//! The reference of settings and flags, `docs/config.md`, made of the code: keys as serde knows them, their meaning as the file's
//! types say it, defaults as the examples have them, flags as clap has them.

use std::collections::BTreeMap;

use clap::{Arg, Command, CommandFactory as _, Parser as _};
use toml::Table;

use super::effective::{defaults, written};
use super::file::{GateFile, Section, Shape};
use super::layers::{Layers, variable};
use super::origin::Origin;
use super::page;
use super::serve_file::ServeFile;
use super::{GATE_EXAMPLE, SERVE_EXAMPLE};
use crate::cli::{Cli, Command as Chosen};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
const SOURCES: [&str; 2] = [include_str!("file.rs"), include_str!("serve_file.rs")];

/// What a field's type says about it, and its comment.
#[derive(Debug, Clone)]
struct Field {
    kind: &'static str,
    meaning: String,
}

/// `Struct` → what its comment says, and its fields by name.
fn structs() -> BTreeMap<String, (String, BTreeMap<String, Field>)> {
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
            fields.insert(name.to_owned(), Field { kind: kind_of(kind.trim_end_matches(',')), meaning });
        } else if !line.starts_with("#[") {
            comment.clear();
        }
    }
    structs
}

fn kind_of(rust: &str) -> &'static str {
    match rust.strip_prefix("Option<").and_then(|rest| rest.strip_suffix('>')).unwrap_or(rust) {
        "String" => "text",
        "Hidden" => "text, secret",
        "PathBuf" => "path",
        "bool" => "true or false",
        "u8" | "u16" | "u32" | "u64" | "usize" | "f64" => "number",
        "Vec<String>" => "list",
        "Vec<Hidden>" => "list, secret",
        "Vec<PathBuf>" => "list of paths",
        "BTreeMap<String, u8>" => "table of numbers",
        other if other.ends_with("Section") => "section",
        other => panic!("{other}: how is that written?"),
    }
}

/// The struct of a section, as the whole file's type names it.
fn struct_of(section: &str) -> String {
    let line = SOURCES.iter().flat_map(|source| source.lines()).find_map(|line| {
        line.trim().strip_prefix(&format!("pub(crate) {section}: "))?.strip_suffix(',').map(str::to_owned)
    });
    line.unwrap_or_else(|| panic!("{section} has no type"))
}

/// `section.key` → the flag of a command that sets it, found by trying.
fn flags_of(command: &'static str) -> BTreeMap<String, String> {
    let cli = Cli::command();
    let args = cli.find_subcommand(command).unwrap().get_arguments();
    let mut found = BTreeMap::new();
    for flag in args.filter_map(Arg::get_long) {
        let said = format!("--{flag}");
        let with_value = ["forebay", command, &said, "1"];
        let parsed = Cli::try_parse_from(with_value).or_else(|_| Cli::try_parse_from(&with_value[..3]));
        let Ok(Cli { command }) = parsed else { continue };
        let keys = match command {
            Chosen::Serve(args) => {
                let mut layers = Layers::default();
                args.apply(&mut layers);
                set_by_flag::<ServeFile>(&layers)
            }
            Chosen::Gate(args) => {
                let mut layers = Layers::default();
                args.apply(&mut layers);
                set_by_flag::<GateFile>(&layers)
            }
            other => panic!("{other:?} has no settings"),
        };
        found.extend(keys.into_iter().map(|key| (key, said.clone())));
    }
    found
}

fn set_by_flag<F: Shape>(layers: &Layers<F>) -> Vec<String> {
    let sections = F::sections().into_iter();
    let keys = sections.flat_map(|(section, keys)| keys.iter().map(move |key| (section, *key)));
    keys.filter(|(section, key)| matches!(layers.get(section, key), Some((_, Origin::Flag(_)))))
        .map(|(section, key)| format!("{section}.{key}"))
        .collect()
}

/// One command's settings, as far as they are its own or as it has them.
struct Settings {
    sections: Vec<Section>,
    defaults: Table,
    flags: BTreeMap<String, String>,
}

impl Settings {
    fn of<F: Shape>(command: &'static str, example: &str) -> Settings {
        Settings { sections: F::sections(), defaults: defaults(example, vec![]), flags: flags_of(command) }
    }

    fn default(&self, section: &str, key: &str) -> String {
        let value = self.defaults.get(section).and_then(|keys| keys.get(key));
        value.map_or_else(|| "none".to_owned(), |value| format!("`{}`", written(value)))
    }

    fn flag(&self, path: &str) -> Option<&String> {
        self.flags.get(path)
    }
}

/// The tables of all sections: of the server, of the gate, and those of both.
fn settings() -> String {
    let serve = Settings::of::<ServeFile>("serve", SERVE_EXAMPLE);
    let gate = Settings::of::<GateFile>("gate", GATE_EXAMPLE);
    let structs = structs();
    let mut out = String::new();
    let of_both = |section: &str| gate.sections.iter().any(|(other, _)| *other == section);
    let own = serve
        .sections
        .iter()
        .filter(|(section, _)| !of_both(section))
        .map(|section| (section, "`forebay serve`"));
    let gates = gate.sections.iter().take(1).map(|section| (section, "`forebay gate`"));
    let both = serve.sections.iter().filter(|(section, _)| of_both(section)).map(|section| (section, "both"));
    for ((section, keys), whose) in own.chain(gates).chain(both) {
        let (about, fields) = &structs[&struct_of(section)];
        out += &format!(
            "### [{section}]\nOf {whose}. {about}\n\n| key, variable, flag | kind | default | meaning |\n|---|---|---|---|\n"
        );
        for key in *keys {
            let path = format!("{section}.{key}");
            let field = fields.get(*key).unwrap_or_else(|| panic!("{path} has no comment"));
            let (ours, theirs) = (serve.default(section, key), gate.default(section, key));
            let default = match whose {
                "`forebay gate`" => theirs,
                "both" if ours != theirs => format!("{ours}; gate {theirs}"),
                _ => ours,
            };
            let flag = serve.flag(&path).or_else(|| gate.flag(&path));
            let flag = flag.map(|flag| format!("<br>`{flag}`")).unwrap_or_default();
            let Field { kind, meaning } = field;
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

/// Every command and its flags, as `--help` has them.
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

/// One test for both parts: written anew, they are in one file.
#[test]
fn the_reference_is_what_the_code_takes_and_what_help_says() {
    page::holds(PAGE, "settings", &settings());
    page::holds(PAGE, "commands", &commands());
}

#[test]
fn every_flag_of_a_setting_is_in_the_reference() {
    let text = settings();
    for command in ["serve", "gate"] {
        let cli = Cli::command();
        let flags = cli.find_subcommand(command).unwrap().get_arguments().filter_map(Arg::get_long);
        for flag in flags.filter(|flag| !matches!(*flag, "help" | "config" | "example-config")) {
            assert!(text.contains(&format!("<br>`--{flag}`")), "--{flag} of {command} sets nothing");
        }
    }
}
