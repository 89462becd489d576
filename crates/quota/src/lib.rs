//! Counting across machines.

mod config;
mod core;
mod error;
mod status;
mod store;

pub use config::*;
pub use error::Refusal;
pub use status::*;
pub use store::*;
