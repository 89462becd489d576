//! Environment variables of other programs that Forebay accepts: those of Electric and of the DSQL
//! plugin for `forebay serve`, and those of OpenTelemetry.
//!
//! Invariant: such a variable overrides the file, and a `FOREBAY_` variable overrides it. A
//! variable without effect is reported with the reason. No value is ever printed.
//! Enforced by: the declarations of the settings (`sections/`), `electric_variables.rs` and
//! `dsql_variables.rs` only list names; [`import`] alone applies them.

use super::command_settings::CommandDeclaration;
use super::dsql_variables::{DSQL, DSQL_WITHOUT_EFFECT, RESERVOIR_ENABLED};
use super::electric_variables::{ELECTRIC, WITHOUT_EFFECT};
use super::nearest::{Suggestion, nearest_typo};
use super::otel_config::WITHOUT_OTEL;
use super::setting::Setting;

pub(super) const DATABASE_URL: &str = "DATABASE_URL";
/// Prefix of OpenTelemetry's variables.
const OPENTELEMETRY: &str = "OTEL_";
/// OpenTelemetry's variables that have no effect, and why.
const OPENTELEMETRY_WITHOUT_EFFECT: &[(&str, &str)] =
    &[("OTEL_EXPORTER_OTLP_PROTOCOL", "only `http/protobuf` is supported")];
/// Prefixes of programs, and why another variable with the prefix has no effect.
const PREFIXES: &[(&str, &str)] = &[
    (ELECTRIC, "it is not among the variables of Electric that Forebay maps"),
    (DSQL, "it is not among the variables of the DSQL plugin that Forebay maps"),
];
/// Values that request the behavior that Forebay always has. They need no notice.
const FIXED_BEHAVIOR_VALUES: &[&str] = &["false", "0", "file", "fast_file", "http/protobuf"];

/// Variable of another program in the declaration of a setting.
#[derive(Clone, Copy)]
pub(super) struct Import {
    pub(super) name: &'static str,
    pub(super) parser: VariableParser,
    /// Remark for the documentation; may be empty.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test writes the documentation"))]
    pub(super) remark: &'static str,
}

