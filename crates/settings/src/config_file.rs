//! Parser of the config file.
//!
//! Invariant: an error has the line and the column, and quotes no value, because it may be a
//! password.

use std::ops::Range;

use toml::de::DeTable;
use toml::{Table, Value};

use crate::command_settings::CommandDeclaration;
use crate::nearest::nearest;
use crate::setting::Setting;

/// Why a file is invalid.
pub(crate) struct FileProblem {
    /// Line, column and the problem.
    pub(crate) what: String,
    /// Most similar known key.
    pub(crate) suggestion: Option<&'static str>,
}

/// Returns the settings of a file. Each value has the type of its setting.
pub(crate) fn parse(
    text: &str,
    command: CommandDeclaration,
) -> Result<Vec<(&'static Setting, Value)>, FileProblem> {
    let syntax = |error: toml::de::Error| problem(text, error.span(), error.message().to_owned());
    // The first result has the positions, the second one the values.
    let positions = DeTable::parse(text).map_err(syntax)?;
    let values: Table = toml::from_str(text).map_err(syntax)?;
    let unknown = |span, name: &str| {
        let suggestion = nearest_name(name, command);
        FileProblem { suggestion, ..problem(text, Some(span), format!("unknown field `{name}`")) }
    };
    let mut settings = Vec::new();
    for (section, keys) in positions.get_ref() {
        let name: &str = section.get_ref();
        let declared = command.sections.iter().find(|declared| declared.name == name);
        let declared = declared.ok_or_else(|| unknown(section.span(), name))?;
        let Some(positions) = keys.get_ref().as_table() else {
            let what = format!("invalid type: {}, expected a section", keys.get_ref().type_str());
            return Err(problem(text, Some(keys.span()), what));
        };
        for (key, position) in positions {
            let name: &str = key.get_ref();
            let setting = declared.settings.iter().find(|setting| setting.key() == name);
            let setting = setting.ok_or_else(|| unknown(key.span(), name))?;
            let value = values.get(declared.name).and_then(|keys| keys.get(name));
            let value = value.expect("both results are of the same text").clone();
            let wrong_type = |error: String| problem(text, Some(position.span()), without_value(&error));
            (setting.check_type)(&value).map_err(wrong_type)?;
            settings.push((setting, value));
        }
    }
    Ok(settings)
}

/// Returns the known key or section that is most similar.
fn nearest_name(name: &str, command: CommandDeclaration) -> Option<&'static str> {
    let names = command.sections.iter().flat_map(|section| {
        let keys = section.settings.iter().map(Setting::key);
        keys.chain([section.name])
    });
    nearest(name, names)
}

/// Adds the line and the column to an error.
fn problem(text: &str, span: Option<Range<usize>>, error: String) -> FileProblem {
    let before = span.and_then(|span| text.get(..span.start));
    let position = before.map(|before| {
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
        format!("line {line}, column {column}: ")
    });
    FileProblem { what: position.unwrap_or_default() + &error, suggestion: None }
}

/// Returns the error of a wrong type without the value.
fn without_value(error: &str) -> String {
    match (error.strip_prefix("invalid type: "), error.rsplit_once(", expected ")) {
        (Some(found), Some((_, expected))) => {
            let kind = found.split(['"', '`', ',']).next().unwrap_or_default().trim_end();
            format!("invalid type: {kind}, expected {expected}")
        }
        (Some(_), None) | (None, _) => error.to_owned(),
    }
}
