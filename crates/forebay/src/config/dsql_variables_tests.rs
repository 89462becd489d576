//! Tests of the DSQL plugin's variables, and the rows of their table in `docs/config.md`.

use forebay_settings::{CommandDeclaration, SettingLayers};

use super::dsql_variables::{DSQL, DSQL_WITHOUT_EFFECT};
use super::{ServeSettings, load_serve};
use crate::cli::ServeArgs;
use crate::config::ServeConfig;

const SERVE: CommandDeclaration = CommandDeclaration::of::<ServeSettings>();
const LEASE_ON: (&str, &str) = ("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", "true");

fn pairs(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn with(variables: &[(&str, &str)]) -> Result<ServeConfig, String> {
    let all = pairs(&[&[("DATABASE_URL", "postgres://me@db.test/shop")], variables].concat());
    load_serve(ServeArgs::default(), all).map_err(|error| error.to_string())
}

/// Returns a setting when these variables are set.
fn value(variables: &[(&str, &str)], path: &str) -> Option<i64> {
    let mut layers = SettingLayers::new(SERVE);
    layers.environment(pairs(variables)).unwrap();
    layers.get(path).and_then(|(value, _)| value.as_integer())
}

#[test]
fn each_variable_of_the_dsql_plugin_sets_its_counterpart() {
    for (name, text, path, number) in [
        ("DSQL_RESERVOIR_TARGET_READY", "50", "database.pool_size", 50),
        ("DSQL_RESERVOIR_LOW_WATERMARK", "7", "database.pool_low_watermark", 7),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "1h30m", "database.pool_lifetime_ms", 5_400_000),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "1.5h", "database.pool_lifetime_ms", 5_400_000),
        ("DSQL_RESERVOIR_LIFETIME_JITTER", "0", "database.pool_lifetime_jitter_ms", 0),
        ("DSQL_RESERVOIR_LIFETIME_JITTER", "2m", "database.pool_lifetime_jitter_ms", 120_000),
        ("DSQL_RESERVOIR_GUARD_WINDOW", "500ms", "database.pool_guard_window_ms", 500),
        ("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", "true", "database.max_connections", 10_000),
    ] {
        assert_eq!(value(&[(name, text)], path), Some(number), "{name}={text}");
    }
    let limit = ("DSQL_DISTRIBUTED_CONN_LIMIT", "300");
    assert_eq!(value(&[limit, LEASE_ON], "database.max_connections"), Some(300));
    for off in [limit, ("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", "false")] {
        assert_eq!(value(&[limit, off], "database.max_connections"), None, "the limit is off");
    }
    let ours = ("FOREBAY_DATABASE_MAX_CONNECTIONS", "9");
    assert_eq!(value(&[limit, LEASE_ON, ours], "database.max_connections"), Some(9));
}

#[test]
fn variables_without_effect_and_unknown_ones_are_reported() {
    let notices = |variables: &[(&str, &str)]| {
        let notices = with(variables).unwrap().variable_notices;
        notices.into_iter().map(|notice| (notice.variable, notice.why_not)).collect::<Vec<_>>()
    };
    assert_eq!(notices(&[("DSQL_RESERVOIR_ENABLED", "true")]), []);
    let off = notices(&[("DSQL_RESERVOIR_ENABLED", "false")]);
    assert_eq!(off[0].1.as_deref(), Some("connections always come from the reservoir"));
    let typo = notices(&[("DSQL_RESERVOIR_TARGET_REDY", "5")]);
    let why = typo[0].1.as_deref().unwrap();
    assert!(why.contains("DSQL plugin") && why.contains("`DSQL_RESERVOIR_TARGET_READY`"), "{why}");
    assert_eq!(
        notices(&[("DSQL_RESERVOIR_TARGET_READY", "5")]),
        [("DSQL_RESERVOIR_TARGET_READY".into(), None)]
    );
}

#[test]
fn an_invalid_value_is_reported_with_its_variable() {
    for (name, text, part) in [
        ("DSQL_RESERVOIR_BASE_LIFETIME", "11", "11m or 1h30m"),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "11 minutes", "11m or 1h30m"),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "-1s", "11m or 1h30m"),
        ("DSQL_RESERVOIR_BASE_LIFETIME", "30s", "no connection is ever lent"),
        ("DSQL_RESERVOIR_GUARD_WINDOW", "11m", "no connection is ever lent"),
        ("DSQL_RESERVOIR_LOW_WATERMARK", "21", "at most database.pool_size (20)"),
        ("DSQL_RESERVOIR_LOW_WATERMARK", "0", "at least 1"),
        ("DSQL_RESERVOIR_TARGET_READY", "1", "2 to 10000"),
        ("DSQL_DISTRIBUTED_CONN_LEASE_ENABLED", "maybe", "true or false"),
    ] {
        let error = with(&[(name, text)]).unwrap_err();
        assert!(error.contains(part), "{name}={text}: {error}");
    }
}

/// Returns the table of the page.
pub(super) fn table() -> String {
    let mut table = String::from("| variable | setting | remark |\n|---|---|---|\n");
    for variable in SERVE.imported_variables().iter().filter(|variable| variable.name.starts_with(DSQL)) {
        for (setting, import) in &variable.settings {
            table += &format!("| `{}` | `{}` | {} |\n", variable.name, setting.path, import.remark);
        }
    }
    for (name, reason) in DSQL_WITHOUT_EFFECT {
        table += &format!("| `{name}` | no effect | {reason} |\n");
    }
    table
}