/// Converts the text of a variable to the text of a setting. Returns `None` if the variable sets
/// nothing. The lookup returns other variables.
pub(super) type VariableParser = fn(&str, &VariableLookup<'_>) -> Result<Option<String>, String>;
/// Returns the value of a variable by its name, if it is set and not empty.
pub(super) type VariableLookup<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// Settings from variables, each with the variable and the text, and the notices for the log.
pub(super) type ImportedSettings = (Vec<(&'static str, &'static Setting, String)>, Vec<VariableNotice>);
/// Name of a variable that can't be parsed, and the expected format.
pub(super) type UnreadableVariable = (&'static str, String);

/// A variable of another program that is set. It is logged at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableNotice {
    /// Name of the variable.
    pub variable: String,
    /// Settings that it sets.
    pub settings: Vec<&'static str>,
    /// Reason why it has no effect; `None` if it has one.
    pub why_not: Option<String>,
}

/// Variable of another program, with all settings that it sets.
pub(super) struct ImportedVariable {
    pub(super) name: &'static str,
    pub(super) settings: Vec<(&'static Setting, VariableParser)>,
}

/// Returns the variables of other programs that a command accepts. Where two set the same setting,
/// the later one overrides the earlier one.
pub(super) fn imported_variables(command: CommandDeclaration) -> Vec<ImportedVariable> {
    let mut variables: Vec<ImportedVariable> = Vec::new();
    for setting in command.settings() {
        for Import { name, parser, .. } in setting.imports() {
            if !accepts_electric(command) && !name.starts_with(OPENTELEMETRY) {
                continue;
            }
            match variables.iter_mut().find(|variable| variable.name == *name) {
                Some(variable) => variable.settings.push((setting, *parser)),
                None => variables.push(ImportedVariable { name, settings: vec![(setting, *parser)] }),
            }
        }
    }
    variables
}

/// Returns whether a command accepts the variables of Electric and of the DSQL plugin.
fn accepts_electric(command: CommandDeclaration) -> bool {
    command.name == "serve"
}

/// Returns the settings from variables of other programs, in the order in which later ones override
/// earlier ones, and the notices. An empty variable is ignored.
///
/// # Errors
/// Fails if a value can't be parsed.
pub(super) fn import(
    variables: &[(String, String)],
    command: CommandDeclaration,
) -> Result<ImportedSettings, UnreadableVariable> {
    let lookup = |name: &str| {
        let found = variables.iter().find(|(given, text)| given == name && !text.is_empty());
        found.map(|(_, text)| text.as_str())
    };
    let (mut settings, mut notices) = (Vec::new(), Vec::new());
    let mut notice = |name: &str, settings, why_not| {
        notices.push(VariableNotice { variable: name.to_owned(), settings, why_not });
    };
    let known = imported_variables(command);
    for ImportedVariable { name, settings: targets, .. } in &known {
        let Some(text) = lookup(name) else { continue };
        let is_of_otel = targets.iter().all(|(setting, _)| setting.path.starts_with("otel."));
        if is_of_otel && !cfg!(feature = "otel") {
            // Such a variable is often set for all programs of a cluster, so it must not prevent
            // the start.
            notice(name, vec![], Some(format!("this program {WITHOUT_OTEL}")));
            continue;
        }
        let mut set = Vec::new();
        for (setting, parser) in targets {
            let Some(text) = parser(text, &lookup).map_err(|why| (*name, why))? else { continue };
            settings.push((*name, *setting, text));
            set.push(setting.path);
        }
        // These variables are common in any environment, so they are not logged.
        if *name != DATABASE_URL && !name.starts_with(OPENTELEMETRY) && !set.is_empty() {
            notice(name, set, None);
        }
    }
    let (electric, dsql) =
        if accepts_electric(command) { (WITHOUT_EFFECT, DSQL_WITHOUT_EFFECT) } else { (&[][..], &[][..]) };
    let without_effect = || OPENTELEMETRY_WITHOUT_EFFECT.iter().chain(electric).chain(dsql);
    for (name, why) in without_effect() {
        if lookup(name).is_some_and(|text| !requests_fixed_behavior(name, text)) {
            notice(name, vec![], Some((*why).to_owned()));
        }
    }
    let names = || {
        let mapped = known.iter().map(|variable| variable.name);
        mapped.chain(without_effect().map(|(name, _)| *name))
    };
    for (name, text) in variables.iter().filter(|_| accepts_electric(command)) {
        let prefix = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
        if let Some((_, unknown)) = prefix
            && !text.is_empty()
            && names().all(|known| known != name)
        {
            let suggestion = Suggestion(nearest_typo(name, names()));
            notice(name, vec![], Some(format!("{unknown}{suggestion}")));
        }
    }
    Ok((settings, notices))
}

/// Returns whether a value of a variable without effect requests what Forebay does anyway.
fn requests_fixed_behavior(name: &str, text: &str) -> bool {
    match name {
        RESERVOIR_ENABLED => matches!(text.to_lowercase().as_str(), "true" | "1"),
        _ => FIXED_BEHAVIOR_VALUES.contains(&text.to_lowercase().as_str()),
    }
}

/// Returns the text unchanged.
pub(super) fn text(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
#[cfg(feature = "otel")]
mod tests {
    use crate::cli::GateArgs;
    use crate::config::{GateConfig, load_gate};

    fn with(variables: &[(&str, &str)]) -> GateConfig {
        let upstream = [("FOREBAY_GATE_UPSTREAM", "http://127.0.0.1:8000")];
        let all = upstream.iter().chain(variables).map(|(name, value)| ((*name).into(), (*value).into()));
        load_gate(GateArgs::default(), all).unwrap()
    }

    #[test]
    fn opentelemetry_variables_are_settings_and_forebay_variables_override_them() {
        let theirs = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.test:4318"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=s3cr3t"),
            ("OTEL_SERVICE_NAME", "edge"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ];
        let config = with(&theirs);
        assert!(config.variable_notices.is_empty(), "{:?}", config.variable_notices);
        let otel = config.otel.unwrap();
        assert_eq!(otel.endpoint.to_string(), "http://collector.test:4318");
        assert_eq!((otel.headers.len(), otel.service_name.as_str()), (1, "edge"));
        assert!(!format!("{otel:?}").contains("s3cr3t"));
        let ours = ("FOREBAY_OTEL_ENDPOINT", "http://other.test:4318");
        let both = with(&[theirs[0], ours]).otel.unwrap();
        assert_eq!(both.endpoint.to_string(), "http://other.test:4318");
        let grpc = with(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
        assert_eq!(grpc.variable_notices[0].variable, "OTEL_EXPORTER_OTLP_PROTOCOL");
    }
}
