//! Settings: defaults, then a file, then the environment, then flags; each stronger than the one before.
//!
//! Invariant: what the rest of the program sees is whole and checked ([`GateConfig`], [`ServeConfig`]); nothing is checked again
//! there. No password is in what can be printed.
//! Kept by: the files' shapes (`file.rs`, `serve_file.rs`) are private, and the only way out of them is `TryFrom` in `gate.rs`
//! and `serve.rs`; whatever may hold a password is a [`Hidden`] there.

mod access;
mod borrowed;
mod check;
mod database;
mod effective;
mod electric;
#[cfg(test)]
mod electric_tests;
#[cfg(test)]
mod example;
mod fields;
mod file;
mod gate;
mod hidden;
mod layers;
mod nearest;
mod opentelemetry;
mod origin;
mod otel;
#[cfg(test)]
mod page;
#[cfg(test)]
mod reference;
mod running;
mod said;
mod serve;
mod serve_file;
#[cfg(test)]
mod serve_tests;
mod storage;

pub use access::{AdmissionConfig, IdentityConfig, QuotaConfig};
pub use borrowed::VariableNotice;
pub use check::ValueError;
pub use effective::Effective;
pub(crate) use file::{GateFile, Shape};
pub use gate::GateConfig;
pub use hidden::Hidden;
pub use layers::LayerError;
pub(crate) use layers::Layers;
pub use otel::OtelConfig;
pub use said::Said;
pub use serve::ServeConfig;
pub(crate) use serve_file::ServeFile;

use crate::cli::{GateArgs, ServeArgs};

/// Why there are no settings to start with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A layer can't be read.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A value of another kind than its key wants.
    #[error("a setting is not right: {0}")]
    Kind(#[from] toml::de::Error),
    /// A value that can't be used.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// A config file of `forebay gate` with every key, its default and its reason.
pub const GATE_EXAMPLE: &str = include_str!("../../gate.example.toml");

/// A config file of `forebay serve` with every key, its default and its reason.
pub const SERVE_EXAMPLE: &str = include_str!("../../serve.example.toml");

/// The settings of `forebay gate`.
///
/// # Errors
/// Says what is wrong, where it was written, and what to write.
pub fn load_gate(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<GateConfig, ConfigError> {
    GateConfig::try_from(gate_layers(args, environment)?)
}

/// The settings of `forebay serve`.
///
/// # Errors
/// Says what is wrong, where it was written, and what to write.
pub fn load_serve(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<ServeConfig, ConfigError> {
    ServeConfig::try_from(serve_layers(args, environment)?)
}

/// All settings of `forebay gate` as they would hold, for people to read.
///
/// # Errors
/// When a layer can't be read.
pub fn effective_gate(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Effective, ConfigError> {
    Ok(Effective::of_gate(gate_layers(args, environment)?))
}

/// All settings of `forebay serve` as they would hold, for people to read.
///
/// # Errors
/// When a layer can't be read.
pub fn effective_serve(
    args: ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Effective, ConfigError> {
    Ok(Effective::of_serve(serve_layers(args, environment)?))
}

fn gate_layers(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Layers<GateFile>, LayerError> {
    let mut layers = Layers::default();
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
) -> Result<Layers<ServeFile>, LayerError> {
    let mut layers = Layers::default();
    if let Some(path) = &args.config {
        layers.file(path)?;
    }
    layers.environment(environment)?;
    args.apply(&mut layers);
    Ok(layers)
}
