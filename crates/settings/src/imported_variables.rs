//! Environment variables of other programs that a command accepts, so that users can switch.
//!
//! Invariant: such a variable overrides the file, and a variable of the program itself overrides
//! it. A variable without effect is reported with the reason. No value is ever printed.
//! Enforced by: declarations and [`ImportSource`] only list names; [`import`] alone applies them.

use std::fmt;

use crate::command_settings::CommandDeclaration;
use crate::nearest::{Suggestion, nearest_typo};
use crate::setting::Setting;

/// Another program, or a standard, whose variables a command accepts. Declarations of settings name
/// the variables ([`Setting::import`]).
#[derive(Clone, Copy)]
pub struct ImportSource {
    /// Prefix of its variables. It also identifies the source.
    prefix: &'static str,
    without_effect: &'static [(&'static str, &'static str)],
    why_unknown: Option<&'static str>,
    is_common: fn(&str) -> bool,
    requests_fixed_behavior: fn(&str, &str) -> bool,
    why_unavailable: fn(&Setting) -> Option<String>,
}

impl ImportSource {
    /// Declares a source by the prefix of its variables, such as `STALL_`.
    pub const fn new(prefix: &'static str) -> ImportSource {
        ImportSource {
            prefix,
            without_effect: &[],
            why_unknown: None,
            is_common: |_| false,
            requests_fixed_behavior: |_, _| false,
            why_unavailable: |_| None,
        }
    }

    /// Variables that have no effect, and why. They are reported if they are set.
    pub const fn without_effect(
        mut self,
        variables: &'static [(&'static str, &'static str)],
    ) -> ImportSource {
        self.without_effect = variables;
        self
    }

    /// Reports any other variable with the prefix, with this reason.
    pub const fn report_unknown(mut self, why: &'static str) -> ImportSource {
        self.why_unknown = Some(why);
        self
    }

    /// Whether a variable is common in any environment. If it has an effect, it is not reported.
    pub const fn is_common(mut self, is_common: fn(&str) -> bool) -> ImportSource {
        self.is_common = is_common;
        self
    }

    /// Whether the value of a variable without effect requests what the program does anyway. The
    /// arguments are name and value. It is then not reported.
    pub const fn requests_fixed_behavior(mut self, requests: fn(&str, &str) -> bool) -> ImportSource {
        self.requests_fixed_behavior = requests;
        self
    }

    /// Why this build of the program can't use a setting. A variable that sets only such settings
    /// has no effect, and is reported with the reason.
    pub const fn why_unavailable(mut self, why: fn(&Setting) -> Option<String>) -> ImportSource {
        self.why_unavailable = why;
        self
    }
}

impl fmt::Debug for ImportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImportSource({})", self.prefix)
    }
}

/// Variable of another program in the declaration of a setting.
#[derive(Debug, Clone, Copy)]
pub struct Import {
    pub(crate) source: &'static ImportSource,
    /// Name of the variable.
    pub name: &'static str,
    pub(crate) parser: VariableParser,
    /// Remark for the documentation; may be empty.
    pub remark: &'static str,
}

