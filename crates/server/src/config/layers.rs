//! Where settings come from: the file, the environment, the flags, each stronger than the one before.
//!
//! Invariant: a value that no section knows is an error that names it, wherever it was written; and every setting
//! remembers where it came from, so that a later complaint can say so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::file::{File, sections};
use super::nearest::nearest;

const PREFIX: &str = "FOREBAY_";

/// The settings so far.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    table: Table,
    /// `section.key` → `--listen`, or a variable, or the file.
    origins: BTreeMap<String, String>,
}

/// Why settings can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// There is no such file, or we may not read it.
    #[error("can't read the config file {}: {source}; check the path after --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML, has a key that nobody knows, or a value of another kind.
    #[error("the config file {} is not right:\n{what}{}", path.display(), Meant(suggestion.as_deref()))]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column and what is wrong there.
        what: String,
        /// The key that may have been meant.
        suggestion: Option<String>,
    },
    /// A variable that begins as ours do, but is none.
    #[error("the environment variable {name} names no setting{}; unset it or correct it", Meant(suggestion.as_deref()))]
    UnknownVariable {
        /// Its name.
        name: String,
        /// The variable that may have been meant.
        suggestion: Option<String>,
    },
    /// A variable's value is of another kind than its setting.
    #[error("the environment variable {name} has a value that does not fit: {why}")]
    Variable {
        /// Its name.
        name: String,
        /// What was expected.
        why: String,
    },
}

/// What may have been meant, in brackets; nothing if nobody knows.
pub(super) struct Meant<'a>(pub(super) Option<&'a str>);

impl std::fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |meant| write!(f, " (did you mean `{meant}`?)"))
    }
}

