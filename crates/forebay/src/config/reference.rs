//! Generator and test of the reference `docs/config.md`, and of the table in `docs/operations.md`
//! of settings that SIGHUP applies. All of it comes from the declarations of the settings and from
//! clap.

use clap::{Arg, Command, CommandFactory as _};
use forebay_settings::{CommandDeclaration, Reload, Section, reference_table};

use super::generated_page;
use super::{GateSettings, SAME_METHODS, ServeSettings};
use crate::cli::Cli;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
const OPERATIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
const SERVE: CommandDeclaration = CommandDeclaration::of::<ServeSettings>();
const GATE: CommandDeclaration = CommandDeclaration::of::<GateSettings>();

/// Returns whether a command has a section.
fn has(command: CommandDeclaration, section: &Section) -> bool {
    command.sections.iter().any(|other| other.name == section.name)
}

/// Returns the sections of the server, of the gate, and of both, with the commands of each.
fn sections() -> Vec<(&'static Section, &'static str)> {
    let serve = SERVE.sections.iter().filter(|section| !has(GATE, section));
    let gate = GATE.sections.iter().filter(|section| !has(SERVE, section));
    let both = SERVE.sections.iter().filter(|section| has(GATE, section));
    let serve = serve.map(|section| (section, "`forebay serve`"));
    let gate = gate.map(|section| (section, "`forebay gate`"));
    serve.chain(gate).chain(both.map(|section| (section, "both commands"))).collect()
}

/// Returns the tables of all sections.
fn settings() -> String {
    let mut out = String::new();
    for (section, whose) in sections() {
        let table = reference_table(section, &[SERVE, GATE]);
        out += &format!("### [{}]\nFor {whose}. {}\n\n{table}\n", section.name, section.description());
    }
    out
}

/// Returns the rows of settings that SIGHUP applies.
fn reloads() -> String {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for setting in sections().iter().flat_map(|(section, _)| section.settings) {
        let effect = match setting.reload {
            Reload::NeedsRestart => continue,
            Reload::Applied(when) => when.to_owned(),
            Reload::AppliedUnlessRemoved => "with the next request; to remove it, restart".to_owned(),
            Reload::AppliedIf(SAME_METHODS) => {
                "with the next request, unless a method of identification is added or removed".to_owned()
            }
            Reload::AppliedIf(_) => {
                "with the next request, with the content of the files, unless the method is \
                                     added or removed"
                    .to_owned()
            }
        };
        let path = format!("`{}`", setting.path);
        match rows.iter_mut().find(|(known, _)| *known == effect) {
            Some((_, paths)) => paths.push(path),
            None => rows.push((effect, vec![path])),
        }
    }
    let rows = rows.iter().map(|(effect, paths)| format!("| {} | {effect} |\n", paths.join(", ")));
    format!("| setting | a change takes effect |\n|---|---|\n{}", rows.collect::<String>())
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

/// All sections are in one test, because they rewrite the same file.
#[test]
fn the_reference_of_settings_and_flags_is_up_to_date() {
    generated_page::assert_section(PAGE, "settings", &settings());
    generated_page::assert_section(PAGE, "commands", &commands());
    generated_page::assert_section(PAGE, "dsql", &super::dsql_variables_tests::table());
}

#[test]
fn the_table_of_reloads_is_up_to_date() {
    generated_page::assert_section(OPERATIONS, "reloads", &reloads());
}

#[test]
fn every_setting_has_a_description_and_an_example_or_a_default() {
    for setting in sections().iter().flat_map(|(section, _)| section.settings) {
        let description = setting.description();
        assert!(description.ends_with('.') && description.len() > 20, "{}: {description}", setting.path);
        let has_value = setting.default_of("serve").is_some();
        assert_ne!(has_value, setting.example_toml().is_some(), "{}", setting.path);
    }
}
