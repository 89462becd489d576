//! Settings: defaults, then a file, then the environment, then flags; each stronger than the one before.
//!
//! Invariant: what the rest of the program sees is whole and checked ([`GateConfig`]); nothing is checked again there.
//! Kept by: the file's shape (`file.rs`) is private, and the only way out of it is `TryFrom` in `gate.rs`.

mod access;
mod check;
#[cfg(test)]
mod example;
mod fields;
mod file;
mod gate;
mod layers;
mod nearest;

pub use access::{AdmissionConfig, IdentityConfig, QuotaConfig};
pub use check::ValueError;
pub use gate::GateConfig;
pub use layers::LayerError;
pub(crate) use layers::Layers;

use crate::cli::GateArgs;

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

/// The settings of `forebay gate`.
///
/// # Errors
/// Says what is wrong, where it was written, and what to write.
pub fn load_gate(
    args: GateArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<GateConfig, ConfigError> {
    let mut layers = Layers::default();
    if let Some(path) = args.config.clone() {
        layers.file(&path)?;
    }
    layers.environment(environment)?;
    args.apply(&mut layers);
    GateConfig::try_from(layers)
}