impl Layers {
    /// Adds a file.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), LayerError> {
        let unreadable = |source| LayerError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        self.text(&text, path)
    }

    fn text(&mut self, text: &str, path: &Path) -> Result<(), LayerError> {
        let wrong = |error: toml::de::Error| LayerError::File {
            path: path.to_owned(),
            what: error.to_string().trim_end().to_owned(),
            suggestion: meant(text, &error),
        };
        // Read as the whole shape, for the line and column of what is wrong; kept as a table, to be overlaid.
        toml::from_str::<File>(text).map_err(wrong)?;
        for (section, keys) in toml::from_str::<Table>(text).map_err(wrong)? {
            let Value::Table(keys) = keys else { continue };
            for (key, value) in keys {
                self.set(&section, &key, value, format!("from {}", path.display()));
            }
        }
        Ok(())
    }

    /// Adds the variables that are ours.
    pub(crate) fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), LayerError> {
        let known: Vec<(String, &str, &str)> = sections()
            .into_iter()
            .flat_map(|(section, keys)| keys.iter().map(move |key| (variable(section, key), section, *key)))
            .collect();
        for (name, text) in variables {
            match known.iter().find(|(own, ..)| *own == name) {
                Some((_, section, key)) => {
                    let value = read(section, key, &text)
                        .map_err(|why| LayerError::Variable { name: name.clone(), why })?;
                    self.set(section, key, value, format!("from {name}"));
                }
                // Others that begin with FOREBAY_ may belong to another program; those of our sections don't.
                None if sections().iter().any(|(section, _)| name.starts_with(&variable(section, ""))) => {
                    let suggestion = nearest(&name, known.iter().map(|(own, ..)| own.as_str()));
                    let suggestion = suggestion.map(str::to_owned);
                    return Err(LayerError::UnknownVariable { name, suggestion });
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Adds one setting, given by a flag.
    pub(crate) fn flag(&mut self, flag: &str, section: &str, key: &str, value: impl Into<Value>) {
        self.set(section, key, value.into(), format!("from {flag}"));
    }

    fn set(&mut self, section: &str, key: &str, value: Value, origin: String) {
        let table = self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(key.to_owned(), value);
        }
        self.origins.insert(format!("{section}.{key}"), origin);
    }

    /// All of it, and where each came from.
    pub(crate) fn finish(self) -> Result<(File, BTreeMap<String, String>), toml::de::Error> {
        Ok((File::deserialize(self.table)?, self.origins))
    }
}

fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{}_{}", section.to_uppercase(), key.to_uppercase())
}

/// A text as the kind that the setting wants: a number or a bool, a string, or a list parted by commas.
fn read(section: &str, key: &str, text: &str) -> Result<Value, String> {
    let fits = |value: &Value| {
        let keys = Table::from_iter([(key.to_owned(), value.clone())]);
        let whole = Table::from_iter([(section.to_owned(), Value::Table(keys))]);
        File::deserialize(whole).map(drop)
    };
    let list = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let plain = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let plain = plain.and_then(|mut table| table.remove("value"));
    let readings = plain.into_iter().chain([
        Value::String(text.to_owned()),
        Value::Array(list.map(|item| Value::String(item.to_owned())).collect()),
    ]);
    let mut first = None;
    for reading in readings {
        match fits(&reading) {
            Ok(()) => return Ok(reading),
            Err(error) => first = first.or(Some(error.message().to_owned())),
        }
    }
    Err(first.unwrap_or_default())
}

/// For an unknown key: the nearest that there is. serde tells the key only by the place of the error.
fn meant(text: &str, error: &toml::de::Error) -> Option<String> {
    if !error.message().starts_with("unknown field") {
        return None;
    }
    let key = text.get(error.span()?)?.trim();
    let known = sections();
    let names = known.iter().flat_map(|(section, keys)| keys.iter().chain([section]));
    nearest(key, names.copied()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layered(file: &str, variables: &[(&str, &str)]) -> Result<Layers, LayerError> {
        let mut layers = Layers::default();
        layers.text(file, Path::new("gate.toml"))?;
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        layers.environment(variables)?;
        Ok(layers)
    }

    #[test]
    fn the_environment_is_stronger_than_the_file_and_flags_are_strongest() {
        let file = "[gate]\nlisten = \"a\"\nupstream = \"b\"\nhost = \"c\"\n";
        let variables = [("FOREBAY_GATE_UPSTREAM", "e"), ("FOREBAY_GATE_HOST", "f"), ("HOME", "/")];
        let mut layers = layered(file, &variables).unwrap();
        layers.flag("--host", "gate", "host", "g");
        let (file, origins) = layers.finish().unwrap();
        assert_eq!(file.gate.listen.as_deref(), Some("a"));
        assert_eq!(file.gate.upstream.as_deref(), Some("e"));
        assert_eq!(file.gate.host.as_deref(), Some("g"));
        assert_eq!(origins["gate.listen"], "from gate.toml");
        assert_eq!(origins["gate.upstream"], "from FOREBAY_GATE_UPSTREAM");
        assert_eq!(origins["gate.host"], "from --host");
    }

    #[test]
    fn a_variable_is_read_as_its_setting_wants() {
        let variables = [
            ("FOREBAY_ADMISSION_TOTAL", "12"),
            ("FOREBAY_GATE_STREAM_ROUTES", "POST /a, GET /b/**"),
            ("FOREBAY_GATE_FORWARD_USER_HEADER", "1"),
            ("FOREBAY_ADMIN_INSECURE", "true"),
        ];
        let (file, _) = layered("", &variables).unwrap().finish().unwrap();
        assert_eq!(file.admission.total, Some(12));
        assert_eq!(file.gate.stream_routes.unwrap(), ["POST /a", "GET /b/**"]);
        assert_eq!(file.gate.forward_user_header.as_deref(), Some("1"), "a number where a text is meant");
        assert_eq!(file.admin.insecure, Some(true));
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line_and_what_was_meant() {
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
    fn a_wrong_variable_is_named_with_what_was_meant() {
        let error = layered("", &[("FOREBAY_GATE_LISEN", "a")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_GATE_LISEN") && error.contains("`FOREBAY_GATE_LISTEN`"), "{error}");
        let error = layered("", &[("FOREBAY_ADMISSION_TOTAL", "many")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_ADMISSION_TOTAL") && error.contains("u32"), "{error}");
        layered("", &[("FOREBAY_VENV", "x")]).expect("other programs' variables are theirs");
    }
}
