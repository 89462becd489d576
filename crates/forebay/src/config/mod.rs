//! Settings of `forebay gate` and `forebay serve`.
//!
//! Order of precedence, weakest first: defaults, the config file, variables of other programs,
//! `FOREBAY_` variables, flags.
//!
//! Invariant: [`GateConfig`] and [`ServeConfig`] are complete and valid. The rest of the program
//! does not validate them again. Their `Debug` output contains no password.
//! Enforced by: the file types (`gate_file.rs`, `serve_file.rs`) are private. `TryFrom` in
//! `gate.rs` and `serve.rs` is the only conversion from them. A value that may contain a password
//! is a [`SecretText`].

mod admission;
mod database;
mod effective_settings;
mod electric_variables;
#[cfg(test)]
mod electric_variables_tests;
#[cfg(test)]
mod example_tests;
mod explicit_settings;
mod field_names;
mod gate;
mod gate_file;
#[cfg(test)]
mod generated_page;
mod identity;
mod imported_variables;
mod nearest;
mod opentelemetry_variables;
mod otel_config;
mod quota;
#[cfg(test)]
mod reference;
mod secret_text;
mod serve;
mod serve_file;
#[cfg(test)]
mod serve_tests;
mod server_settings;
mod setting_layers;
mod setting_origin;
mod settings_file;
mod storage;
mod value_reader;

pub use admission::AdmissionConfig;
pub use effective_settings::EffectiveSettings;
pub use explicit_settings::ExplicitSettings;
pub use gate::GateConfig;
pub(crate) use gate_file::GateFile;
pub use identity::IdentityConfig;
pub use imported_variables::VariableNotice;
pub use otel_config::OtelConfig;
pub use quota::QuotaConfig;
pub use secret_text::SecretText;
pub use serve::ServeConfig;
pub(crate) use serve_file::ServeFile;
pub use setting_layers::LayerError;
pub(crate) use setting_layers::SettingLayers;
pub(crate) use settings_file::SettingsFile;
pub use value_reader::ValueError;

use crate::cli::{GateArgs, ServeArgs};

/// Why the settings can't be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A layer can't be read.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A value has the wrong type for its key.
    #[error("a setting has the wrong type: {0}")]
    Kind(#[from] toml::de::Error),
    /// A value is invalid.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Config file of `forebay gate` with every key, its default and the reason for it.
pub const GATE_EXAMPLE: &str = include_str!("../../gate.example.toml");

/// Config file of `forebay serve` with every key, its default and the reason for it.
pub const SERVE_EXAMPLE: &str = include_str!("../../serve.example.toml");

/// Loads the settings of `forebay gate`.
///
/// # Errors
/// The error names the invalid setting, its origin, and a valid value.
pub fn load_gate(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<GateConfig, ConfigError> {
    GateConfig::try_from(gate_layers(args, environment)?)
}

/// Loads the settings of `forebay serve`.
///
/// # Errors
/// The error names the invalid setting, its origin, and a valid value.
pub fn load_serve(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<ServeConfig, ConfigError> {
    ServeConfig::try_from(serve_layers(args, environment)?)
}

/// Returns all effective settings of `forebay gate`, to be printed.
///
/// # Errors
/// Fails if a layer can't be read.
pub fn effective_gate(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<EffectiveSettings, ConfigError> {
    Ok(EffectiveSettings::of_gate(gate_layers(args, environment)?))
}

/// Returns all effective settings of `forebay serve`, to be printed.
///
/// # Errors
/// Fails if a layer can't be read.
pub fn effective_serve(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<EffectiveSettings, ConfigError> {
    Ok(EffectiveSettings::of_serve(serve_layers(args, environment)?))
}

fn gate_layers(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<SettingLayers<GateFile>, LayerError> {
    let mut layers = SettingLayers::default();
    if let Some(path) = &args.config {
        layers.file(path)?;
    }
    layers.environment(environment)?;
    args.apply(&mut layers);
    Ok(layers)
}

fn serve_layers(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<SettingLayers<ServeFile>, LayerError> {
    let mut layers = SettingLayers::default();
    if let Some(path) = &args.config {
        layers.file(path)?;
    }
    layers.environment(environment)?;
    args.apply(&mut layers);
    Ok(layers)
}
