//! Environment variables of the DSQL plugin for Go's `database/sql`, whose reservoir of connections
//! is like that of Forebay: parsers of their values, and the variables that have no effect. The
//! declarations of the settings (`sections/`) have the others.
//!
//! `docs/config.md` has a table that is generated from them.

use forebay_settings::VariableLookup;

use super::electric_variables::switch;

/// Prefix of the variables.
pub(super) const DSQL: &str = "DSQL_";
/// Switch of the shared limit. Without it, the other variables of the limit have no effect.
pub(super) const LEASE_ENABLED: &str = "DSQL_DISTRIBUTED_CONN_LEASE_ENABLED";
/// Switch of the reservoir, which Forebay always has.
pub(super) const RESERVOIR_ENABLED: &str = "DSQL_RESERVOIR_ENABLED";
/// Default of `DSQL_DISTRIBUTED_CONN_LIMIT`.
const DEFAULT_LIMIT: u32 = 10_000;

/// Variables that have no effect, and why.
pub(super) const DSQL_WITHOUT_EFFECT: &[(&str, &str)] =
    &[(RESERVOIR_ENABLED, "connections always come from the reservoir")];

/// Converts a duration of Go, such as `45s`, `1.5h` or `1h30m`, to milliseconds.
pub(super) fn go_duration(text: &str, _: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let error = || "must be a duration such as 500ms, 45s, 11m or 1h30m".to_owned();
    let (mut rest, mut total_ms) = (text.trim(), 0.0);
    if rest == "0" {
        return Ok(Some("0".to_owned()));
    }
    while !rest.is_empty() {
        let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
        let number = &rest[..rest.find(|letter| !is_number(letter)).ok_or_else(error)?];
        rest = &rest[number.len()..];
        let unit = &rest[..rest.find(is_number).unwrap_or(rest.len())];
        rest = &rest[unit.len()..];
        let unit_ms = match unit {
            "ms" => 1.0,
            "s" => 1_000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return Err(error()),
        };
        total_ms += number.parse::<f64>().map_err(|_| error())? * unit_ms;
    }
    let is_valid = !text.trim().is_empty() && (0.0..1e12).contains(&total_ms);
    is_valid.then(|| Some(format!("{:.0}", total_ms.floor()))).ok_or_else(error)
}

/// Returns the default limit if the shared limit is on.
pub(super) fn lease_switch(text: &str, lookup: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let is_on = switch(text, lookup)?.as_deref() == Some("true");
    Ok(is_on.then(|| DEFAULT_LIMIT.to_string()))
}

/// Returns the text, a limit or a table, if the shared limit is on.
pub(super) fn lease_limit(text: &str, lookup: &VariableLookup<'_>) -> Result<Option<String>, String> {
    let enabled = lookup(LEASE_ENABLED).map(|enabled| switch(enabled, lookup)).transpose();
    // An invalid switch is reported with its own name.
    let is_on = enabled.ok().flatten().flatten().as_deref() == Some("true");
    Ok(is_on.then(|| text.to_owned()))
}