/// Converts the text of a variable to the text of a setting. Returns `None` if the variable sets
/// nothing. The lookup returns other variables.
pub type VariableParser = fn(&str, &VariableLookup<'_>) -> Result<Option<String>, String>;
/// Returns the value of a variable by its name, if it is set and not empty.
pub type VariableLookup<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// Settings from variables, each with the variable and the text, and the notices for the log.
pub(crate) type ImportedSettings = (Vec<(&'static str, &'static Setting, String)>, Vec<VariableNotice>);
/// Name of a variable that can't be parsed, and the expected format.
pub(crate) type UnreadableVariable = (&'static str, String);

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
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImportedVariable {
    /// Name of the variable.
    pub name: &'static str,
    /// Settings that it sets, each with its declaration of the variable.
    pub settings: Vec<(&'static Setting, &'static Import)>,
}

/// Returns the variables of other programs that a command accepts. Where two set the same setting,
/// the later one overrides the earlier one.
pub(crate) fn imported_variables(command: CommandDeclaration) -> Vec<ImportedVariable> {
    let mut variables: Vec<ImportedVariable> = Vec::new();
    let is_accepted =
        |import: &Import| command.imports.iter().any(|source| source.prefix == import.source.prefix);
    for setting in command.settings() {
        for import in setting.imports().filter(|import| is_accepted(import)) {
            match variables.iter_mut().find(|variable| variable.name == import.name) {
                Some(variable) => variable.settings.push((setting, import)),
                None => {
                    variables.push(ImportedVariable { name: import.name, settings: vec![(setting, import)] });
                }
            }
        }
    }
    variables
}

/// Returns the settings from variables of other programs, in the order in which later ones override
/// earlier ones, and the notices. An empty variable is ignored.
///
/// # Errors
/// Fails if a value can't be parsed.
pub(crate) fn import(
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
    for ImportedVariable { name, settings: targets } in &known {
        let Some(text) = lookup(name) else { continue };
        let why_unavailable =
            targets.iter().map(|(setting, import)| (import.source.why_unavailable)(setting));
        // Such a variable is often set for all programs of a cluster, so it must not prevent the
        // start.
        if let Some(why) =
            why_unavailable.collect::<Option<Vec<_>>>().and_then(|whys| whys.into_iter().next())
        {
            notice(name, vec![], Some(why));
            continue;
        }
        let mut set = Vec::new();
        for (setting, import) in targets {
            let Some(text) = (import.parser)(text, &lookup).map_err(|why| (*name, why))? else { continue };
            settings.push((*name, *setting, text));
            set.push(setting.path);
        }
        let is_common = targets.iter().any(|(_, import)| (import.source.is_common)(name));
        if !is_common && !set.is_empty() {
            notice(name, set, None);
        }
    }
    let without_effect = || {
        let sources = command.imports.iter();
        sources.flat_map(|source| source.without_effect.iter().map(move |variable| (source, variable)))
    };
    for (source, (name, why)) in without_effect() {
        if lookup(name).is_some_and(|text| !(source.requests_fixed_behavior)(name, text)) {
            notice(name, vec![], Some((*why).to_owned()));
        }
    }
    let names = || {
        let mapped = known.iter().map(|variable| variable.name);
        mapped.chain(without_effect().map(|(_, (name, _))| *name))
    };
    let reporting = || command.imports.iter().filter_map(|source| Some((source.prefix, source.why_unknown?)));
    for (name, text) in variables {
        let source = reporting().find(|(prefix, _)| name.starts_with(prefix));
        if let Some((_, why)) = source
            && !text.is_empty()
            && names().all(|known| known != name)
        {
            let suggestion = Suggestion(nearest_typo(name, names()));
            notice(name, vec![], Some(format!("{why}{suggestion}")));
        }
    }
    Ok((settings, notices))
}

/// Returns the text unchanged.
///
/// # Errors
/// Never fails.
pub fn verbatim(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    Ok(Some(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SettingLayers;
    use crate::test_program::{AuditSettings, GateSettings};

    fn layered(command: CommandDeclaration, variables: &[(&str, &str)]) -> SettingLayers {
        let mut layers = SettingLayers::new(command);
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        layers.environment(variables).unwrap();
        layers
    }

    const GATE: CommandDeclaration = CommandDeclaration::of::<GateSettings>();

    /// Returns the notices, each as its variable, its settings and its reason.
    fn notices(layers: &SettingLayers) -> Vec<(&str, &[&str], Option<&str>)> {
        let notices = layers.notices().iter();
        notices.map(|notice| (&*notice.variable, &*notice.settings, notice.why_not.as_deref())).collect()
    }

    #[test]
    fn a_variable_of_another_program_overrides_the_file_and_our_own_overrides_it() {
        let mut layers = SettingLayers::new(GATE);
        layers.text("[admission]\ntotal = 1\n", std::path::Path::new("gate.toml")).unwrap();
        layers.environment([("STALL_STREAMS".to_owned(), "2".to_owned())]).unwrap();
        assert_eq!(layers.read::<u32, _>("admission.total").unwrap(), 2);
        assert_eq!(notices(&layers), [("STALL_STREAMS", &["admission.total"][..], None)]);
        let both = layered(GATE, &[("SHOP_ADMISSION_TOTAL", "3"), ("STALL_STREAMS", "2")]);
        assert_eq!(both.read::<u32, _>("admission.total").unwrap(), 3);
        let audit = layered(CommandDeclaration::of::<AuditSettings>(), &[("STALL_STREAMS", "2")]);
        assert_eq!(audit.read::<u32, _>("admission.total").unwrap(), 10_000, "it accepts no source");
        assert!(audit.notices().is_empty());
    }

    #[test]
    fn variables_without_effect_are_reported_with_the_reason() {
        let layers = layered(
            GATE,
            &[("STALL_TOLL", "5"), ("STALL_THREADS", "4"), ("STALL_STREAM", "6"), ("STALL_NEW", "s3cr3t")],
        );
        let unknown = "it is not among the variables of Stall that Shop maps";
        let typo = format!("{unknown} (did you mean `STALL_STREAMS`?)");
        assert_eq!(
            notices(&layers),
            [
                ("STALL_TOLL", &[][..], Some("this build has no tolls")),
                ("STALL_THREADS", &[], Some("the number of threads is fixed")),
                ("STALL_STREAM", &[], Some(typo.as_str())),
                ("STALL_NEW", &[], Some(unknown)),
            ]
        );
        assert!(!format!("{:?}", layers.notices()).contains("s3cr3t"));
        assert_eq!(layers.read::<f64, _>("gate.toll_percent").unwrap(), 7.5);
        let silent = [("STALL_THREADS", "0"), ("DATABASE_URL", "redis://h"), ("STALL_NEW", "")];
        assert!(layered(GATE, &silent).notices().is_empty());
    }
}
