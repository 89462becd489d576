//! Layers of settings: the file, the environment, the flags. Each overrides the previous one.
//!
//! Invariant: an unknown key or variable is an error that names it. Every setting has its origin,
//! which later errors include.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::explicit_settings::ExplicitSettings;
use super::imported_variables::VariableNotice;
use super::nearest::{nearest, nearest_within};
use super::setting_origin::SettingOrigin;
use super::settings_file::SettingsFile;

const PREFIX: &str = "FOREBAY_";
/// Maximum number of wrong letters in a typo. The variables of two commands differ by more, so a
/// variable of another command is not reported as a typo.
const MAX_TYPO_LETTERS: usize = 2;

/// The merged settings of a command with the config file `F`.
#[derive(Clone, Default)]
pub(crate) struct SettingLayers<F> {
    table: Table,
    /// Origins by `section.key`.
    origins: BTreeMap<String, SettingOrigin>,
    /// Notices about variables of other programs.
    notices: Vec<VariableNotice>,
    file_type: PhantomData<F>,
}

/// Omits the values: some are passwords.
impl<F> fmt::Debug for SettingLayers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingLayers").field("origins", &self.origins).finish_non_exhaustive()
    }
}

/// Why a layer can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The file does not exist or can't be read.
    #[error("can't read the config file {}: {source}; check the path after --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is not valid TOML, has an unknown key, or a value of the wrong type.
    #[error("the config file {} is invalid: {what}{}", path.display(), Suggestion(suggestion.as_deref()))]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column and the problem.
        what: String,
        /// Most similar known key.
        suggestion: Option<String>,
    },
    /// A variable with our prefix that names no setting.
    #[error("the environment variable {name} names no setting{}; unset it or correct it", Suggestion(suggestion.as_deref()))]
    UnknownVariable {
        /// Name of the variable.
        name: String,
        /// Most similar known variable.
        suggestion: Option<String>,
    },
    /// The value of a variable has the wrong type for its setting.
    #[error("the environment variable {name} has an invalid value: {why}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// Expected type or format.
        why: String,
    },
}

/// A suggestion in brackets; empty if there is none.
pub(super) struct Suggestion<'a>(pub(super) Option<&'a str>);

impl fmt::Display for Suggestion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |name| write!(f, " (did you mean `{name}`?)"))
    }
}

