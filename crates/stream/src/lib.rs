//! Lean HTTP streams.
