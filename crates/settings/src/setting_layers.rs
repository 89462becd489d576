//! Layers of settings: the file, the environment, the flags. Each overrides the previous one.
//!
//! Invariant: the order of the layers doesn't depend on the order of the calls. An unknown key or
//! variable is an error that names it. Every value has the type of its setting, and its origin,
//! which later errors include.
//! Enforced by: [`SettingLayers::set`] keeps the value of the stronger [`Layer`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::command_settings::CommandDeclaration;
use crate::config_file::{self, FileProblem};
use crate::explicit_settings::ExplicitSettings;
use crate::imported_variables::{self, VariableNotice};
use crate::nearest::{Suggestion, nearest, nearest_typo};
use crate::setting::{Setting, SettingDefault};
use crate::setting_origin::SettingOrigin;
use crate::setting_value::SettingField;
use crate::value_error::ValueError;

/// The merged settings of a command.
#[derive(Clone)]
pub struct SettingLayers {
    command: CommandDeclaration,
    /// Explicit values, by `section.key`.
    values: BTreeMap<&'static str, ExplicitValue>,
    /// Notices about variables of other programs.
    notices: Vec<VariableNotice>,
}

/// A value that isn't a default.
#[derive(Clone)]
struct ExplicitValue {
    value: Value,
    origin: SettingOrigin,
    layer: Layer,
}

/// Layers, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    File,
    /// Variables of other programs.
    ImportedVariable,
    Variable,
    Flag,
}

/// Omits the values: some are passwords.
impl fmt::Debug for SettingLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origins = self.values.iter().map(|(path, explicit)| (path, &explicit.origin));
        f.debug_map().entries(origins).finish()
    }
}

/// Why a layer can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The file does not exist or can't be read. The flag with its path should be `--config`.
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

/// Adding layers. They may be added in any order. Of two files, or two environments, the one that
/// is added later overrides the other.
impl SettingLayers {
    /// Returns layers without any explicit value.
    pub fn new(command: CommandDeclaration) -> SettingLayers {
        SettingLayers { command, values: BTreeMap::new(), notices: Vec::new() }
    }

    /// Adds a config file.
    ///
    /// # Errors
    /// Fails if the file can't be read, is no TOML, has an unknown key, or a value of the wrong
    /// type.
    pub fn file(&mut self, path: &Path) -> Result<(), LayerError> {
        let unreadable = |source| LayerError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        self.text(&text, path)
    }

    /// Adds the text of a config file. `path` is only for errors and origins.
    ///
    /// # Errors
    /// Fails if the text is no TOML, has an unknown key or a value of the wrong type.
    pub fn text(&mut self, text: &str, path: &Path) -> Result<(), LayerError> {
        let settings =
            config_file::parse(text, self.command).map_err(|FileProblem { what, suggestion }| {
                LayerError::File { path: path.to_owned(), what, suggestion: suggestion.map(str::to_owned) }
            })?;
        for (setting, value) in settings {
            self.set(setting, value, Layer::File, SettingOrigin::File(path.to_owned()));
        }
        Ok(())
    }

    /// Adds the environment variables of this command, and those of other programs:
    /// [`std::env::vars_os`], or pairs of texts. Other variables are ignored.
    ///
    /// # Errors
    /// Fails if a variable with the prefix of a section names no setting, has a value of the wrong
    /// type, or isn't UTF-8.
    pub fn environment<N: Into<OsString>, V: Into<OsString>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<(), LayerError> {
        let known: Vec<(String, &Setting)> =
            self.command.settings().map(|setting| (self.command.variable(setting), setting)).collect();
        let variables = self.texts(variables)?;
        let services: Vec<String> = variables.iter().filter_map(|(name, _)| service_prefix(name)).collect();
        let is_setting = |name: &str| !services.iter().any(|service| is_service_variable(service, name));
        let variables: Vec<(String, String)> =
            variables.into_iter().filter(|(name, _)| is_setting(name)).collect();
        let wrong = |(name, why): (&str, String)| LayerError::Variable { name: name.to_owned(), why };
        let (imported, notices) = imported_variables::import(&variables, self.command).map_err(wrong)?;
        for (name, setting, text) in imported {
            self.variable(name, setting, &text, Layer::ImportedVariable)?;
        }
        self.notices.extend(notices);
        let names = || known.iter().map(|(own, _)| own.as_str());
        for (name, text) in &variables {
            let suggestion = match known.iter().find(|(own, _)| own == name) {
                Some((_, setting)) => {
                    self.variable(name, setting, text, Layer::Variable)?;
                    continue;
                }
                None if self.command.is_of_section(name) => nearest(name, names()),
                // Its section may be misspelt.
                None if name.starts_with(&self.command.prefix()) => match nearest_typo(name, names()) {
                    None => continue,
                    near => near,
                },
                None => continue,
            };
            let suggestion = suggestion.map(str::to_owned);
            return Err(LayerError::UnknownVariable { name: name.clone(), suggestion });
        }
        Ok(())
    }

