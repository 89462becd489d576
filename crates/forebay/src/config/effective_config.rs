//! Effective settings of a command, for `forebay config`, and whether it can start with them.

use forebay_redis::IntoConfig as _;
use forebay_replication::reservoir::PostgresConnect;
use forebay_settings::{EffectiveSettings, Setting, SettingLayers, Value};

use super::{ConfigError, GateConfig, ServeConfig};

/// Effective settings of a command.
#[derive(Debug)]
pub struct EffectiveConfig {
    /// All settings with their origins, to be printed.
    pub settings: EffectiveSettings,
    /// Why the command can't start with these settings; `None` if it can.
    pub error: Option<ConfigError>,
}

/// Defaults that depend on other settings, by `section.key`.
type DerivedDefaults = Vec<(&'static str, Value)>;

impl EffectiveConfig {
    pub(super) fn of_gate(layers: &SettingLayers) -> EffectiveConfig {
        let checked = GateConfig::try_from(layers.clone());
        let derived = |config: &GateConfig| vec![shares(config.admission.shares())];
        EffectiveConfig::of(layers, &checked.as_ref().map(derived).unwrap_or_default(), checked.err())
    }

    pub(super) fn of_serve(layers: &SettingLayers) -> EffectiveConfig {
        let checked = ServeConfig::try_from(layers.clone());
        let derived = |config: &ServeConfig| {
            let snapshots = i64::try_from(config.backend.snapshots).unwrap_or(i64::MAX);
            vec![shares(config.admission.shares()), ("serve.snapshots", Value::Integer(snapshots))]
        };
        EffectiveConfig::of(layers, &checked.as_ref().map(derived).unwrap_or_default(), checked.err())
    }

    fn of(layers: &SettingLayers, derived: &DerivedDefaults, error: Option<ConfigError>) -> EffectiveConfig {
        EffectiveConfig { settings: EffectiveSettings::new(layers, derived, server_of_url), error }
    }
}

/// Returns the class shares as a setting.
fn shares<'a>(shares: impl Iterator<Item = (&'a str, u8)>) -> (&'static str, Value) {
    let shares = shares.map(|(class, share)| (class.to_owned(), Value::Integer(share.into())));
    ("admission.class_percent", Value::Table(shares.collect()))
}

/// Returns the server that a secret URL points to, if the URL is valid.
fn server_of_url(setting: &Setting, url: &str) -> Option<String> {
    match setting.section_and_key().0 {
        "database" => PostgresConnect::new(url).ok().map(|connect| {
            format!("{} at {}, database {}", connect.user(), connect.endpoint(), connect.database())
        }),
        "redis" => url.into_config().ok().map(|config| config.address.to_string()),
        _ => None,
    }
}
