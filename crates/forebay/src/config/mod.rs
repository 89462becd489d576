//! Settings of `forebay gate` and `forebay serve`.
//!
//! A setting is declared once, in `sections/`. From the declaration follow its key, variable, flag,
//! default, check, documentation, what SIGHUP does, and the variables of other programs for it.
//!
//! Order of precedence, weakest first: defaults, the config file, variables of other programs,
//! `FOREBAY_` variables, flags.
//!
//! Invariant: [`GateConfig`] and [`ServeConfig`] are complete and valid. The rest of the program
//! does not validate them again. Their `Debug` output contains no password.
//! Enforced by: `TryFrom<SettingLayers>` in `gate.rs` and `serve.rs` is the only way to make them.
//! It reads all sections, which check each value, and then checks how values fit together. A value
//! that may contain a password is a [`SecretText`] or a `Secret`.
//!
//! The crate `forebay-settings` reads the layers and derives everything from the declarations. Here
//! are the declarations, and how the values fit together.
//!
//! | topic | file |
//! |---|---|
//! | declarations; their words | `sections/`; `settings_macro.rs` |
//! | types of values that other crates define | `setting_types.rs` |
//! | variables of other programs | `imported_variables.rs` |
//! | those of Electric and of the DSQL plugin | `electric_variables.rs`, `dsql_variables.rs` |
//! | checks of several settings together | `gate.rs`, `serve.rs` and the files that they use |
//! | `forebay config` | `effective_config.rs` |
//! | pages of the documentation | `reference.rs` |

mod admission;
mod database;
mod dsql_variables;
#[cfg(test)]
mod dsql_variables_tests;
mod effective_config;
mod electric_variables;
#[cfg(test)]
mod electric_variables_tests;
#[cfg(test)]
mod example_tests;
mod gate;
#[cfg(test)]
mod generated_page;
#[cfg(feature = "aws")]
mod iam_auth;
mod identity;
mod imported_variables;
mod otel_config;
mod quota;
#[cfg(test)]
mod reference;
mod sections;
mod serve;
#[cfg(test)]
mod serve_tests;
mod server_settings;
mod setting_types;
mod settings_macro;
mod storage;

pub use admission::AdmissionConfig;
pub use effective_config::EffectiveConfig;
pub use forebay_settings::{ExplicitSettings, LayerError, SecretText, ValueError, VariableNotice};
pub use gate::GateConfig;
pub use identity::IdentityConfig;
pub(crate) use identity::SAME_METHODS;
pub use otel_config::OtelConfig;
pub use quota::QuotaConfig;
pub(crate) use sections::{GateSettings, ServeSettings};
pub use serve::ServeConfig;

use std::path::PathBuf;

use forebay_settings::{
    CommandDeclaration, CommandSettings, Setting, SettingFlags, SettingLayers, example_file,
};

use crate::cli::{GateArgs, ServeArgs};

/// Why the settings can't be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A layer can't be read.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A value is invalid.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Returns a config file of `forebay gate` with every key, its description and its default.
pub fn gate_example() -> String {
    example_file(CommandDeclaration::of::<GateSettings>())
}

/// Returns a config file of `forebay serve` with every key, its description and its default.
pub fn serve_example() -> String {
    example_file(CommandDeclaration::of::<ServeSettings>())
}

/// Returns the declaration of a setting of any command.
pub(crate) fn setting(path: &str) -> Option<&'static Setting> {
    let serve = CommandDeclaration::of::<ServeSettings>();
    serve.setting(path).or_else(|| CommandDeclaration::of::<GateSettings>().setting(path))
}

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
) -> Result<EffectiveConfig, ConfigError> {
    Ok(EffectiveConfig::of_gate(&gate_layers(args, environment)?))
}

/// Returns all effective settings of `forebay serve`, to be printed.
///
/// # Errors
/// Fails if a layer can't be read.
pub fn effective_serve(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<EffectiveConfig, ConfigError> {
    Ok(EffectiveConfig::of_serve(&serve_layers(args, environment)?))
}

fn gate_layers(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<SettingLayers, LayerError> {
    layers(args.config, environment, args.flags)
}

fn serve_layers(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<SettingLayers, LayerError> {
    layers(args.config, environment, args.flags)
}

fn layers<C: CommandSettings>(
    file: Option<PathBuf>,
    environment: impl IntoIterator<Item = (String, String)>,
    flags: SettingFlags<C>,
) -> Result<SettingLayers, LayerError> {
    let mut layers = SettingLayers::new(CommandDeclaration::of::<C>());
    if let Some(file) = file {
        layers.file(&file)?;
    }
    layers.environment(environment)?;
    flags.apply(&mut layers);
    Ok(layers)
}
