//! Environment variables of other programs that Forebay accepts, and their settings.
//!
//! Invariant: such a variable overrides the file, and a `FOREBAY_` variable overrides it. A
//! variable without effect is reported with the reason. No value is ever printed.
//! Enforced by: the tables (`electric_variables.rs`, `opentelemetry_variables.rs`) only map names
//! to settings; [`import`] alone applies them.

use Counterpart::{Nothing, Settings, Similar};

use super::otel_config::WITHOUT_OTEL;

pub(super) const DATABASE_URL: &str = "DATABASE_URL";
/// Prefix of OpenTelemetry's variables.
const OPENTELEMETRY: &str = "OTEL_";
/// Values that request the behavior that Forebay always has. They need no notice.
const FIXED_BEHAVIOR_VALUES: &[&str] = &["false", "0", "file", "fast_file", "http/protobuf"];

/// A variable of another program.
pub(super) struct KnownVariable {
    pub(super) name: &'static str,
    pub(super) counterpart: Counterpart,
    /// Remark for the documentation, or the reason why the variable has no effect; may be empty.
    pub(super) remark: &'static str,
}

/// Settings that correspond to a variable.
pub(super) enum Counterpart {
    /// These settings (`section.key`). The parser converts the text of the variable to the text of
    /// the setting.
    Settings(&'static [(&'static str, VariableParser)]),
    /// A similar setting, but the value can't be converted automatically.
    Similar(&'static str),
    /// No setting.
    Nothing,
}

/// Converts the text of a variable to the text of a setting. Returns `None` if the variable sets
/// nothing. The lookup returns other variables.
pub(super) type VariableParser = fn(&str, &VariableLookup<'_>) -> Result<Option<String>, String>;
/// Returns the value of a variable by its name, if it is set and not empty.
pub(super) type VariableLookup<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// A setting that comes from a variable of another program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImportedSetting {
    pub(super) variable: &'static str,
    pub(super) section: &'static str,
    pub(super) key: &'static str,
    pub(super) text: String,
}

/// The settings, and the notices for the log.
pub(crate) type ImportedSettings = (Vec<ImportedSetting>, Vec<VariableNotice>);
/// Name of a variable that can't be parsed, and the expected format.
pub(crate) type UnreadableVariable = (&'static str, String);

/// A variable of another program that is set. It is logged at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableNotice {
    /// Name of the variable.
    pub variable: &'static str,
    /// Settings that it sets.
    pub settings: Vec<&'static str>,
    /// Reason why it has no effect; `None` if it has one.
    pub why_not: Option<String>,
}

/// Returns the settings from the variables of these tables, in the order in which later ones
/// override earlier ones, and the notices.
///
/// # Errors
/// Fails if a value can't be parsed.
pub(super) fn import(
    variables: &[(String, String)],
    tables: &[&[KnownVariable]],
) -> Result<ImportedSettings, UnreadableVariable> {
    let lookup = |name: &str| {
        let found = variables.iter().find(|(given, text)| given == name && !text.is_empty());
        found.map(|(_, text)| text.as_str())
    };
    let (mut settings, mut notices) = (Vec::new(), Vec::new());
    for KnownVariable { name, counterpart, remark } in tables.iter().copied().flatten() {
        let Some(text) = lookup(name) else { continue };
        let notice = |settings, why_not| VariableNotice { variable: name, settings, why_not };
        match counterpart {
            // Such a variable is often set for all programs of a cluster, so it must not prevent
            // the start.
            Settings([(path, _)]) if !cfg!(feature = "otel") && path.starts_with("otel.") => {
                notices.push(notice(vec![], Some(format!("this program {WITHOUT_OTEL}"))));
            }
            Settings(keys) => {
                let mut set_keys = Vec::new();
                for (path, parser) in *keys {
                    let Some(text) = parser(text, &lookup).map_err(|why| (*name, why))? else { continue };
                    let (section, key) = path.split_once('.').unwrap_or((path, ""));
                    settings.push(ImportedSetting { variable: name, section, key, text });
                    set_keys.push(*path);
                }
                // These variables are common in any environment, so they are not logged.
                if *name != DATABASE_URL && !name.starts_with(OPENTELEMETRY) && !set_keys.is_empty() {
                    notices.push(notice(set_keys, None));
                }
            }
            Similar(path) => {
                notices.push(notice(vec![], Some(format!("{remark}; its counterpart is {path}"))))
            }
            Nothing if FIXED_BEHAVIOR_VALUES.contains(&text.to_lowercase().as_str()) => {}
            Nothing => notices.push(notice(vec![], Some((*remark).to_owned()))),
        }
    }
    Ok((settings, notices))
}

/// Creates an entry of a table.
pub(super) const fn known_variable(
    name: &'static str,
    counterpart: Counterpart,
    remark: &'static str,
) -> KnownVariable {
    KnownVariable { name, counterpart, remark }
}

/// Returns the text unchanged.
pub(super) fn text(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(text.to_owned()))
}