impl<F: SettingsFile> SettingLayers<F> {
    /// Adds a config file.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), LayerError> {
        let unreadable = |source| LayerError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        self.text(&text, path)
    }

    fn text(&mut self, text: &str, path: &Path) -> Result<(), LayerError> {
        let wrong = |error: toml::de::Error| LayerError::File {
            path: path.to_owned(),
            what: describe_error(text, &error),
            suggestion: suggest_key::<F>(text, &error),
        };
        // Parsed as `F` for the line and column of an error; kept as a table, so that other layers
        // can override it.
        toml::from_str::<F>(text).map_err(wrong)?;
        for (section, keys) in toml::from_str::<Table>(text).map_err(wrong)? {
            let Value::Table(keys) = keys else { continue };
            for (key, value) in keys {
                self.set(&section, &key, value, SettingOrigin::File(path.to_owned()));
            }
        }
        Ok(())
    }

    /// Adds the `FOREBAY_` variables of this command, and those of other programs.
    pub(crate) fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), LayerError> {
        let sections = F::sections();
        let known: Vec<(String, &str, &str)> = sections
            .iter()
            .copied()
            .flat_map(|(section, keys)| keys.iter().map(move |key| (variable(section, key), section, *key)))
            .collect();
        let variables: Vec<(String, String)> = variables.into_iter().collect();
        let services: Vec<String> = variables.iter().filter_map(|(name, _)| service_prefix(name)).collect();
        let is_setting = |name: &str| !services.iter().any(|service| is_service_variable(service, name));
        let variables: Vec<(String, String)> =
            variables.into_iter().filter(|(name, _)| is_setting(name)).collect();
        let wrong = |(name, why): (&str, String)| LayerError::Variable { name: name.to_owned(), why };
        let (imported, notices) = F::import_variables(&variables).map_err(wrong)?;
        for setting in imported {
            self.variable(setting.variable, setting.section, setting.key, &setting.text)?;
        }
        self.notices = notices;
        for (name, text) in variables {
            match known.iter().find(|(own, ..)| *own == name) {
                Some((_, section, key)) => self.variable(&name, section, key, &text)?,
                // A variable with the prefix of one of our sections is ours. Others may belong to
                // another program.
                None if sections.iter().any(|(section, _)| name.starts_with(&variable(section, ""))) => {
                    let suggestion = nearest(&name, known.iter().map(|(own, ..)| own.as_str()));
                    let suggestion = suggestion.map(str::to_owned);
                    return Err(LayerError::UnknownVariable { name, suggestion });
                }
                // Its section may be misspelt.
                None if name.starts_with(PREFIX) => {
                    let near =
                        nearest_within(MAX_TYPO_LETTERS, &name, known.iter().map(|(own, ..)| own.as_str()));
                    if let Some(suggestion) = near.map(str::to_owned) {
                        return Err(LayerError::UnknownVariable { name, suggestion: Some(suggestion) });
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    fn variable(&mut self, name: &str, section: &str, key: &str, text: &str) -> Result<(), LayerError> {
        let wrong = |why| LayerError::Variable { name: name.to_owned(), why };
        let value = parse_text::<F>(section, key, text).map_err(wrong)?;
        self.set(section, key, value, SettingOrigin::Variable(name.to_owned()));
        Ok(())
    }

    /// Adds a setting from a flag.
    pub(crate) fn flag(&mut self, flag: &str, section: &str, key: &str, value: impl Into<Value>) {
        self.set(section, key, value.into(), SettingOrigin::Flag(flag.to_owned()));
    }

    fn set(&mut self, section: &str, key: &str, value: Value, origin: SettingOrigin) {
        let table = self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(key.to_owned(), value);
        }
        self.origins.insert(format!("{section}.{key}"), origin);
    }

    /// Returns a setting and its origin, if it is set.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<(&Value, &SettingOrigin)> {
        let value = self.table.get(section)?.get(key)?;
        Some((value, self.origins.get(&format!("{section}.{key}"))?))
    }

    /// Returns the notices about variables of other programs.
    pub(crate) fn notices(&self) -> &[VariableNotice] {
        &self.notices
    }

    /// Returns all explicit settings.
    pub(crate) fn explicit_settings(&self) -> ExplicitSettings {
        ExplicitSettings::of(&self.table)
    }

    /// Returns the merged file and the origins.
    pub(crate) fn finish(self) -> Result<(F, BTreeMap<String, SettingOrigin>), toml::de::Error> {
        Ok((F::deserialize(self.table)?, self.origins))
    }
}

/// Returns the environment variable of a key.
pub(super) fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{}_{}", section.to_uppercase(), key.to_uppercase())
}

/// Returns the Kubernetes Service whose address a variable contains. A Service `forebay-gate` sets
/// `FOREBAY_GATE_SERVICE_HOST` and more in every pod of its namespace.
fn service_prefix(name: &str) -> Option<String> {
    name.strip_suffix("_SERVICE_HOST").map(str::to_owned)
}

/// Returns whether Kubernetes sets a variable for this Service.
fn is_service_variable(service: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(service) else { return false };
    let is =
        |what: &str| rest.strip_prefix(what).is_some_and(|more| more.is_empty() || more.starts_with('_'));
    rest == "_SERVICE_HOST" || is("_SERVICE_PORT") || is("_PORT")
}

/// Parses a text as the type of the setting: a number or a bool, a string, or a list separated by
/// commas.
fn parse_text<F: SettingsFile>(section: &str, key: &str, text: &str) -> Result<Value, String> {
    let fits = |value: &Value| {
        let keys = Table::from_iter([(key.to_owned(), value.clone())]);
        let whole = Table::from_iter([(section.to_owned(), Value::Table(keys))]);
        F::deserialize(whole).map(drop)
    };
    let list = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let plain = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let plain = plain.and_then(|mut table| table.remove("value"));
    let candidates = plain.into_iter().chain([
        Value::String(text.to_owned()),
        Value::Array(list.map(|item| Value::String(item.to_owned())).collect()),
    ]);
    let mut first = None;
    for candidate in candidates {
        match fits(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) => first = first.or(Some(error.message().to_owned())),
        }
    }
    Err(first.unwrap_or_default())
}

