//! Where settings come from: the file, the environment, the flags, each stronger than the one before.
//!
//! Invariant: a value that no section knows is an error that names it, wherever it was written; and every setting
//! remembers where it came from, so that a later complaint can say so.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::borrowed::VariableNotice;
use super::file::Shape;
use super::nearest::{nearest, nearest_within};
use super::origin::Origin;
use super::said::Said;

const PREFIX: &str = "FOREBAY_";
/// So many letters may be wrong in a slip of the pen; two commands' variables differ by more.
const A_SLIP: usize = 2;

/// The settings so far, of a command whose file has the shape `F`.
#[derive(Clone, Default)]
pub(crate) struct Layers<F> {
    table: Table,
    /// `section.key` → where it was written.
    origins: BTreeMap<String, Origin>,
    /// What is to be told of other programs' variables.
    notices: Vec<VariableNotice>,
    shape: PhantomData<F>,
}

/// Without the values: some are passwords.
impl<F> fmt::Debug for Layers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("origins", &self.origins).finish_non_exhaustive()
    }
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
    #[error("the config file {} is not right: {what}{}", path.display(), Meant(suggestion.as_deref()))]
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

impl fmt::Display for Meant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |meant| write!(f, " (did you mean `{meant}`?)"))
    }
}

impl<F: Shape> Layers<F> {
    /// Adds a file.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), LayerError> {
        let unreadable = |source| LayerError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        self.text(&text, path)
    }

    fn text(&mut self, text: &str, path: &Path) -> Result<(), LayerError> {
        let wrong = |error: toml::de::Error| LayerError::File {
            path: path.to_owned(),
            what: complaint(text, &error),
            suggestion: meant::<F>(text, &error),
        };
        // Read as the whole shape, for the line and column of what is wrong; kept as a table, to be overlaid.
        toml::from_str::<F>(text).map_err(wrong)?;
        for (section, keys) in toml::from_str::<Table>(text).map_err(wrong)? {
            let Value::Table(keys) = keys else { continue };
            for (key, value) in keys {
                self.set(&section, &key, value, Origin::File(path.to_owned()));
            }
        }
        Ok(())
    }

    /// Adds the variables that are ours.
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
        let services: Vec<String> = variables.iter().filter_map(|(name, _)| service(name)).collect();
        let ours = |name: &str| !services.iter().any(|service| tells_of(service, name));
        let variables: Vec<(String, String)> = variables.into_iter().filter(|(name, _)| ours(name)).collect();
        let wrong = |(name, why): (&str, String)| LayerError::Variable { name: name.to_owned(), why };
        let (borrowed, notices) = F::borrowed(&variables).map_err(wrong)?;
        for setting in borrowed {
            self.variable(setting.variable, setting.section, setting.key, &setting.text)?;
        }
        self.notices = notices;
        for (name, text) in variables {
            match known.iter().find(|(own, ..)| *own == name) {
                Some((_, section, key)) => self.variable(&name, section, key, &text)?,
                // Others that begin with FOREBAY_ may belong to another program; those of our sections don't.
                None if sections.iter().any(|(section, _)| name.starts_with(&variable(section, ""))) => {
                    let suggestion = nearest(&name, known.iter().map(|(own, ..)| own.as_str()));
                    let suggestion = suggestion.map(str::to_owned);
                    return Err(LayerError::UnknownVariable { name, suggestion });
                }
                // Unless one is so near that the section itself must be misspelt.
                None if name.starts_with(PREFIX) => {
                    let near = nearest_within(A_SLIP, &name, known.iter().map(|(own, ..)| own.as_str()));
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
        let value = read::<F>(section, key, text).map_err(wrong)?;
        self.set(section, key, value, Origin::Variable(name.to_owned()));
        Ok(())
    }

    /// Adds one setting, given by a flag.
    pub(crate) fn flag(&mut self, flag: &str, section: &str, key: &str, value: impl Into<Value>) {
        self.set(section, key, value.into(), Origin::Flag(flag.to_owned()));
    }

    fn set(&mut self, section: &str, key: &str, value: Value, origin: Origin) {
        let table = self.table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(table) = table {
            table.insert(key.to_owned(), value);
        }
        self.origins.insert(format!("{section}.{key}"), origin);
    }

    /// One setting and where it was written, if it was.
    pub(crate) fn get(&self, section: &str, key: &str) -> Option<(&Value, &Origin)> {
        let value = self.table.get(section)?.get(key)?;
        Some((value, self.origins.get(&format!("{section}.{key}"))?))
    }

    /// What is to be told of other programs' variables.
    pub(crate) fn notices(&self) -> &[VariableNotice] {
        &self.notices
    }

    /// All of it, as it was said.
    pub(crate) fn said(&self) -> Said {
        Said::of(&self.table)
    }

    /// All of it, and where each came from.
    pub(crate) fn finish(self) -> Result<(F, BTreeMap<String, Origin>), toml::de::Error> {
        Ok((F::deserialize(self.table)?, self.origins))
    }
}

/// The variable of a key.
pub(super) fn variable(section: &str, key: &str) -> String {
    format!("{PREFIX}{}_{}", section.to_uppercase(), key.to_uppercase())
}

/// The Kubernetes Service that a variable tells the address of. One named `forebay-gate` makes `FOREBAY_GATE_SERVICE_HOST`
/// and more in every pod beside it.
fn service(name: &str) -> Option<String> {
    name.strip_suffix("_SERVICE_HOST").map(str::to_owned)
}

/// Whether a variable was made for this Service.
fn tells_of(service: &str, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(service) else { return false };
    let is =
        |what: &str| rest.strip_prefix(what).is_some_and(|more| more.is_empty() || more.starts_with('_'));
    rest == "_SERVICE_HOST" || is("_SERVICE_PORT") || is("_PORT")
}

/// A text as the kind that the setting wants: a number or a bool, a string, or a list parted by commas.
fn read<F: Shape>(section: &str, key: &str, text: &str) -> Result<Value, String> {
    let fits = |value: &Value| {
        let keys = Table::from_iter([(key.to_owned(), value.clone())]);
        let whole = Table::from_iter([(section.to_owned(), Value::Table(keys))]);
        F::deserialize(whole).map(drop)
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

/// Where and what is wrong, without the words that are there: they may be a password.
fn complaint(text: &str, error: &toml::de::Error) -> String {
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

/// For an unknown key: the nearest that there is. serde tells the key only by the place of the error.
fn meant<F: Shape>(text: &str, error: &toml::de::Error) -> Option<String> {
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
    use crate::config::file::GateFile;

    fn layered(file: &str, variables: &[(&str, &str)]) -> Result<Layers<GateFile>, LayerError> {
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
        assert_eq!(origins["gate.listen"], Origin::File("gate.toml".into()));
        assert_eq!(origins["gate.upstream"], Origin::Variable("FOREBAY_GATE_UPSTREAM".into()));
        assert_eq!(origins["gate.host"], Origin::Flag("--host".into()));
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
    fn a_complaint_about_the_file_does_not_repeat_what_may_be_a_password() {
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
            let said = format!("{error} {error:?}");
            assert!(said.contains(place), "{said}");
            assert!(!said.contains("s3cr3t") && !said.contains("53637233"), "{said}");
        }
    }

    #[test]
    fn what_kubernetes_tells_of_services_is_no_setting() {
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
        assert!(layered("", &beside).is_err(), "a slip is still one");
    }

    #[test]
    fn a_wrong_variable_is_named_with_what_was_meant() {
        let error = layered("", &[("FOREBAY_GATE_LISEN", "a")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_GATE_LISEN") && error.contains("`FOREBAY_GATE_LISTEN`"), "{error}");
        let error = layered("", &[("FOREBAY_ADMISSION_TOTAL", "many")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_ADMISSION_TOTAL") && error.contains("u32"), "{error}");
        layered("", &[("FOREBAY_VENV", "x")]).expect("other programs' variables are theirs");
        let error = layered("", &[("FOREBAY_GTAE_LISTEN", "a")]).unwrap_err().to_string();
        assert!(error.contains("FOREBAY_GTAE_LISTEN") && error.contains("`FOREBAY_GATE_LISTEN`"), "{error}");
        layered("", &[("FOREBAY_SERVE_LISTEN", "x")]).expect("another command's variables are its own");
    }
}