    /// Returns variables as texts. One that isn't UTF-8 is an error if it is ours or imported;
    /// otherwise it is left out.
    fn texts<N: Into<OsString>, V: Into<OsString>>(
        &self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Vec<(String, String)>, LayerError> {
        let mut texts = Vec::new();
        let imported = self.command.imported_variables();
        for (name, value) in variables {
            let Ok(name) = name.into().into_string() else { continue };
            match value.into().into_string() {
                Ok(text) => texts.push((name, text)),
                Err(_)
                    if self.command.is_of_section(&name)
                        || imported.iter().any(|known| known.name == name) =>
                {
                    return Err(LayerError::Variable { name, why: "it is not valid UTF-8".to_owned() });
                }
                Err(_) => {}
            }
        }
        Ok(texts)
    }

    fn variable(
        &mut self,
        name: &str,
        setting: &'static Setting,
        text: &str,
        layer: Layer,
    ) -> Result<(), LayerError> {
        let wrong = |why| LayerError::Variable { name: name.to_owned(), why };
        let value = parse_text(setting, text).map_err(wrong)?;
        self.set(setting, value, layer, SettingOrigin::Variable(name.to_owned()));
        Ok(())
    }

    /// Adds a setting from a flag.
    pub fn flag(&mut self, setting: &'static Setting, value: Value) {
        let flag = setting.flag.map_or("", |(flag, _)| flag);
        self.set(setting, value, Layer::Flag, SettingOrigin::Flag(flag.to_owned()));
    }

    /// Sets a value, unless a stronger layer has set it.
    fn set(&mut self, setting: &'static Setting, value: Value, layer: Layer, origin: SettingOrigin) {
        if self.values.get(setting.path).is_none_or(|explicit| explicit.layer <= layer) {
            self.values.insert(setting.path, ExplicitValue { value, origin, layer });
        }
    }
}

/// Reading the merged settings.
impl SettingLayers {
    /// Returns the declaration of the command.
    pub fn command(&self) -> CommandDeclaration {
        self.command
    }

    /// Returns the checked value of a setting, or its default. `M` is inferred.
    ///
    /// # Errors
    /// Fails if the value is invalid, or required and absent.
    ///
    /// # Panics
    /// Panics if the command has no such setting.
    pub fn read<F: SettingField<M>, M>(&self, path: &'static str) -> Result<F, ValueError> {
        let setting = self.command.setting(path).expect("only declared settings are read");
        let setting = setting.of_command(self.command.name);
        let default = || setting.default_of(self.command.name);
        let value = self.get(path).map(|(value, _)| value.clone()).or_else(default);
        let checked = F::from_toml(value.as_ref(), &setting).map_err(|invalid| {
            if setting.is_secret() {
                let texts = [Some(invalid.value.as_str()), value.as_ref().and_then(Value::as_str)];
                return self.error(path, None, without_secret(invalid.why, texts));
            }
            self.error(path, Some(invalid.value), invalid.why)
        })?;
        checked.ok_or_else(|| {
            let how = match setting.default {
                SettingDefault::Required(how) => how,
                SettingDefault::Value(_) | SettingDefault::Unset(_) => "it is required",
            };
            self.error(path, None, format!("is missing: {how}"))
        })
    }

    /// Returns an explicit value and its origin.
    pub fn get(&self, path: &str) -> Option<(&Value, &SettingOrigin)> {
        self.values.get(path).map(|explicit| (&explicit.value, &explicit.origin))
    }

    /// Returns an error for a setting, with its origin.
    pub fn error(
        &self,
        path: &'static str,
        value: impl Into<Option<String>>,
        why: impl fmt::Display,
    ) -> ValueError {
        let origin = self.get(path).map(|(_, origin)| origin.to_string());
        ValueError { key: path, value: value.into(), origin, why: why.to_string() }
    }

    /// Returns the content of a file with a key or a secret. `path` is the setting with its name.
    ///
    /// # Errors
    /// Fails if the file can't be read or is empty.
    pub fn read_file(
        &self,
        path: &'static str,
        file: Option<&PathBuf>,
    ) -> Result<Option<Vec<u8>>, ValueError> {
        let Some(file) = file else { return Ok(None) };
        let text = || file.display().to_string();
        let content = std::fs::read(file)
            .map_err(|error| self.error(path, text(), format!("can't be read: {error}")))?;
        if content.is_empty() {
            return Err(self.error(path, text(), "is an empty file"));
        }
        Ok(Some(content))
    }

    /// Returns the notices about variables of other programs.
    pub fn notices(&self) -> &[VariableNotice] {
        &self.notices
    }

    /// Returns all explicit settings.
    pub fn explicit_settings(&self) -> ExplicitSettings {
        self.values.iter().map(|(path, explicit)| (*path, explicit.value.clone())).collect()
    }
}

/// Returns the reason of an error without the secret.
fn without_secret(why: String, secrets: [Option<&str>; 2]) -> String {
    let has_secret = secrets.into_iter().flatten().any(|secret| !secret.is_empty() && why.contains(secret));
    if has_secret { "is invalid; the reason contains the secret and is not shown".to_owned() } else { why }
}

/// Returns the Kubernetes Service whose address a variable contains. A Service `shop-gate` sets
/// `SHOP_GATE_SERVICE_HOST` and more in every pod of its namespace.
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

/// Parses the text of a variable as the type of its setting: a number or a bool, a string, or a
/// list separated by commas.
pub(crate) fn parse_text(setting: &Setting, text: &str) -> Result<Value, String> {
    let list = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let plain = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let plain = plain.and_then(|mut table| table.remove("value"));
    let candidates = plain.into_iter().chain([
        Value::String(text.to_owned()),
        Value::Array(list.map(|item| Value::String(item.to_owned())).collect()),
    ]);
    let mut first = None;
    for candidate in candidates {
        match (setting.check_type)(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_default())
}