/// Describes an error with its line and column, without quoting the file: the text may be a
/// password.
fn describe_error(text: &str, error: &toml::de::Error) -> String {
    let what = error.message();
    let what = match (what.strip_prefix("invalid type: "), what.rsplit_once(", expected ")) {
        (Some(found), Some((_, expected))) => {
            let kind = found.split(['"', '`', ',']).next().unwrap_or_default().trim_end();
            format!("invalid type: {kind}, expected {expected}")
        }
        (Some(_), None) | (None, _) => what.to_owned(),
    };
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else { return what };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
    format!("line {line}, column {column}: {what}")
}

/// Returns the most similar known key, if the error is an unknown key. serde reports the key only
/// as a position.
fn suggest_key<F: SettingsFile>(text: &str, error: &toml::de::Error) -> Option<String> {
    if !error.message().starts_with("unknown field") {
        return None;
    }
    let key = text.get(error.span()?)?.trim();
    let known = F::sections();
    let names = known.iter().flat_map(|(section, keys)| keys.iter().chain([section]));
    nearest(key, names.copied()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::gate_file::GateFile;

    fn layered(file: &str, variables: &[(&str, &str)]) -> Result<SettingLayers<GateFile>, LayerError> {
        let mut layers = SettingLayers::default();
        layers.text(file, Path::new("gate.toml"))?;
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        layers.environment(variables)?;
        Ok(layers)
    }

    #[test]
    fn variables_override_the_file_and_flags_override_variables() {
        let file = "[gate]\nlisten = \"a\"\nupstream = \"b\"\nhost = \"c\"\n";
        let variables = [("FOREBAY_GATE_UPSTREAM", "e"), ("FOREBAY_GATE_HOST", "f"), ("HOME", "/")];
        let mut layers = layered(file, &variables).unwrap();
        layers.flag("--host", "gate", "host", "g");
        let (file, origins) = layers.finish().unwrap();
        assert_eq!(file.gate.listen.as_deref(), Some("a"));
        assert_eq!(file.gate.upstream.as_deref(), Some("e"));
        assert_eq!(file.gate.host.as_deref(), Some("g"));
        assert_eq!(origins["gate.listen"], SettingOrigin::File("gate.toml".into()));
        assert_eq!(origins["gate.upstream"], SettingOrigin::Variable("FOREBAY_GATE_UPSTREAM".into()));
        assert_eq!(origins["gate.host"], SettingOrigin::Flag("--host".into()));
    }

    #[test]
    fn a_variable_is_parsed_as_the_type_of_its_setting() {
        let variables = [
            ("FOREBAY_ADMISSION_TOTAL", "12"),
            ("FOREBAY_GATE_STREAM_ROUTES", "POST /a, GET /b/**"),
            ("FOREBAY_GATE_FORWARD_USER_HEADER", "1"),
            ("FOREBAY_ADMIN_INSECURE", "true"),
        ];
        let (file, _) = layered("", &variables).unwrap().finish().unwrap();
        assert_eq!(file.admission.total, Some(12));
        assert_eq!(file.gate.stream_routes.unwrap(), ["POST /a", "GET /b/**"]);
        assert_eq!(file.gate.forward_user_header.as_deref(), Some("1"), "a number for a text setting");
        assert_eq!(file.admin.insecure, Some(true));
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_line_and_a_suggestion() {
        let error = layered("[gate]\nlisen = \"a\"\n", &[]).unwrap_err().to_string();
        for part in ["gate.toml", "line 2", "lisen", "did you mean `listen`?"] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
        let error = layered("[gaet]\nlisten = \"a\"\n", &[]).unwrap_err().to_string();
        assert!(error.contains("did you mean `gate`?"), "{error}");
        let error = layered("[gate]\nlisten = 3\n", &[]).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("expected a string"), "{error}");
    }

    #[test]
    fn an_error_about_the_file_does_not_quote_a_possible_password() {
        for (file, place) in [
            ("[redis]\nurl = \"redis://:s3cr3t@h", "line 2, column "),
            ("[redis]\nurl = redis://:s3cr3t@h\n", "line 2, column 7"),
            ("[redis]\nurl = \"redis://:s3cr3t@h\" x\n", "line 2, column "),
            ("[redis]\nurll = \"redis://:s3cr3t@h\"\n", "line 2, column 1"),
            ("redis = \"redis://:s3cr3t@h, expected \"\n", "line 1, column "),
            ("[redis]\nurl = [\"redis://:s3cr3t@h\"]\n", "line 2, column 7"),
            ("[redis]\nurl = 53637233\n", "line 2, column 7: invalid type: integer, expected a string"),
            ("[redis]\n'redis://:s3cr3t@h'\n", "line 2, column "),
        ] {
            let error = layered(file, &[]).unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(place), "{text}");
            assert!(!text.contains("s3cr3t") && !text.contains("53637233"), "{text}");
        }
    }

    #[test]
    fn variables_of_kubernetes_services_are_ignored() {
        let ours = [
            ("FOREBAY_GATE_SERVICE_HOST", "10.0.0.1"),
            ("FOREBAY_GATE_SERVICE_PORT", "80"),
            ("FOREBAY_GATE_SERVICE_PORT_HTTP", "80"),
            ("FOREBAY_GATE_PORT", "tcp://10.0.0.1:80"),
            ("FOREBAY_GATE_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("FOREBAY_GATE_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("FOREBAY_REDIS_CACHE_PORT_6379_TCP_PROTO", "tcp"),
            ("FOREBAY_REDIS_CACHE_SERVICE_HOST", "10.0.0.2"),
            ("FOREBAY_GATE_LISTEN", "a"),
        ];
        let (file, _) = layered("", &ours).unwrap().finish().unwrap();
        assert_eq!(file.gate.listen.as_deref(), Some("a"));
        for (name, value) in [("FOREBAY_GATE_PORT", "8080"), ("FOREBAY_GATE_PORTS", "1")] {
            let alone = layered("", &[(name, value)]).unwrap_err().to_string();
            assert!(alone.contains(name), "{alone}");
        }
        let beside = [ours[0], ("FOREBAY_GATE_LISEN", "a")];
        assert!(layered("", &beside).is_err(), "a typo is still an error");
    }

    #[test]
    fn an_unknown_variable_is_reported_with_a_suggestion() {
        let error = layered("", &[("FOREBAY_GATE_LISEN", "a")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_GATE_LISEN") && error.contains("`FOREBAY_GATE_LISTEN`"), "{error}");
        let error = layered("", &[("FOREBAY_ADMISSION_TOTAL", "many")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_ADMISSION_TOTAL") && error.contains("u32"), "{error}");
        layered("", &[("FOREBAY_VENV", "x")]).expect("variables of other programs are ignored");
        let error = layered("", &[("FOREBAY_GTAE_LISTEN", "a")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_GTAE_LISTEN") && error.contains("`FOREBAY_GATE_LISTEN`"), "{error}");
        layered("", &[("FOREBAY_SERVE_LISTEN", "x")]).expect("variables of other commands are ignored");
    }
}
