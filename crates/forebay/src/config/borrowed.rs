//! Environment variables of other programs that are understood, and what each means here.
//!
//! Invariant: such a variable is weaker than our own and stronger than the file; one that has no effect is named with the reason.
//! No value is ever shown.
//! Kept by: the tables (`electric.rs`, `opentelemetry.rs`) only say what is meant; [`read`] alone decides what comes of it.

use Counterpart::{Missing, Similar, These};

use super::otel::WITHOUT_OTEL;

pub(super) const DATABASE_URL: &str = "DATABASE_URL";
/// How OpenTelemetry's own variables begin.
const OPENTELEMETRY: &str = "OTEL_";
/// Values that agree with what is so here anyway.
const ASKS_FOR_NOTHING: &[&str] = &["false", "0", "file", "fast_file", "http/protobuf"];

/// One of another program's variables.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) counterpart: Counterpart,
    /// What else there is to know of it, or why it has no effect; may be empty.
    pub(super) remark: &'static str,
}

/// What it means here.
pub(super) enum Counterpart {
    /// These settings (`section.key`), each as the function makes it of the variable's text.
    These(&'static [(&'static str, Reading)]),
    /// A setting that is like it, but that only a person can choose.
    Similar(&'static str),
    /// Nothing.
    Missing,
}

/// The setting's text, out of the variable's text and those of the others; nothing if it says nothing.
pub(super) type Reading = fn(&str, &Said<'_>) -> Result<Option<String>, String>;
pub(super) type Said<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

/// A setting that one of the variables makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(super) variable: &'static str,
    pub(super) section: &'static str,
    pub(super) key: &'static str,
    pub(super) text: String,
}

/// What variables make, and what is to be told of them.
pub(crate) type Borrowed = (Vec<Setting>, Vec<VariableNotice>);
/// The name of a variable whose text can't be read, and what it should be.
pub(crate) type Misread = (&'static str, String);

/// One of these variables that is set, told at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableNotice {
    /// Its name.
    pub variable: &'static str,
    /// The settings that it is.
    pub settings: Vec<&'static str>,
    /// Why it has no effect, if it has none.
    pub why_not: Option<String>,
}

/// What the environment says in the words of these tables: settings, the stronger ones last, and what to tell of it.
///
/// # Errors
/// When a text can't be read.
pub(super) fn read(variables: &[(String, String)], tables: &[&[Known]]) -> Result<Borrowed, Misread> {
    let said = |name: &str| {
        let found = variables.iter().find(|(given, text)| given == name && !text.is_empty());
        found.map(|(_, text)| text.as_str())
    };
    let (mut settings, mut notices) = (Vec::new(), Vec::new());
    for Known { name, counterpart, remark } in tables.iter().copied().flatten() {
        let Some(text) = said(name) else { continue };
        let notice = |settings, why_not| VariableNotice { variable: name, settings, why_not };
        match counterpart {
            // Meant for every program of a cluster, perhaps: no reason not to start.
            These([(path, _)]) if !cfg!(feature = "otel") && path.starts_with("otel.") => {
                notices.push(notice(vec![], Some(format!("this program {WITHOUT_OTEL}"))));
            }
            These(keys) => {
                let mut made = Vec::new();
                for (path, reading) in *keys {
                    let Some(text) = reading(text, &said).map_err(|why| (*name, why))? else { continue };
                    let (section, key) = path.split_once('.').unwrap_or((path, ""));
                    settings.push(Setting { variable: name, section, key, text });
                    made.push(*path);
                }
                // Everybody has those, whatever else is set.
                if *name != DATABASE_URL && !name.starts_with(OPENTELEMETRY) && !made.is_empty() {
                    notices.push(notice(made, None));
                }
            }
            Similar(path) => {
                notices.push(notice(vec![], Some(format!("{remark}; its counterpart is {path}"))))
            }
            Missing if ASKS_FOR_NOTHING.contains(&text.to_lowercase().as_str()) => {}
            Missing => notices.push(notice(vec![], Some((*remark).to_owned()))),
        }
    }
    Ok((settings, notices))
}

pub(super) const fn known(name: &'static str, counterpart: Counterpart, remark: &'static str) -> Known {
    Known { name, counterpart, remark }
}

pub(super) fn text(text: &str, _: &Said<'_>) -> Result<Option<String>, String> {
    Ok(Some(text.to_owned()))
}
