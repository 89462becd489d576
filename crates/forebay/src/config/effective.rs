//! Every setting as it holds, and where it came from, for people to read.
//!
//! Invariant: nothing that a `Hidden` holds is shown, only which server it leads to; and every key of the command is there.
//! Kept by: what is hidden is asked of the file's own type, by its `Debug`; the keys are those that serde knows.

use std::fmt::{self, Write as _};

use forebay_redis::IntoConfig as _;
use forebay_replication::reservoir::PostgresConnect;
use toml::{Table, Value};

use super::file::{GateFile, Shape};
use super::layers::Layers;
use super::origin::Origin;
use super::serve_file::ServeFile;
use super::{ConfigError, GATE_EXAMPLE, GateConfig, SERVE_EXAMPLE, ServeConfig, VariableNotice};

/// Where the second column begins, if the first leaves room.
const COLUMN: usize = 56;
/// What stands for a secret.
const HIDDEN: &str = "(hidden)";

/// All settings of a command.
#[derive(Debug)]
pub struct Effective {
    command: &'static str,
    sections: Vec<(&'static str, Vec<Line>)>,
    notices: Vec<VariableNotice>,
    /// Why the command can't start with them, if so.
    pub wrong: Option<ConfigError>,
}

#[derive(Debug)]
struct Line {
    key: &'static str,
    /// As TOML writes it; none if there is neither a value nor a default.
    value: Option<String>,
    origin: Option<Origin>,
}

/// `section.key`, and what holds where nothing is said.
type Derived = Vec<(&'static str, Value)>;

impl Effective {
    pub(super) fn of_gate(layers: Layers<GateFile>) -> Effective {
        let checked = GateConfig::try_from(layers.clone());
        let derived = |config: &GateConfig| vec![shares(config.admission.shares())];
        let defaults = defaults(GATE_EXAMPLE, checked.as_ref().map(derived).unwrap_or_default());
        Effective::of("gate", &layers, &defaults, checked.err())
    }

    pub(super) fn of_serve(layers: Layers<ServeFile>) -> Effective {
        let checked = ServeConfig::try_from(layers.clone());
        let derived = |config: &ServeConfig| {
            let snapshots = i64::try_from(config.snapshots).unwrap_or(i64::MAX);
            vec![shares(config.admission.shares()), ("serve.snapshots", Value::Integer(snapshots))]
        };
        let defaults = defaults(SERVE_EXAMPLE, checked.as_ref().map(derived).unwrap_or_default());
        Effective::of("serve", &layers, &defaults, checked.err())
    }

    fn of<F: Shape>(
        command: &'static str,
        layers: &Layers<F>,
        defaults: &Table,
        wrong: Option<ConfigError>,
    ) -> Effective {
        let line = |section: &str, key: &'static str| match layers.get(section, key) {
            Some((value, origin)) => {
                let value =
                    if is_hidden::<F>(section, key) { leads_to(section, value) } else { written(value) };
                Line { key, value: Some(value), origin: Some(origin.clone()) }
            }
            None => {
                let default = defaults.get(section).and_then(|keys| keys.get(key));
                Line { key, value: default.map(written), origin: None }
            }
        };
        let sections = F::sections().into_iter();
        let sections = sections
            .map(|(section, keys)| (section, keys.iter().map(|key| line(section, key)).collect()))
            .collect();
        Effective { command, sections, notices: layers.notices().to_vec(), wrong }
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# forebay {}: every setting as it holds, and where it came from", self.command)?;
        for (section, lines) in &self.sections {
            writeln!(f, "\n[{section}]")?;
            for Line { key, value, origin } in lines {
                let left = match value {
                    Some(value) => format!("{key} = {value}"),
                    None => format!("# {key}"),
                };
                let origin: &dyn fmt::Display = match origin {
                    None if value.is_none() => &"not set",
                    None => &"default",
                    Some(Origin::File(path)) => &format!("file {}", path.display()),
                    Some(Origin::Variable(name)) => &format!("variable {name}"),
                    Some(Origin::Flag(flag)) => &format!("flag {flag}"),
                };
                writeln!(f, "{left:COLUMN$} # {origin}")?;
            }
        }
        let without =
            self.notices.iter().filter_map(|notice| Some((notice.variable, notice.why_not.as_ref()?)));
        for (number, (variable, why)) in without.enumerate() {
            let gap = if number == 0 { "\n" } else { "" };
            writeln!(f, "{gap}# {variable} has no effect: {why}")?;
        }
        Ok(())
    }
}

/// The values that hold where nothing is said: what the example says, unless its line says otherwise.
pub(super) fn defaults(example: &str, derived: Derived) -> Table {
    let mut lines = String::new();
    for line in example.lines() {
        match line.split_once(" # ") {
            Some((_, "no default")) => continue,
            Some((setting, remark)) if !line.starts_with('#') => {
                let default = remark.strip_prefix("default: ");
                let key = setting.split_once(" = ").map_or(setting, |(key, _)| key);
                let line = default.map_or_else(|| setting.to_owned(), |default| format!("{key} = {default}"));
                let _ = writeln!(lines, "{line}");
            }
            Some(_) | None => {
                let _ = writeln!(lines, "{line}");
            }
        }
    }
    let mut table: Table = toml::from_str(&lines).unwrap_or_default();
    for (path, value) in derived {
        if let Some((section, key)) = path.split_once('.')
            && let Some(Value::Table(keys)) = table.get_mut(section)
        {
            keys.insert(key.to_owned(), value);
        }
    }
    table
}

fn shares<'a>(shares: impl Iterator<Item = (&'a str, u8)>) -> (&'static str, Value) {
    let shares = shares.map(|(class, share)| (class.to_owned(), Value::Integer(share.into())));
    ("admission.class_percent", Value::Table(shares.collect()))
}

/// Whether the file's type hides what is written there.
fn is_hidden<F: Shape>(section: &str, key: &str) -> bool {
    let text = Value::String("text".to_owned());
    [text.clone(), Value::Array(vec![text])].into_iter().any(|value| {
        let keys = Table::from_iter([(key.to_owned(), value)]);
        let whole = Table::from_iter([(section.to_owned(), Value::Table(keys))]);
        F::deserialize(whole).is_ok_and(|file| format!("{file:?}").contains("Hidden(…)"))
    })
}

/// Of a URL that can be read, the server that it leads to.
fn leads_to(section: &str, value: &Value) -> String {
    let url = value.as_str().unwrap_or_default();
    let server = match section {
        "database" => PostgresConnect::new(url).ok().map(|connect| {
            format!(": {} at {}, database {}", connect.user(), connect.endpoint(), connect.database())
        }),
        "redis" => url.into_config().ok().map(|config| format!(": {}", config.address)),
        _ => None,
    };
    written(&Value::String(format!("{HIDDEN}{}", server.unwrap_or_default())))
}

/// As TOML has it.
pub(super) fn written(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Table(keys) => {
            let pairs: Vec<_> =
                keys.iter().map(|(key, value)| format!("{key} = {}", written(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(is_so) => is_so.to_string(),
        Value::Datetime(time) => time.to_string(),
    }
}
